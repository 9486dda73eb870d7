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


def names_to_numbers(series: pl.Series) -> tuple[NDArray[np.int64], Array | None]:
    """Sessions or prefixes as numbers (-1: none), and their names, if they are not numbers already.

    Names are numbered from 0 as they first occur.
    """
    numbers = as_integers(series)
    names = None
    if (numbers.is_null() & series.is_not_null()).any():
        order = series.drop_nulls().unique(maintain_order=True)
        numbers = series.replace_strict(order, pl.Series(range(len(order)), dtype=pl.Int64), default=None)
        names = object_array(series.to_list())
    return numbers.fill_null(-1).to_numpy(), names


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


@dataclass(eq=False)
class Ids:
    """The ids so far. As long as they count up, nothing but the last one has to be looked at."""

    parts: list[pl.Series] = field(default_factory=list)
    last: int | None = None
    up: bool = True
    known: set[Any] = field(default_factory=set)

    def repeated(self, series: pl.Series) -> Array:
        """(n,) whether an id stands earlier in this column or in those before it, which it then joins."""
        self.up = self.up and self._counts_up(series)
        if self.up:
            self.parts.append(series)
            return np.zeros(len(series), dtype=bool)
        for part in self.parts:
            self.known.update(part.to_list())
        self.parts = [series]
        again = (~series.is_first_distinct()).to_numpy()
        if self.known:
            again = again | np.array([value in self.known for value in series.to_list()], dtype=bool)
        return again

    def _counts_up(self, series: pl.Series) -> bool:
        numbers = as_integers(series)
        if len(series) == 0 or numbers.null_count():
            return len(series) == 0
        values = numbers.to_numpy()
        above = self.last is None or int(values[0]) > self.last
        self.last = int(values[-1])
        return above and bool((values[1:] > values[:-1]).all())


def ids(series: pl.Series, earlier: Ids, check: Check) -> pl.Series:
    """Ids that differ from each other and from earlier ones, as they stand; ``id_array`` is for all of them."""
    check.reject(series.is_null().to_numpy(), series.name, "is missing")
    again = earlier.repeated(series)
    check.reject(again, series.name, "is the id of an earlier request; ids must differ")
    return series


def id_array(series: pl.Series) -> Array:
    """(n,) int64 only if every id reads back as it is written, else object array of str."""
    whole = as_integers(series)
    # "007" and "7" are two ids: numbers only where the text comes back unchanged.
    if bool((whole.cast(pl.String) == as_text(series)).fill_null(False).all()):
        return whole.to_numpy()
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
