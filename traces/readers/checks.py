"""What a raw column has to be to become a trace's: each check names the rows that fail, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.readers.values import as_integers, as_nanoseconds, as_text, stripped
from traces.schema import object_array

MAX_TOKENS = 2**31 - 1
Array = NDArray[Any]


@dataclass(eq=False)
class Check:
    """Collects the first fault of each row.

    Attributes:
        ok: (n,) whether a row is without fault so far.
        reasons: (mask, column, reason) in the order in which they were found.
    """

    ok: NDArray[np.bool_]
    reasons: list[tuple[Array, str, str]] = field(default_factory=list)

    def reject(self, bad: Array, column: str, reason: str) -> None:
        """Note these rows as faulty, those excepted that are already."""
        bad = bad & self.ok
        if bad.any():
            self.reasons.append((bad, column, reason))
            self.ok = self.ok & ~bad


def tokens(series: pl.Series, name: str, zero: str | None, check: Check) -> NDArray[np.int32]:
    """Lengths: whole numbers of at least 1; ``zero`` is what a 0 means in this format."""
    column = series.name
    values = numbers(series, check)
    check.reject(values != np.floor(values), column, "is not a whole number")
    if zero is not None:
        check.reject(values == 0, column, zero)
    what = name.replace("_", " ").removesuffix("s")
    check.reject(values < 1, column, f"is not a length; a request has at least 1 {what}")
    check.reject(values > MAX_TOKENS, column, f"is too large; the most is {MAX_TOKENS} tokens")
    return np.where(check.ok, values, 1).astype(np.int32)


def numbers(series: pl.Series, check: Check) -> NDArray[np.float64]:
    """Finite numbers; 1 where there is none."""
    found = stripped(series).cast(pl.Float64, strict=False)
    if series.null_count():
        check.reject(series.is_null().to_numpy(), series.name, "is missing")
    if found.null_count():
        check.reject(found.is_null().to_numpy(), series.name, "is not a number")
        found = found.fill_null(1.0)
    values = found.to_numpy()
    finite = np.isfinite(values)
    if finite.all():
        return values
    check.reject(~finite, series.name, "is not finite")
    return np.where(finite, values, 1.0)


def optional_numbers(series: pl.Series, name: str, dtype: type[np.generic], check: Check) -> Array:
    """Numbers of a column that may have gaps; whole ones exactly, to the last of 64 bits."""
    if np.dtype(dtype).kind != "i":
        return np.where(check.ok, numbers(series, check), 0).astype(dtype)
    exact = as_integers(series)
    bad = exact.is_null() & series.is_not_null()
    check.reject(bad.to_numpy(), series.name, "is not a whole number")
    return exact.fill_null(0 if name == "prefix_tokens" else -1).to_numpy()


def names_to_numbers(series: pl.Series) -> pl.Series | None:
    """Names (of sessions, of prefixes) numbered from 0 as they first occur; None if all are numbers."""
    if series.dtype != pl.String or not (as_integers(series).is_null() & series.is_not_null()).any():
        return None
    order = series.drop_nulls().unique(maintain_order=True)
    return series.replace_strict(order, pl.Series(range(len(order)), dtype=pl.Int64), default=None)


def dates(series: pl.Series, check: Check) -> NDArray[np.int64]:
    """Dates and times as nanoseconds since 1970."""
    nanoseconds = as_nanoseconds(series)
    check.reject(series.is_null().to_numpy(), series.name, "is missing")
    check.reject(nanoseconds.is_null().to_numpy(), series.name, "is not a date and time")
    return nanoseconds.fill_null(0).to_numpy()


def times(series: pl.Series, check: Check) -> NDArray[np.float64]:
    """Times as numbers that are not negative."""
    values = numbers(series, check)
    check.reject(values < 0, series.name, "is negative; arrivals are counted from 0")
    return values


def texts(series: pl.Series, check: Check) -> list[str]:
    """Texts that are there; empty ones where there is none."""
    check.reject(series.is_null().to_numpy(), series.name, "is missing")
    if series.dtype != pl.String:
        check.reject(np.ones(len(series), dtype=bool), series.name, "is not a text")
    return as_text(series).fill_null("").to_list()


def ids(series: pl.Series, check: Check) -> Array:
    """Ids that differ; int64 only if every one reads back as it is written."""
    check.reject(series.is_null().to_numpy(), series.name, "is missing")
    again = ~series.is_first_distinct()
    check.reject(again.to_numpy(), series.name, "is the id of an earlier request; ids must differ")
    whole = as_integers(series)
    # "007" and "7" are two ids: numbers only where the text comes back unchanged.
    same = whole.cast(pl.String) == as_text(series)
    if bool(same.fill_null(False).gather(np.flatnonzero(check.ok)).all()):
        return whole.fill_null(0).to_numpy()
    return object_array(as_text(series).to_list())


def hash_ids(series: pl.Series, check: Check) -> Array:
    """(n,) arrays of int64 ids; in text they are JSON lists."""
    check.reject(series.is_null().to_numpy(), series.name, "is missing")
    inner = series.dtype.inner if isinstance(series.dtype, pl.List) else None
    if inner is None or not (inner.is_integer() or inner == pl.Null):
        found = [_listed(value) for value in as_text(series).to_list()]
        bad = np.array([row is None for row in found], dtype=bool)
        check.reject(bad, series.name, "is not a list of whole numbers")
        return object_array([np.zeros(0, np.int64) if row is None else row for row in found])
    empty = series.list.eval(pl.element().is_null().any()).list.first().fill_null(False)
    check.reject(empty.to_numpy(), series.name, "holds an empty id")
    ends = np.cumsum(series.list.len().fill_null(0).to_numpy())
    # A row without ids would explode to one empty value; the 0 for an empty id goes with its row.
    flat = series.filter(series.list.len() > 0).explode().fill_null(0)
    return object_array(np.split(_as_int64(flat), ends)[: len(series)])


def int64_list(values: list[Any]) -> NDArray[np.int64] | None:
    """A list of whole numbers as int64; None if it is another. Ids of 64 bits without sign wrap around."""
    if not values:
        return np.zeros(0, np.int64)
    if not all(type(value) is int for value in values):
        return None
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        pass
    try:
        return np.array(values, dtype=np.uint64).view(np.int64)
    except OverflowError:
        return None


def told_block_tokens(prompt_tokens: Array, counts: Array, default: int | None) -> int | None:
    """Tokens a hash id stands for: the format's, unless only another power of two explains all counts.

    A prompt's last, partial block has an id of its own (Mooncake) or has none (Weka).
    """
    sizes = ([] if default is None else [default]) + [1 << exponent for exponent in range(17)]
    for partial in (True, False):
        for size in sizes:
            blocks = -(-prompt_tokens // size) if partial else prompt_tokens // size
            if len(counts) and (blocks == counts).all():
                return size
    return default


def _as_int64(series: pl.Series) -> NDArray[np.int64]:
    values = series.to_numpy()
    return values.view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)


def _listed(text: str | None) -> NDArray[np.int64] | None:
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return int64_list(found) if isinstance(found, list) else None
