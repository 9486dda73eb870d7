"""``estp trace convert``, ``slice``, ``scale`` and ``merge``: a trace in, a trace out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from experiments.commands.trace_source import Reading, Source, Target


@dataclass(frozen=True)
class Convert:
    """Read a trace in any public format and write it as Parquet, CSV, JSON lines or Mooncake's."""

    source: Annotated[OmitArgPrefixes[Source], arg(name="")]
    target: OmitArgPrefixes[Target]

    def run(self) -> int:
        """Write the file; exit code 0."""
        return self.target.write(self.source.read())


@dataclass(frozen=True)
class Slice:
    """Cut a part out of a trace, by time or by count; its first request then arrives at 0."""

    source: Annotated[OmitArgPrefixes[Source], arg(name="")]
    target: OmitArgPrefixes[Target]
    start_s: Annotated[float, arg(metavar="S")] = 0.0
    """Requests that arrive from here on, in seconds since the first ..."""
    end_s: Annotated[float, arg(metavar="S", help_behavior_hint="(default: the end)")] = math.inf
    """... and before here."""
    first: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """At most so many of them, the earliest."""

    def run(self) -> int:
        """Write the file; exit code 0."""
        from traces.combine import slice_trace

        return self.target.write(slice_trace(self.source.read(), self.start_s, self.end_s, self.first))


@dataclass(frozen=True)
class Scale:
    """Bring a trace to another rate, or stretch its lengths."""

    source: Annotated[OmitArgPrefixes[Source], arg(name="")]
    target: OmitArgPrefixes[Target]
    rate: Annotated[float | None, arg(metavar="PER_S", help_behavior_hint="")] = None
    """Requests per second, over the whole span, to squeeze or stretch the arrivals to."""
    time: Annotated[float | None, arg(metavar="FACTOR", help_behavior_hint="")] = None
    """Or: multiply arrival times by this; 0.5 doubles the load."""
    prompt: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Multiply prompt lengths."""
    output: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Multiply output lengths."""

    def run(self) -> int:
        """Write the file; exit code 0."""
        from traces.combine import scale

        return self.target.write(scale(self.source.read(), self.rate, self.time, self.prompt, self.output))


@dataclass(frozen=True)
class Merge:
    """Overlay traces as if all had begun at once; the extra column source says where a request is from.

    Sessions, prefixes and hash ids of different files stay apart.
    """

    traces: Annotated[Positional[tuple[str, ...]], arg(metavar="TRACE ...", help_behavior_hint="(required)")]
    """Two traces or more, and after them the file to write."""
    target: OmitArgPrefixes[Target]
    reading: OmitArgPrefixes[Reading] = field(default_factory=Reading)

    def run(self) -> int:
        """Write the file; exit code 0."""
        from traces.combine import merge

        return self.target.write(merge([self.reading.read(path) for path in self.traces], self.traces))
