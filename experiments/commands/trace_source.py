"""How ``estp trace`` is told which trace to read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

if TYPE_CHECKING:
    from traces import Trace


@dataclass(frozen=True)
class Reading:
    """How a file is read."""

    format: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Format of the trace, if its content does not tell; a NAME that is none lists them."""
    columns: Annotated[tuple[str, ...], arg(metavar="NAME=COLUMN ...", help_behavior_hint="")] = ()
    """Columns of a CSV, JSON or foreign Parquet: arrival_ms=ts prompt_tokens=in output_tokens=out."""
    on_error: Literal["fail", "skip"] = "fail"
    """Refuse a trace at its first fault, or leave such rows out and list them."""
    hash_block_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Prompt tokens that a hash id stands for; told from the format and the ids if not given."""
    tokenizer: Annotated[str | None, arg(metavar="NAME_OR_PATH", help_behavior_hint="")] = None
    """Counts the tokens of texts: a tokenizer.json, its folder, a model of the hub, or smollm2-135m-instruct."""

    def read(self, path: str) -> Trace:
        """The trace; what was left out of it is told on standard error.

        Raises:
            InputError: it cannot be read.
        """
        from experiments.options import _tell_dropped
        from traces import read_trace
        from traces.errors import InputError

        columns: dict[str, str] = {}
        for pair in self.columns:
            name, equals, column = pair.partition("=")
            if not (name and equals and column):
                raise InputError(f"--columns {pair!r} is not of the form NAME=COLUMN")
            columns[name] = column
        trace = read_trace(
            path,
            self.format,
            columns or None,
            self.on_error,
            self.hash_block_tokens,
            self.tokenizer,
        )
        _tell_dropped(trace.metadata)
        return trace


@dataclass(frozen=True)
class Source:
    """One trace, and how it is read."""

    trace: Annotated[Positional[str], arg(metavar="TRACE")]
    """Trace in any format, gzipped or not; a folder of ForeLen CSVs; - is standard input."""
    reading: OmitArgPrefixes[Reading] = field(default_factory=Reading)

    def read(self) -> Trace:
        """The trace.

        Raises:
            InputError: it cannot be read.
        """
        return self.reading.read(self.trace)


@dataclass(frozen=True)
class Target:
    """Where a trace is written."""

    out: Annotated[Positional[str], arg(metavar="OUT")]
    """File to write: .parquet, or .csv, .jsonl and either with .gz."""
    to: Annotated[
        Literal["parquet", "csv", "jsonl", "mooncake"] | None,
        arg(metavar="{parquet,csv,jsonl,mooncake}", help_behavior_hint=""),
    ] = None
    """Format to write, if not the one of the name's ending; mooncake is for AIPerf, GuideLLM, Dynamo, vLLM."""

    def write(self, trace: Trace) -> int:
        """Write the trace and say so; exit code 0.

        Raises:
            InputError: the format is not known, or the file cannot be written.
        """
        from traces.export import write_as

        kind = write_as(trace, self.out, self.to)
        print(f"wrote {len(trace)} requests to {self.out} ({kind})")
        return 0
