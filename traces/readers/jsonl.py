"""JSON lines, one object a request, its keys known by name or named by the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from traces.errors import InputError
from traces.readers.columns import map_columns
from traces.readers.draft import SHOWN_VALUE, Draft, Fault
from traces.readers.source import Source


def matches(source: Source) -> bool:
    """The first line starts an object."""
    return source.first_line().lstrip().startswith(b"{")


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Parse every line; a key that a line lacks is empty there.

    Raises:
        InputError: no line is an object, or a column that is needed is in none of them.
    """
    frame, faults, line_of = read_objects(source)
    mapped = map_columns(frame.columns, columns, source.name)
    return Draft(source.name, frame, mapped, line_of, faults=faults)


def read_objects(source: Source) -> tuple[pl.DataFrame, tuple[Fault, ...], Callable[[int], int]]:
    """One row an object, the lines that are no objects, and row -> line.

    Raises:
        InputError: no line is an object.
    """
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    faults: list[Fault] = []
    # Only \n ends a line: str.splitlines would also cut at U+2028, which JSON allows in strings.
    for number, text in enumerate(source.data.split(b"\n"), start=1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            faults.append(Fault(number, None, None, f"is not JSON ({error})"))
            continue
        if isinstance(row, dict):
            rows.append(row)
            lines.append(number)
        else:
            faults.append(Fault(number, None, repr(row)[:SHOWN_VALUE], "is not a JSON object"))
    if not rows:
        raise InputError(f"{source.name}, line {faults[0].line}: {faults[0].reason}")
    names = list(dict.fromkeys(key for row in rows for key in row))
    frame = pl.DataFrame([_series(name, [row.get(name) for row in rows]) for name in names])
    return frame, tuple(faults), lines.__getitem__


def first_object(source: Source) -> dict[str, Any]:
    """The object on the first line, empty if it holds none: what a format is known by."""
    try:
        row = json.loads(source.first_line())
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _series(name: str, values: list[Any]) -> pl.Series:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str} or kinds <= {int} or kinds <= {float} or kinds <= {list}:
        try:
            return pl.Series(name, values, dtype=pl.String if kinds <= {str} else None, strict=True)
        except (TypeError, OverflowError, ValueError, pl.exceptions.PolarsError):
            pass
    # Mixed kinds keep their spelling, so that the checks can judge and quote each value.
    texts = [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values]
    return pl.Series(name, texts, dtype=pl.String)
