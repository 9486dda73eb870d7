"""A run as a timeline: trace-event JSON, gzipped, that ui.perfetto.dev and chrome://tracing open.

One process a replica. In it, every request is a track with slices ``queued``, ``prefill``, ``decode`` and
``preempted``; counters show the batch, the waiting queue and the KV blocks. Format: "Trace Event Format"
by the Chromium project, JSON object form: complete events ("X"), counters ("C") and metadata ("M"), with
times in microseconds.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sim.server import StepLog
from sim.simulate import Result
from traces.errors import InputError

BATCH, QUEUE, BLOCKS = "batch (requests)", "queue (requests)", "KV blocks"

JsonEvent = dict[str, Any]


def write_timeline(result: Result, path: str | Path) -> Path:
    """Write the timeline of a run of continuous batching; gzipped if the name ends in ``.gz``.

    Raises:
        InputError: the run kept no step log, or its batching keeps none.
    """
    path = Path(path)
    data = json.dumps({"displayTimeUnit": "ms", "traceEvents": list(events(result))}, separators=(",", ":"))
    raw = data.encode()
    partial = path.with_name(path.name + ".part")
    # No time in the gzip header: the same run gives the same bytes.
    partial.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)
    os.replace(partial, path)
    return path


def events(result: Result) -> Iterator[JsonEvent]:
    """The trace events of a run, replica by replica.

    Raises:
        InputError: see `write_timeline`.
    """
    if result.steps is None:
        raise InputError("this run kept no step log: run it with record_steps=True for a timeline")
    other = result.settings["batching"]["name"] != "continuous"
    if other or any(not isinstance(step, StepLog) for steps in result.steps for step in steps):
        raise InputError(
            "a timeline needs continuous batching: other batchings keep no step log of that kind"
        )
    records = result.records.sort("arrival_s", "request_id").select(
        "request_id", "arrival_s", "prompt_tokens", "output_tokens"
    )
    facts = dict(enumerate(records.iter_rows(named=True)))
    for replica, steps in enumerate(result.steps):
        yield {"ph": "M", "pid": replica, "name": "process_name", "args": {"name": f"replica {replica}"}}
        yield from _counters(replica, steps)
        yield from _tracks(replica, steps, facts)


def _counters(replica: int, steps: Iterable[StepLog]) -> Iterator[JsonEvent]:
    end_s = 0.0
    for step in steps:
        if step.start_s > end_s:  # idle since the last step
            yield from _counts(replica, end_s, 0, 0, None)
        batch = len(step.decoding) + len(step.chunks)
        yield from _counts(replica, step.start_s, batch, step.waiting, step.kv_blocks)
        end_s = step.end_s
    yield from _counts(replica, end_s, 0, 0, 0)


def _counts(replica: int, time_s: float, batch: int, queue: int, blocks: int | None) -> Iterator[JsonEvent]:
    values = {BATCH: batch, QUEUE: queue} | ({} if blocks is None else {BLOCKS: blocks})
    for name, value in values.items():
        yield {"ph": "C", "pid": replica, "ts": _us(time_s), "name": name, "args": {"value": value}}


def _tracks(replica: int, steps: Iterable[StepLog], facts: dict[int, JsonEvent]) -> Iterator[JsonEvent]:
    """A slice lasts from one change of what a request does to the next."""
    doing: dict[int, tuple[str, float]] = {}

    def turn(number: int, what: str | None, time_s: float) -> Iterator[JsonEvent]:
        if number not in doing:
            fact = facts[number]
            name = f"request {fact['request_id']}"
            yield {"ph": "M", "pid": replica, "tid": number, "name": "thread_name", "args": {"name": name}}
            doing[number] = ("queued", fact["arrival_s"])
        before, since_s = doing[number]
        if what == before:
            return
        if time_s > since_s:
            fact = facts[number]
            yield {
                "ph": "X",
                "pid": replica,
                "tid": number,
                "ts": _us(since_s),
                "dur": _us(time_s) - _us(since_s),
                "name": before,
                "args": {"prompt_tokens": fact["prompt_tokens"], "output_tokens": fact["output_tokens"]},
            }
        if what is None:
            del doing[number]
        else:
            doing[number] = (what, time_s)

    for step in steps:
        for number in step.preempted:
            yield from turn(number, "preempted", step.start_s)
        for number, _ in step.chunks:
            yield from turn(number, "prefill", step.start_s)
        for number in step.decoding:
            if number not in doing or doing[number][0] != "decode":
                yield from turn(number, "decode", step.start_s)
        for number in step.finished:
            yield from turn(number, None, step.end_s)


def _us(time_s: float) -> float:
    return round(time_s * 1e6, 3)
