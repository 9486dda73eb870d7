"""Several traces as one, a part of one, or one at another speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.closed_loop import CLOSED
from traces.errors import InputError
from traces.schema import NUMBER_COLUMNS, TEXT_COLUMNS, Trace, object_array

Array = NDArray[Any]
NUMBERED = ("session_id", "prefix_id")


def merge(traces: Sequence[Trace], sources: Sequence[str], label: str = "source") -> Trace:
    """The requests of all traces in order of arrival, as if all had begun at the same time.

    Args:
        traces: at least one.
        sources: a name for each, put into the extra column ``label``.
        label: what that column is called.

    Ids that two traces share become ``source/id``. Sessions, prefixes and hash ids of different traces
    are different ones, and are numbered anew; a column that only some have is empty for the others.

    Raises:
        InputError: no trace, two equal names, hash ids that stand for different numbers of tokens, or a
            closed loop.
    """
    if not traces or len(traces) != len(sources) or len(set(sources)) != len(sources):
        raise InputError(f"{len(traces)} traces need as many different names, but these are {list(sources)}")
    for source, trace in zip(sources, traces, strict=True):
        if trace.metadata.get("arrivals") == CLOSED:
            raise InputError(
                f"{source} is a closed loop, which has no arrivals yet: find them with traces.closed_loop.close"
            )
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in ("arrival_s", "prompt_tokens", "output_tokens")
    }
    columns["request_id"] = _ids(traces, sources)
    for name in TEXT_COLUMNS:
        columns[name] = _filled(traces, name, lambda n: object_array([None] * n))
    for name, dtype in NUMBER_COLUMNS.items():
        empty = -1 if name in NUMBERED else 0
        columns[name] = _filled(traces, name, lambda n, e=empty, t=dtype: np.full(n, e, t))
    for name in NUMBERED:
        if columns[name] is not None:
            columns[name] = _apart(traces, columns[name])
    metadata: dict[str, Any] = {
        "merged": [{"source": s, **t.metadata} for s, t in zip(sources, traces, strict=True)]
    }
    if any(trace.hash_ids is not None for trace in traces):
        columns["hash_ids"] = _hash_ids(traces)
        metadata |= _block_tokens(traces)
    if all(trace.metadata.get("arrivals") == "absent" for trace in traces):
        metadata["arrivals"] = "absent"
    names = object_array([s for s, t in zip(sources, traces, strict=True) for _ in range(len(t))])
    extra = {**_extra(traces), label: names}
    order = np.argsort(columns["arrival_s"], kind="stable")
    ordered = {name: column[order] for name, column in columns.items() if column is not None}
    return Trace(**ordered, extra={name: column[order] for name, column in extra.items()}, metadata=metadata)


def slice_trace(
    trace: Trace, start_s: float = 0.0, end_s: float = math.inf, first: int | None = None
) -> Trace:
    """The requests that arrive in [start_s, end_s), at most ``first`` of them; the first then arrives at 0.

    Raises:
        InputError: the bounds are no interval, or nothing arrives between them.
    """
    if not 0 <= start_s < end_s:
        raise InputError(f"from {start_s:g} s to {end_s:g} s is no interval; give 0 <= start < end")
    if first is not None and first < 1:
        raise InputError(f"{first} requests were asked for; give at least 1")
    rows = np.flatnonzero((trace.arrival_s >= start_s) & (trace.arrival_s < end_s))[:first]
    if len(rows) == 0:
        raise InputError(
            f"no request arrives from {start_s:g} s to {end_s:g} s; the trace ends at {trace.arrival_s[-1]:g} s"
        )
    part = trace.take(rows)
    moved = part.arrival_s - part.arrival_s[0] if part.arrival_s[0] else part.arrival_s
    return part.replace(
        arrival_s=moved,
        metadata={**trace.metadata, "slice": {"start_s": start_s, "end_s": _json(end_s), "first": first}},
    )


def scale(
    trace: Trace,
    rate: float | None = None,
    time: float | None = None,
    prompt: float = 1.0,
    output: float = 1.0,
) -> Trace:
    """The trace at another speed or with other lengths.

    Args:
        trace: the trace.
        rate: requests per second (over the span) to stretch or squeeze the arrivals to.
        time: or the factor for arrival times: 0.5 doubles the load.
        prompt, output: factors for lengths; results are rounded, and are at least 1.

    Hash ids and shared prefixes name tokens of the prompts as they were, so prompts that have them keep
    their length.

    Raises:
        InputError: a factor out of range, both ways of saying the speed, or a rate of simultaneous arrivals.
    """
    for name, factor in (("rate", rate), ("time", time), ("prompt", prompt), ("output", output)):
        if factor is not None and not (math.isfinite(factor) and factor > 0):
            raise InputError(f"the {name} to scale to is {factor}; it must be above 0 and finite")
    if rate is not None and time is not None:
        raise InputError("a rate and a time factor say the same thing; give one")
    if prompt != 1 and (trace.hash_ids is not None or trace.prefix_tokens is not None):
        raise InputError(
            "prompts with hash ids or shared prefixes cannot be scaled: the ids name their tokens"
        )
    if rate is not None:
        if trace.arrival_s[-1] == 0:
            raise InputError(
                "the requests all arrive at once, so no factor gives a rate; draw arrivals instead"
            )
        time = (len(trace) - 1) / trace.arrival_s[-1] / rate
    changes: dict[str, Any] = {} if time is None else {"arrival_s": trace.arrival_s * time}
    for name, factor in (("prompt_tokens", prompt), ("output_tokens", output)):
        if factor != 1:
            changes[name] = np.maximum(np.rint(getattr(trace, name) * factor), 1)
    settings = {"time": time, "prompt": prompt, "output": output}
    return trace.replace(**changes, metadata={**trace.metadata, "scale": settings})


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ids(traces: Sequence[Trace], sources: Sequence[str]) -> Array:
    listed = [trace.request_id.tolist() for trace in traces]
    flat = [name for names in listed for name in names]
    kinds = {type(name) for name in flat}
    if len(kinds) == 1 and len(set(flat)) == len(flat):
        return np.asarray(flat) if kinds == {int} else object_array(flat)
    return object_array([f"{s}/{name}" for s, names in zip(sources, listed, strict=True) for name in names])


def _filled(traces: Sequence[Trace], name: str, empty: Any) -> Array | None:
    if all(getattr(trace, name) is None for trace in traces):
        return None
    parts = [getattr(trace, name) for trace in traces]
    return np.concatenate(
        [empty(len(t)) if part is None else part for t, part in zip(traces, parts, strict=True)]
    )


def _apart(traces: Sequence[Trace], numbers: Array) -> Array:
    """Numbers of different traces made different; -1 stays, and one trace alone keeps its own."""
    if len(traces) == 1:
        return numbers
    which = np.repeat(np.arange(len(traces)), [len(trace) for trace in traces])
    pairs = np.stack([which, numbers], axis=1)
    _, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return np.where(numbers < 0, numbers, rank[inverse.ravel()])


def _hash_ids(traces: Sequence[Trace]) -> Array:
    rows: list[Array] = []
    start = 0
    for trace in traces:
        if trace.hash_ids is None:
            rows += [np.zeros(0, np.int64)] * len(trace)
            continue
        if len(traces) == 1:
            return trace.hash_ids
        flat = np.concatenate([*trace.hash_ids, np.zeros(0, np.int64)])
        known, numbered = np.unique(flat, return_inverse=True)
        rows += np.split(numbered + start, np.cumsum([len(row) for row in trace.hash_ids]))[: len(trace)]
        start += len(known)
    return object_array(rows)


def _block_tokens(traces: Sequence[Trace]) -> dict[str, int]:
    sizes = {t.metadata.get("hash_block_tokens") for t in traces if t.hash_ids is not None}
    if len(sizes) > 1:
        raise InputError(f"a hash id stands for {sizes} tokens in these traces; they cannot be merged")
    size = sizes.pop()
    return {} if size is None else {"hash_block_tokens": size}


def _extra(traces: Sequence[Trace]) -> dict[str, Array]:
    names = list(dict.fromkeys(name for trace in traces for name in trace.extra))
    extra: dict[str, Array] = {}
    for name in names:
        parts = [t.extra.get(name, object_array([None] * len(t))) for t in traces]
        column = np.concatenate(parts)
        if column.dtype == object and len({type(v) for v in column.tolist()} - {type(None)}) > 1:
            column = object_array([None if v is None else str(v) for v in column.tolist()])
        extra[name] = column
    return extra
