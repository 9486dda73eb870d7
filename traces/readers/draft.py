"""From raw columns to a trace: every row checked, and every fault named by file, line, column and value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

from traces.errors import InputError
from traces.readers import checks
from traces.readers.checks import Array, Check
from traces.readers.columns import ColumnMap
from traces.readers.values import SPELLED, as_text, holds_dates
from traces.schema import COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, Trace, object_array
from traces.tokens import count_tokens

OnError = Literal["fail", "skip"]
SHOWN_VALUE = 60
SKIP = "--on-error skip"
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


def build_trace(draft: Draft, options: Options) -> Trace:
    """Check a draft and make a trace of it.

    With ``fail`` the first fault of the file is an error. With ``skip`` rows at fault are left
    out, rows out of time order are put in order, and ``metadata["dropped"]`` (``count``,
    ``reasons``, and the first of them as ``rows``) and ``metadata["reordered"]`` say so.

    Raises:
        InputError: a fault (``fail``), or no good row is left (``skip``).
    """
    check = Check(np.ones(len(draft.frame), dtype=bool))
    values, metadata = _lengths(draft, options, check)
    ticks, ticks_per_s = _arrivals(draft, check)
    values |= _optional(draft, check)
    if "hash_ids" in values:
        block = _check_blocks(draft, values["prompt_tokens"], values["hash_ids"], options, check)
        metadata |= {} if block is None else {"hash_block_tokens": block}
    reordered = _check_order(draft, ticks, check, options.on_error)
    dropped = _judge(draft, check, options.on_error)

    kept = np.flatnonzero(check.ok)
    if len(kept) == 0:
        raise InputError(f"{draft.name} has no usable request{_tail(dropped)}")
    kept = kept[np.argsort(ticks[kept], kind="stable")]
    values = {name: column[kept] for name, column in values.items()}
    for name in TEXT_COLUMNS:
        if name in draft.columns.columns:
            texts = as_text(draft.frame[draft.columns.columns[name]])
            values[name] = object_array(texts.gather(kept).to_list())
    if "arrival_s" not in draft.columns.columns and draft.columns.undecided_time is None:
        metadata["arrivals"] = "absent"
    if dropped:
        metadata["dropped"] = dropped
    if reordered:
        metadata["reordered"] = reordered
    try:
        return Trace(
            arrival_s=(ticks[kept] - ticks[kept[0]]).astype(np.float64) / ticks_per_s,
            extra=_extra(draft, kept),
            metadata=draft.metadata | metadata,
            **values,
        )
    except InputError as error:
        raise InputError(f"{draft.name}: {error}") from error


def _lengths(draft: Draft, options: Options, check: Check) -> tuple[dict[str, Any], dict[str, Any]]:
    """Token counts as the file has them, or counted from its texts by the tokenizer."""
    found: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    columns = draft.columns.columns
    for name, text in (("output_tokens", "response"), ("prompt_tokens", "prompt")):
        if name in columns:
            series = draft.frame[columns[name]]
            found[name] = checks.tokens(series, name, draft.no_output if text == "response" else None, check)
            continue
        texts = draft.frame[columns[text]]
        if options.tokenizer is None:
            raise InputError(
                f"{draft.name} has the text {texts.name!r} but no token counts; count them with "
                f"--tokenizer NAME, or name their column with --columns {name}=NAME"
            )
        counts = count_tokens(checks.texts(texts, check), options.tokenizer)
        check.reject(counts == 0, texts.name, "has no token; a request has at least one")
        found[name] = np.maximum(counts, 1).astype(np.int32)
        metadata["tokenizer"] = options.tokenizer
    if draft.history:
        total = found["prompt_tokens"].astype(np.int64) + _before(draft, found)
        check.reject(total > checks.MAX_TOKENS, columns["prompt"], "has too long a history")
        found["prompt_tokens"] = np.where(check.ok, total, 1).astype(np.int32)
    return found, metadata


def _before(draft: Draft, found: dict[str, Any]) -> Array:
    """Tokens of the rows of a session before each of its rows; a session's rows stand together."""
    own = found["prompt_tokens"].astype(np.int64) + found["output_tokens"]
    before = np.cumsum(own) - own
    session = draft.frame[draft.columns.columns["session_id"]].to_numpy()
    begins = np.flatnonzero(np.diff(session, prepend=session[:1] - 1))
    return np.asarray(before - np.repeat(before[begins], np.diff(begins, append=len(session))))


def _optional(draft: Draft, check: Check) -> dict[str, Any]:
    columns, frame = draft.columns.columns, draft.frame
    values: dict[str, Any] = {}
    if "request_id" in columns:
        values["request_id"] = checks.ids(frame[columns["request_id"]], check)
    else:
        values["request_id"] = np.arange(len(frame), dtype=np.int64)
    for name, dtype in NUMBER_COLUMNS.items():
        if name in columns:
            series = frame[columns[name]]
            numbered = checks.names_to_numbers(series) if name in ("session_id", "prefix_id") else None
            values[name] = checks.optional_numbers(
                series if numbered is None else numbered, name, dtype, check
            )
    if "hash_ids" in columns:
        values["hash_ids"] = checks.hash_ids(frame[columns["hash_ids"]], check)
    return values


def _arrivals(draft: Draft, check: Check) -> tuple[Array, int]:
    """Arrivals (n,) and how many of their units make a second.

    The units are the file's own, and whole nanoseconds for dates, so that subtracting the first
    arrival comes before any rounding.
    """
    column = _time_column(draft)
    if column is None:
        return np.zeros(len(draft.frame), dtype=np.int64), 1
    series = draft.frame[column]
    if holds_dates(series):
        return checks.dates(series, check), 1_000_000_000
    if "arrival_s" not in draft.columns.columns:
        raise InputError(
            f"{draft.name}: column {column!r} could be seconds or milliseconds; say which with "
            f"--columns arrival_s={column} or --columns arrival_ms={column}"
        )
    return checks.times(series, check), draft.columns.ticks_per_s


def _time_column(draft: Draft) -> str | None:
    return draft.columns.columns.get("arrival_s") or draft.columns.undecided_time


def _check_blocks(
    draft: Draft, prompt_tokens: Array, hash_ids: Array, options: Options, check: Check
) -> int | None:
    counts = np.array([len(row) for row in hash_ids])
    told = (counts > 0) & check.ok
    block = options.hash_block_tokens or checks.told_block_tokens(
        prompt_tokens[told], counts[told], draft.hash_block_tokens
    )
    if block is not None:
        reason = (
            f"names more blocks of {block} tokens than the prompt has; if a block is of another size, "
            "say so with --hash-block-tokens"
        )
        check.reject(counts > -(-prompt_tokens // block), draft.columns.columns["hash_ids"], reason)
    return block


def _check_order(draft: Draft, ticks: Array, check: Check, on_error: OnError) -> int:
    kept = np.flatnonzero(check.ok)
    if len(kept) < 2:
        return 0
    late = ticks[kept][1:] < np.maximum.accumulate(ticks[kept])[:-1]
    if on_error == "fail" and late.any():
        bad = np.zeros(len(ticks), dtype=bool)
        bad[kept[1:][late]] = True
        reason = (
            "is earlier than the row before; sort the file by arrival, or let --on-error skip put it in order"
        )
        check.reject(bad, _time_column(draft) or "", reason)
    return int(late.sum())


def _judge(draft: Draft, check: Check, on_error: OnError) -> dict[str, Any]:
    count = int((~check.ok).sum()) + len(draft.faults)
    if count == 0:
        return {}
    firsts = LISTED_DROPS if on_error == "skip" else 1
    faults = list(draft.faults)
    for bad, column, reason in check.reasons:
        faults += [_fault(draft, int(row), column, reason) for row in np.flatnonzero(bad)[:firsts]]
    faults.sort(key=lambda fault: fault.line)
    if on_error == "fail":
        said = sentence(faults[0], draft.place)
        hint = "" if SKIP in said else f" ({SKIP} leaves such rows out and lists them)"
        raise InputError(f"{draft.name}, {said}{hint}")
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
    value = None
    if column in draft.frame.columns:
        series = draft.frame[column][row : row + 1]
        value = (as_text(series) if series.dtype == SPELLED else series).to_list()[0]
    shown = repr(value)
    if len(shown) > SHOWN_VALUE:
        shown = shown[:SHOWN_VALUE] + "..."
    return Fault(draft.line_of(row), column, None if value is None else shown, reason)


def _tail(dropped: dict[str, Any]) -> str:
    return f": all {dropped['count']} were left out, the first for {dropped['rows'][0]}" if dropped else ""


def _extra(draft: Draft, kept: Array) -> dict[str, Array]:
    used = {*draft.columns.columns.values(), draft.columns.undecided_time}
    extra = {}
    for series in draft.frame:
        if series.name not in used:
            extra[series.name] = _plain(series.gather(kept))
    for name in ("session_id", "prefix_id"):
        if name not in draft.columns.columns:
            continue
        series = draft.frame[draft.columns.columns[name]]
        if checks.names_to_numbers(series) is not None:
            # The numbers are ours; the names are what the user knows them by.
            shown = f"{name.removesuffix('_id')}_name" if series.name in COLUMNS else series.name
            extra[shown] = object_array(series.gather(kept).to_list())
    return extra


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
