"""The checks that a row passes by itself, or beside the rows before it: all of them, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from traces.errors import InputError
from traces.readers import checks
from traces.readers.checks import Array, Check, Ids
from traces.readers.draft import Draft, Options
from traces.readers.values import as_text, holds_dates
from traces.schema import NUMBER_COLUMNS, TEXT_COLUMNS
from traces.tokens import count_tokens

NAMES = ("session_id", "prefix_id")
Column = Array | pl.Series


@dataclass(eq=False)
class Seen:
    """What the rows so far say about the next ones.

    Attributes:
        rows: how many there were.
        ids: theirs.
        dates: whether arrivals are dates; None before the first arrival.
        latest: the latest arrival.
        reordered: how many arrived before it.
    """

    rows: int = 0
    ids: Ids = field(default_factory=Ids)
    dates: bool | None = None
    latest: Any = None
    reordered: int = 0


@dataclass(eq=False)
class Checked:
    """Columns of a piece, good rows and bad ones.

    Attributes:
        values: trace column -> numbers; texts, ids and names as they stand, as they are judged in whole
            columns; and ``arrivals`` in units of which ``ticks_per_s`` make a second.
        extra: the other columns, as they stand.
        metadata: what is kept in the trace.
    """

    values: dict[str, Column]
    extra: dict[str, pl.Series]
    ticks_per_s: int
    metadata: dict[str, Any]


def check_rows(draft: Draft, options: Options, seen: Seen, check: Check) -> Checked:
    """Check the rows of a draft that come after those seen; faults go to ``check``.

    Raises:
        InputError: something is wrong with a column rather than with a row.
    """
    values, metadata = _lengths(draft, options, check)
    ticks, ticks_per_s = _arrivals(draft, seen, check)
    values |= {"arrivals": ticks} | _optional(draft, seen, check)
    if "hash_ids" in values:
        block = _check_blocks(draft, values["prompt_tokens"], values["hash_ids"], options, check)
        metadata |= {} if block is None else {"hash_block_tokens": block}
    _check_order(draft, ticks, seen, check, options)
    seen.rows += len(draft.frame)
    columns = draft.columns.columns
    values |= {name: as_text(draft.frame[columns[name]]) for name in TEXT_COLUMNS if name in columns}
    used = {*columns.values(), draft.columns.undecided_time}
    extra = {series.name: series for series in draft.frame if series.name not in used}
    return Checked(values, extra, ticks_per_s, draft.metadata | metadata)


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


def _optional(draft: Draft, seen: Seen, check: Check) -> dict[str, Column]:
    columns, frame = draft.columns.columns, draft.frame
    values: dict[str, Column] = {}
    if "request_id" in columns:
        values["request_id"] = checks.ids(frame[columns["request_id"]], seen.ids, check)
    else:
        values["request_id"] = np.arange(seen.rows, seen.rows + len(frame), dtype=np.int64)
    for name, dtype in NUMBER_COLUMNS.items():
        if name in columns:
            series = frame[columns[name]]
            is_name = name in NAMES and series.dtype == pl.String
            values[name] = series if is_name else checks.optional_numbers(series, name, dtype, check)
    if "hash_ids" in columns:
        values["hash_ids"] = checks.hash_ids(frame[columns["hash_ids"]], check)
    return values


def _arrivals(draft: Draft, seen: Seen, check: Check) -> tuple[Array, int]:
    """Arrivals (n,) and how many of their units make a second.

    The units are the file's own, and whole nanoseconds for dates, so that subtracting the first
    arrival comes before any rounding.
    """
    column = _time_column(draft)
    if column is None:
        return np.zeros(len(draft.frame), dtype=np.int64), 1
    series = draft.frame[column]
    if seen.dates is None and series.null_count() < len(series):
        seen.dates = holds_dates(series)
    if seen.dates is not False:
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


def _check_order(draft: Draft, ticks: Array, seen: Seen, check: Check, options: Options) -> None:
    kept = np.flatnonzero(check.ok)
    if len(kept) == 0:
        return
    latest = np.maximum.accumulate(ticks[kept])
    if seen.latest is not None:
        latest = np.maximum(latest, seen.latest)
    late = ticks[kept] < latest
    if options.on_error == "fail" and late.any():
        bad = np.zeros(len(ticks), dtype=bool)
        bad[kept[late]] = True
        reason = (
            "is earlier than the row before; sort the file by arrival, or let --on-error skip put it in order"
        )
        check.reject(bad, _time_column(draft) or "", reason)
    seen.latest = latest[-1]
    seen.reordered += int(late.sum())
