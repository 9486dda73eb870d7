"""From the rows of a file to a trace: every row checked, and every fault named by file, line, column and value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from traces.errors import InputError
from traces.readers import checks
from traces.readers.checks import Array, Check
from traces.readers.draft import SHOWN_VALUE, SKIP, Draft, Fault, OnError, Options, sentence
from traces.readers.row_checks import NAMES, Checked, Seen, check_rows
from traces.readers.values import SPELLED, as_text
from traces.schema import COLUMNS, TEXT_COLUMNS, Trace, object_array

LISTED_DROPS = 20


@dataclass(eq=False)
class Dropped:
    """What was left out so far: how many rows, how often for each reason, and the first of them."""

    count: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Kept:
    """The good rows so far: numbers in arrays that grow in place, texts in parts as they came."""

    rows: int = 0
    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, list[pl.Series]] = field(default_factory=dict)
    extra: dict[str, list[pl.Series]] = field(default_factory=dict)

    def add(self, checked: Checked, ok: Array) -> None:
        """Join the good ones of these rows."""
        for name, column in checked.values.items():
            if isinstance(column, pl.Series):
                self.values.setdefault(name, []).append(column.filter(pl.Series(ok)))
            else:
                self.arrays[name] = _grown(self.arrays.get(name), self.rows, column[ok])
        for name, series in checked.extra.items():
            self.extra.setdefault(name, []).append(series.filter(pl.Series(ok)))
        self.rows += int(ok.sum())


def build_trace(drafts: Iterable[Draft], options: Options, metadata: dict[str, Any]) -> Trace:
    """Check drafts, which are a file's rows in their order, and make a trace of them.

    With ``fail`` the first fault is an error, and no draft after it is asked for. With ``skip`` rows at
    fault are left out, rows out of time order are put in order, and ``metadata["dropped"]`` (``count``,
    ``reasons``, and the first of them as ``rows``) and ``metadata["reordered"]`` say so.

    Raises:
        InputError: a fault (``fail``), or no good row is left (``skip``).
    """
    seen, dropped, kept = Seen(), Dropped(), Kept()
    for draft in drafts:
        check = Check(np.ones(len(draft.frame), dtype=bool))
        checked = check_rows(draft, options, seen, check)
        _judge(draft, check, options.on_error, dropped)
        kept.add(checked, check.ok)
        metadata = metadata | checked.metadata
    if kept.rows == 0:
        first = (
            f": all {dropped.count} were left out, the first for {dropped.rows[0]}" if dropped.rows else ""
        )
        raise InputError(f"{draft.name} has no usable request{first}")
    if draft.columns.columns.get("arrival_s") is None and draft.columns.undecided_time is None:
        metadata["arrivals"] = "absent"
    if dropped.count:
        metadata["dropped"] = {"count": dropped.count, "reasons": dropped.reasons, "rows": dropped.rows}
    if seen.reordered:
        metadata["reordered"] = seen.reordered
    try:
        return _trace(kept, checked.ticks_per_s, metadata)
    except InputError as error:
        raise InputError(f"{draft.name}: {error}") from error


def _grown(array: Array | None, count: int, part: Array) -> Array:
    """The first ``count`` values of the array and then the part, with room behind them."""
    if array is None or count == 0:
        array = np.empty(0, part.dtype)
    if count + len(part) > len(array):
        # In place, where a list of parts would need the room of the whole column again in the end.
        array.resize(max(count + len(part), count + count // 8), refcheck=False)
    array[count : count + len(part)] = part
    return array


def _judge(draft: Draft, check: Check, on_error: OnError, dropped: Dropped) -> None:
    count = int((~check.ok).sum()) + len(draft.faults)
    if count == 0:
        return
    firsts = LISTED_DROPS if on_error == "skip" else 1
    faults = list(draft.faults)
    for bad, column, reason in check.reasons:
        faults += [_fault(draft, int(row), column, reason) for row in np.flatnonzero(bad)[:firsts]]
    faults.sort(key=lambda fault: fault.line)
    if on_error == "fail":
        said = sentence(faults[0], draft.place)
        hint = "" if SKIP in said else f" ({SKIP} leaves such rows out and lists them)"
        raise InputError(f"{draft.name}, {said}{hint}")
    dropped.count += count
    found = [(fault.reason, 1) for fault in draft.faults]
    found += [(f"column {column!r} {reason}", int(bad.sum())) for bad, column, reason in check.reasons]
    for reason, times in found:
        dropped.reasons[reason] = dropped.reasons.get(reason, 0) + times
    room = LISTED_DROPS - len(dropped.rows)
    dropped.rows += [sentence(fault, draft.place) for fault in faults[:room]]


def _fault(draft: Draft, row: int, column: str, reason: str) -> Fault:
    value = None
    if column in draft.frame.columns:
        series = draft.frame[column][row : row + 1]
        value = (as_text(series) if series.dtype == SPELLED else series).to_list()[0]
    shown = repr(value)
    if len(shown) > SHOWN_VALUE:
        shown = shown[:SHOWN_VALUE] + "..."
    return Fault(draft.line_of(row), column, None if value is None else shown, reason)


def _trace(kept: Kept, ticks_per_s: int, metadata: dict[str, Any]) -> Trace:
    for array in kept.arrays.values():
        array.resize(kept.rows, refcheck=False)
    ticks = kept.arrays.pop("arrivals")
    order = np.argsort(ticks, kind="stable") if "reordered" in metadata else slice(None)
    ticks -= ticks[order][0]
    arrival_s = ticks.astype(np.float64, copy=False)[order]
    arrival_s /= ticks_per_s
    values: dict[str, Array] = {name: array[order] for name, array in kept.arrays.items()}
    extra = {name: _plain(_whole(parts)[order]) for name, parts in kept.extra.items()}
    for name, parts in kept.values.items():
        column = _whole(parts)[order]
        if name in TEXT_COLUMNS:
            values[name] = object_array(column.to_list())
        elif name == "request_id":
            values[name] = checks.id_array(column)
        else:
            assert name in NAMES
            values[name], names = checks.names_to_numbers(column)
            if names is not None:
                # The numbers are ours; the names are what the user knows them by.
                shown = f"{name.removesuffix('_id')}_name" if column.name in COLUMNS else column.name
                extra[shown] = names
    return Trace(arrival_s=arrival_s, extra=extra, metadata=metadata, **values)


def _whole(parts: list[pl.Series]) -> pl.Series:
    return pl.concat(parts) if len(parts) > 1 else parts[0]


def _plain(part: pl.Series) -> Array:
    part = as_text(part) if part.dtype == SPELLED else part
    if part.dtype == pl.String:
        for dtype in (pl.Int64, pl.Float64):
            cast = part.cast(dtype, strict=False)
            if cast.null_count() == 0:
                part = cast
                break
    plain = part.dtype.is_numeric() and part.null_count() == 0
    return part.to_numpy() if plain else object_array(part.to_list())
