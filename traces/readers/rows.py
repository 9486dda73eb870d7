"""Objects (of JSON) as a table: a column a key, empty where an object lacks it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from traces.errors import InputError
from traces.readers.checks import int64_list
from traces.readers.values import SPELLED

# Rows that share no keys would fill memory with gaps: so many cells at least are always allowed.
FREE_CELLS = 4_000_000


def table(rows: Iterable[dict[str, Any]], name: str, size: int) -> pl.DataFrame:
    """The rows as columns; ``size`` is the bytes that they were read from.

    Raises:
        InputError: the rows have too many different keys.
    """
    columns: dict[str, list[Any]] = {}
    count = 0
    for row in rows:
        for key, value in row.items():
            if key not in columns:
                columns[key] = []
                _check_cells(len(columns), count, name, size)
            column = columns[key]
            column.extend([None] * (count - len(column)))
            column.append(_compact(value))
        count += 1
    _check_cells(len(columns), count, name, size)
    for column in columns.values():
        column.extend([None] * (count - len(column)))
    # Emptied as they are turned, so that both forms of the whole are never there at once.
    return pl.DataFrame([_series(key, columns.pop(key)) for key in list(columns)])


def lone_surrogate(value: Any) -> bool:
    """Whether a text in it holds half a character, which JSON can spell and UTF-8 cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_cells(columns: int, rows: int, name: str, size: int) -> None:
    if columns * rows > FREE_CELLS + size:
        raise InputError(f"{name} has {columns} different keys in {rows} rows; rows of a trace share theirs")


def _compact(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    numbers = int64_list(value)
    return value if numbers is None else numbers


def _series(name: str, values: list[Any]) -> pl.Series:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {str}:
        return pl.Series(name, values, dtype=pl.String)
    if kinds == {np.ndarray}:
        return _lists(name, values)
    if kinds == {int} or kinds == {float}:
        try:
            return pl.Series(name, values, dtype=pl.Int64 if kinds == {int} else pl.Float64)
        except (TypeError, OverflowError, pl.exceptions.PolarsError):
            pass
    # Mixed kinds keep their spelling, so that the checks can judge and quote each value.
    spelled = [_spelled(value) for value in values]
    if kinds & {list, dict, np.ndarray}:
        return pl.Series(name, [None if text is None else {"json": text} for text in spelled], dtype=SPELLED)
    return pl.Series(name, spelled, dtype=pl.String)


def _lists(name: str, values: list[Any]) -> pl.Series:
    missing = pl.Series([value is None for value in values], dtype=pl.Boolean)
    nothing = np.zeros(0, np.int64)
    kind = pl.List(pl.Int64)
    found = pl.Series(name, [nothing if value is None else value for value in values], dtype=kind)
    return found.zip_with(~missing, pl.Series(name, [None], dtype=kind)) if missing.any() else found


def _spelled(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=np.ndarray.tolist)
