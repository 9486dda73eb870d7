"""From raw columns to a trace: every row checked, and every fault named by file, line, column and value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

from traces.errors import InputError
from traces.readers.columns import ColumnMap
from traces.readers.values import as_integers, as_nanoseconds, as_text, holds_dates, stripped
from traces.schema import NUMBER_COLUMNS, TEXT_COLUMNS, Trace, object_array

OnError = Literal["fail", "skip"]
MAX_TOKENS = 2**31 - 1
SHOWN_VALUE = 60
LISTED_DROPS = 20


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
    """What a reader found, before any value is believed.

    Attributes:
        name: what errors call the file.
        frame: the rows as they stand; text where the format has no types.
        columns: which column is which.
        line_of: row of ``frame`` -> its line in the file; called only for rows at fault.
        place: what a line is called in errors.
        faults: rows that could not even be split into columns, and are not in ``frame``.
        metadata: kept in the trace.
        hash_block_tokens: tokens a hash id stands for in this format; None: to be told from the ids.
    """

    name: str
    frame: pl.DataFrame
    columns: ColumnMap
    line_of: Callable[[int], int]
    place: str = "line"
    faults: tuple[Fault, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    hash_block_tokens: int | None = None


@dataclass(eq=False)
class _Check:
    """Collects the first fault of each row: ``reasons`` holds (mask, column, reason) in order."""

    ok: np.ndarray[Any, np.dtype[np.bool_]]
    reasons: list[tuple[np.ndarray[Any, Any], str, str]] = field(default_factory=list)

    def reject(self, bad: np.ndarray[Any, Any], column: str, reason: str) -> None:
        bad = bad & self.ok
        if bad.any():
            self.reasons.append((bad, column, reason))
            self.ok = self.ok & ~bad


def build_trace(draft: Draft, on_error: OnError, hash_block_tokens: int | None = None) -> Trace:
    """Check a draft and make a trace of it.

    ``hash_block_tokens`` goes before what the format and the ids say; with either it is kept in the
    metadata, where the simulator looks for it.

    With ``fail`` the first fault of the file is an error. With ``skip`` rows at fault are left
    out, rows out of time order are put in order, and ``metadata["dropped"]`` (``count``,
    ``reasons``, and the first of them as ``rows``) and ``metadata["reordered"]`` say so.

    Raises:
        InputError: a fault (``fail``), or no good row is left (``skip``).
    """
    check = _Check(np.ones(len(draft.frame), dtype=bool))
    values: dict[str, Any] = {}
    block = None
    for name in ("prompt_tokens", "output_tokens"):
        values[name] = _tokens(draft, name, check)
    ticks, ticks_per_s = _arrivals(draft, check)
    values["request_id"] = _ids(draft, check)
    for name, dtype in NUMBER_COLUMNS.items():
        if name in draft.columns.columns:
            values[name] = _optional_numbers(draft, name, dtype, check)
    if "hash_ids" in draft.columns.columns:
        values["hash_ids"] = _hash_ids(draft, check)
        block = _check_blocks(draft, values["prompt_tokens"], values["hash_ids"], hash_block_tokens, check)
    reordered = _check_order(draft, ticks, check, on_error)
    dropped = _judge(draft, check, on_error)

    kept = np.flatnonzero(check.ok)
    if len(kept) == 0:
        raise InputError(f"{draft.name} has no usable request{_tail(dropped)}")
    kept = kept[np.argsort(ticks[kept], kind="stable")]
    values = {name: column[kept] for name, column in values.items()}
    for name in TEXT_COLUMNS:
        if name in draft.columns.columns:
            values[name] = object_array(
                as_text(draft.frame[draft.columns.columns[name]]).gather(kept).to_list()
            )
    metadata = dict(draft.metadata)
    if "arrival_s" not in draft.columns.columns and draft.columns.undecided_time is None:
        metadata["arrivals"] = "absent"
    if block is not None:
        metadata["hash_block_tokens"] = block
    if dropped:
        metadata["dropped"] = dropped
    if reordered:
        metadata["reordered"] = reordered
    try:
        return Trace(
            arrival_s=(ticks[kept] - ticks[kept[0]]).astype(np.float64) / ticks_per_s,
            extra=_extra(draft, kept),
            metadata=metadata,
            **values,
        )
    except InputError as error:
        raise InputError(f"{draft.name}: {error}") from error


def _tokens(draft: Draft, name: str, check: _Check) -> np.ndarray[Any, Any]:
    column = draft.columns.columns[name]
    numbers = _numbers(draft.frame[column], column, check)
    what = name.replace("_", " ").removesuffix("s")
    check.reject(numbers != np.floor(numbers), column, "is not a whole number")
    check.reject(numbers < 1, column, f"is not a length; a request has at least 1 {what}")
    check.reject(numbers > MAX_TOKENS, column, f"is too large; the most is {MAX_TOKENS} tokens")
    return np.where(check.ok, numbers, 1).astype(np.int32)


def _optional_numbers(
    draft: Draft, name: str, dtype: type[np.generic], check: _Check
) -> np.ndarray[Any, Any]:
    column = draft.columns.columns[name]
    series = draft.frame[column]
    if np.dtype(dtype).kind == "i":
        exact = as_integers(series)
        bad = exact.is_null() & series.is_not_null()
        check.reject(bad.to_numpy(), column, "is not a whole number")
        return exact.fill_null(-1 if name != "prefix_tokens" else 0).to_numpy()
    return np.where(check.ok, _numbers(series, column, check), 0).astype(dtype)


def _numbers(series: pl.Series, column: str, check: _Check) -> np.ndarray[Any, Any]:
    numbers = stripped(series).cast(pl.Float64, strict=False)
    missing = series.is_null().to_numpy()
    check.reject(missing, column, "is missing")
    check.reject(numbers.is_null().to_numpy(), column, "is not a number")
    values = numbers.fill_null(1.0).to_numpy()
    check.reject(~np.isfinite(values), column, "is not finite")
    return np.where(np.isfinite(values), values, 1.0)


def _arrivals(draft: Draft, check: _Check) -> tuple[np.ndarray[Any, Any], int]:
    """Arrivals (n,) and how many of their units make a second.

    The units are the file's own, and whole nanoseconds for dates, so that subtracting the first
    arrival comes before any rounding.
    """
    column = draft.columns.columns.get("arrival_s") or draft.columns.undecided_time
    if column is None:
        return np.zeros(len(draft.frame), dtype=np.int64), 1
    series = draft.frame[column]
    if holds_dates(series):
        nanoseconds = as_nanoseconds(series)
        check.reject(series.is_null().to_numpy(), column, "is missing")
        check.reject(nanoseconds.is_null().to_numpy(), column, "is not a date and time")
        return nanoseconds.fill_null(0).to_numpy(), 1_000_000_000
    if "arrival_s" not in draft.columns.columns:
        raise InputError(
            f"{draft.name}: column {column!r} could be seconds or milliseconds; say which with "
            f"--columns arrival_s={column} or --columns arrival_ms={column}"
        )
    numbers = _numbers(series, column, check)
    check.reject(numbers < 0, column, "is negative; arrivals are counted from 0")
    return numbers, draft.columns.ticks_per_s


def _ids(draft: Draft, check: _Check) -> np.ndarray[Any, Any]:
    column = draft.columns.columns.get("request_id")
    if column is None:
        return np.arange(len(draft.frame), dtype=np.int64)
    series = draft.frame[column]
    check.reject(series.is_null().to_numpy(), column, "is missing")
    again = ~series.is_first_distinct()
    check.reject(again.to_numpy(), column, "is the id of an earlier request; ids must differ")
    whole = as_integers(series)
    # "007" and "7" are two ids: numbers only where the text comes back unchanged.
    same = whole.cast(pl.String) == as_text(series)
    if bool(same.fill_null(False).gather(np.flatnonzero(check.ok)).all()):
        return whole.fill_null(0).to_numpy()
    return object_array(as_text(series).to_list())


def _hash_ids(draft: Draft, check: _Check) -> np.ndarray[Any, Any]:
    column = draft.columns.columns["hash_ids"]
    series = draft.frame[column]
    if not isinstance(series.dtype, pl.List) or not (
        series.dtype.inner.is_integer() or series.dtype.inner == pl.Null
    ):
        check.reject(np.ones(len(series), dtype=bool), column, "is not a list of whole numbers")
        return object_array([np.zeros(0, np.int64)] * len(series))
    check.reject(series.is_null().to_numpy(), column, "is missing")
    inner = series.list.eval(pl.element().is_null().any()).list.first().fill_null(False)
    check.reject(inner.to_numpy(), column, "holds an empty id")
    ends = np.cumsum(series.list.len().fill_null(0).to_numpy())
    # A row without ids explodes to one empty value; the id 0 that fills the others is dropped with its row.
    filled = series.filter(series.list.len() > 0).explode().fill_null(0)
    ids = filled.cast(pl.Int64, strict=False).fill_null(0).to_numpy()
    return object_array(np.split(ids, ends)[: len(series)])


def _check_blocks(
    draft: Draft,
    prompt_tokens: np.ndarray[Any, Any],
    hash_ids: np.ndarray[Any, Any],
    given: int | None,
    check: _Check,
) -> int | None:
    counts = np.array([len(row) for row in hash_ids])
    told = (counts > 0) & check.ok
    block = given or told_block_tokens(prompt_tokens[told], counts[told], draft.hash_block_tokens)
    if block is not None:
        reason = (
            f"names more blocks of {block} tokens than the prompt has; if a block is of another size, "
            "say so with --hash-block-tokens"
        )
        check.reject(counts > -(-prompt_tokens // block), draft.columns.columns["hash_ids"], reason)
    return block


def told_block_tokens(
    prompt_tokens: np.ndarray[Any, Any], counts: np.ndarray[Any, Any], default: int | None
) -> int | None:
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


def _check_order(draft: Draft, ticks: np.ndarray[Any, Any], check: _Check, on_error: OnError) -> int:
    kept = np.flatnonzero(check.ok)
    if len(kept) < 2:
        return 0
    late = ticks[kept][1:] < np.maximum.accumulate(ticks[kept])[:-1]
    if on_error == "fail" and late.any():
        bad = np.zeros(len(ticks), dtype=bool)
        bad[kept[1:][late]] = True
        column = draft.columns.columns.get("arrival_s") or draft.columns.undecided_time or ""
        reason = (
            "is earlier than the row before; sort the file by arrival, or let --on-error skip put it in order"
        )
        check.reject(bad, column, reason)
    return int(late.sum())


def _judge(draft: Draft, check: _Check, on_error: OnError) -> dict[str, Any]:
    count = int((~check.ok).sum()) + len(draft.faults)
    if count == 0:
        return {}
    firsts = LISTED_DROPS if on_error == "skip" else 1
    faults = list(draft.faults)
    for bad, column, reason in check.reasons:
        faults += [_fault(draft, int(row), column, reason) for row in np.flatnonzero(bad)[:firsts]]
    faults.sort(key=lambda fault: fault.line)
    if on_error == "fail":
        raise InputError(f"{draft.name}, {sentence(faults[0], draft.place)}")
    reasons: dict[str, int] = {}
    for fault in draft.faults:
        reasons[fault.reason] = reasons.get(fault.reason, 0) + 1
    for bad, column, reason in check.reasons:
        key = f"column {column!r} {reason}"
        reasons[key] = reasons.get(key, 0) + int(bad.sum())
    listed = [sentence(fault, draft.place) for fault in faults[:LISTED_DROPS]]
    return {"count": count, "reasons": reasons, "rows": listed}


def sentence(fault: Fault, place: str) -> str:
    """Where and what, as one phrase."""
    where = f"{place} {fault.line}" + ("" if fault.column is None else f", column {fault.column!r}")
    value = "" if fault.value is None else f"{fault.value} "
    return f"{where}: {value}{fault.reason}"


def _fault(draft: Draft, row: int, column: str, reason: str) -> Fault:
    value = draft.frame[column][row] if column in draft.frame.columns else None
    if isinstance(value, pl.Series):
        value = value.to_list()
    shown = repr(value)
    if len(shown) > SHOWN_VALUE:
        shown = shown[:SHOWN_VALUE] + "..."
    return Fault(draft.line_of(row), column, None if value is None else shown, reason)


def _tail(dropped: dict[str, Any]) -> str:
    return f": all {dropped['count']} were left out, the first for {dropped['rows'][0]}" if dropped else ""


def _extra(draft: Draft, kept: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    used = {*draft.columns.columns.values(), draft.columns.undecided_time}
    extra = {}
    for series in draft.frame:
        if series.name in used:
            continue
        part = series.gather(kept)
        if part.dtype == pl.String:
            for dtype in (pl.Int64, pl.Float64):
                cast = part.cast(dtype, strict=False)
                if cast.null_count() == 0:
                    part = cast
                    break
        plain = part.dtype.is_numeric() and part.null_count() == 0
        extra[series.name] = part.to_numpy() if plain else object_array(part.to_list())
    return extra
