"""``estp trace``: everything that is done to a trace before it is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import OmitSubcommandPrefixes, arg, subcommand

from experiments.commands.trace_change import Convert, Merge, Scale, Slice
from experiments.commands.trace_fetch import Fetch
from experiments.commands.trace_look import Describe, Fit
from experiments.commands.trace_synth import Synth

Action = (
    Annotated[Convert, subcommand("convert")]
    | Annotated[Describe, subcommand("describe")]
    | Annotated[Slice, subcommand("slice")]
    | Annotated[Scale, subcommand("scale")]
    | Annotated[Merge, subcommand("merge")]
    | Annotated[Synth, subcommand("synth")]
    | Annotated[Fit, subcommand("fit")]
    | Annotated[Fetch, subcommand("fetch")]
)


@dataclass(frozen=True)
class TraceCommand:
    """Convert, describe, cut, scale, merge, synthesise, fit and fetch request traces."""

    # Without names of their own the groups of options are called "reading" and "target" in the help.
    action: Annotated[OmitSubcommandPrefixes[Action], arg(name="")]

    def run(self) -> int:
        """Do what was asked; exit code 0."""
        return self.action.run()
