"""JSON lines, one object a request, its keys known by name or named by the user.

So are vLLM's custom data sets: ``prompt``, and ``output_tokens`` for the length of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import polars as pl

from traces.errors import InputError
from traces.readers import rows
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


def read_objects(
    source: Source, shape: Callable[[dict[str, Any]], dict[str, Any] | str] | None = None
) -> tuple[pl.DataFrame, tuple[Fault, ...], Callable[[int], int]]:
    """One row an object, the lines that are no objects, and row -> line.

    ``shape`` turns an object of nested ones into a flat row, or says why it is none.

    Raises:
        InputError: no line is an object.
    """
    lines: list[int] = []
    faults: list[Fault] = []

    def objects() -> Iterator[dict[str, Any]]:
        for number, found in parse_lines(source):
            row = found if isinstance(found, Fault) or shape is None else shape(found)
            if isinstance(row, str):
                row = Fault(number, None, None, row)
            if isinstance(row, Fault):
                faults.append(row)
            else:
                lines.append(number)
                yield row

    frame = rows.table(objects(), source.name, len(source.data))
    if not lines:
        raise InputError(_no_lines(source, faults[0]))
    return frame, tuple(faults), lines.__getitem__


def parse_lines(source: Source) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """(line number, its object or what is wrong with it) of every line that is not blank."""
    for number, line in source.lines():
        try:
            found = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            yield number, Fault(number, None, None, "is not UTF-8 text")
            continue
        except (ValueError, RecursionError) as error:
            yield number, Fault(number, None, None, f"is not JSON ({error})")
            continue
        if not isinstance(found, dict):
            yield number, Fault(number, None, repr(found)[:SHOWN_VALUE], "is not a JSON object")
        elif b"\\u" in line and rows.lone_surrogate(found):
            yield number, Fault(number, None, None, "holds half a character (a lone surrogate)")
        else:
            yield number, found


def _no_lines(source: Source, first: Fault) -> str:
    fault = f"{source.name}, line {first.line}: {first.reason}"
    if not first.reason.startswith("is not JSON"):
        return fault
    try:
        whole = json.loads(source.data)
    except (ValueError, RecursionError):
        return fault
    if not isinstance(whole, dict):
        return fault
    return (
        f"{source.name} is one JSON object ({', '.join(list(whole)[:8])}), and none that is known here as a "
        "trace; a trace is a list of requests, or one object a line"
    )
