"""What a reader hands on: rows as they stand, which column is which, and what is wrong so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

from traces.readers.columns import ColumnMap

OnError = Literal["fail", "skip"]
SHOWN_VALUE = 60
SKIP = "--on-error skip"


@dataclass(frozen=True)
class Fault:
    """One thing wrong with a file, at one place.

    Attributes:
        line: counted from 1, the header included (row from 0 in Parquet, see ``Draft.place``).
    """

    line: int
    column: str | None
    value: str | None
    reason: str


@dataclass(frozen=True, eq=False)
class Draft:
    """What a reader found, before any value is believed: a file, or the next rows of one that comes in pieces.

    Attributes:
        name: what errors call the file.
        frame: the rows as they stand; text where the format has no types.
        columns: which column is which.
        line_of: row of ``frame`` -> its line in the file; called only for rows at fault.
        place: what a line is called in errors.
        faults: rows that could not even be split into columns, and are not in ``frame``.
        metadata: kept in the trace.
        hash_block_tokens: tokens a hash id stands for in this format; None: to be told from the ids.
        no_output: what an output length of 0 means in this format; None: nothing in particular.
        history: whether a prompt also holds the rows of its session before it, for texts that are counted.
    """

    name: str
    frame: pl.DataFrame
    columns: ColumnMap
    line_of: Callable[[int], int]
    place: str = "line"
    faults: tuple[Fault, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    hash_block_tokens: int | None = None
    no_output: str | None = None
    history: bool = False


@dataclass(frozen=True)
class Options:
    """How to read: see ``read_trace``."""

    on_error: OnError = "fail"
    hash_block_tokens: int | None = None
    tokenizer: str | None = None


def sentence(fault: Fault, place: str) -> str:
    """Where and what, as one phrase."""
    where = f"{place} {fault.line}" + ("" if fault.column is None else f", column {fault.column!r}")
    value = "" if fault.value is None else f"{fault.value} "
    return f"{where}: {value}{fault.reason}"
