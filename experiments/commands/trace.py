"""``estp trace``: everything that is done to a trace before it is replayed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import OmitSubcommandPrefixes, subcommand

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

    action: OmitSubcommandPrefixes[Action]

    def run(self) -> int:
        """Do what was asked; exit code 0."""
        return self.action.run()
