"""Static batching with a real LLM and a real clock: requests arrive, batches are formed, run, and timed.

The loop is written apart from the simulator and shares no code with it. A request ends with its recorded
number of tokens, as vLLM's benchmarks let it; the padded batch goes on until its longest is done. So a run
takes the recorded lengths at their word, and everything else happens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.hf.engine import Engine
from traces import Estimates, Trace
from traces.errors import InputError
from traces.files import atomic_path

SCHEMA = "estp-static-run-1"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """A batch that ran: rows of the trace, and seconds after the first arrival."""

    rows: tuple[int, ...]
    start_s: float
    first_token_s: float
    end_s: float


@dataclass(frozen=True)
class StaticRun:
    """One run: a policy on a load.

    Attributes:
        load, policy, repeat: which.
        batch_size: most requests in a batch.
        reference_s: seconds of the engine's reference kernel before and after.
        batches: in order.
    """

    load: str
    policy: str
    repeat: int
    batch_size: int
    reference_s: tuple[float, float]
    batches: tuple[Batch, ...]

    def times(self, count: int) -> tuple[Floats, Floats]:
        """First token and completion (count,) by row, in seconds; nan for a request that never ran."""
        first_s, end_s = np.full(count, np.nan), np.full(count, np.nan)
        for batch in self.batches:
            first_s[list(batch.rows)], end_s[list(batch.rows)] = batch.first_token_s, batch.end_s
        return first_s, end_s


def ranks(trace: Trace, policy: str, estimates: Mapping[str, Estimates]) -> Floats:
    """What each request is ordered by (n,), smallest first; ties go by arrival and id.

    Raises:
        InputError: an unknown policy, or one whose estimates are not there.
    """
    if policy == "fcfs":
        return trace.arrival_s.astype(np.float64)
    if policy == "sjf":
        return trace.output_tokens.astype(np.float64)
    if policy not in estimates:
        raise InputError(
            f"policy {policy!r} is neither fcfs nor sjf nor one with estimates: {', '.join(estimates) or 'none'}"
        )
    return estimates[policy].take(estimates[policy].align(trace)).mean


def run_static(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    trace: Trace,
    rank: Floats,
    batch_size: int,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[Batch, ...]:
    """Serve the trace in real time, and say what ran when.

    Args:
        prompts: token ids, by row.
        rank: see `ranks`.
    """
    ids = trace.request_id
    position = np.lexsort((ids if ids.dtype != object else ids.astype(str), trace.arrival_s, rank))
    place = np.empty(len(trace), np.int64)
    place[position] = np.arange(len(trace))
    coming, waiting = list(range(len(trace))), list[int]()
    batches: list[Batch] = []
    began_s = clock()
    while coming or waiting:
        now_s = clock() - began_s
        while coming and trace.arrival_s[coming[0]] <= now_s:
            waiting.append(coming.pop(0))
        if not waiting:
            sleep(float(trace.arrival_s[coming[0]]) - now_s)
            continue
        waiting.sort(key=lambda row: place[row])
        batch, waiting = waiting[:batch_size], waiting[batch_size:]
        start_s = clock() - began_s
        times = engine.run([prompts[row] for row in batch], int(trace.output_tokens[batch].max()))
        end_s = clock() - began_s
        batches.append(Batch(tuple(batch), start_s, start_s + times.prefill_s, end_s))
    return tuple(batches)


def write_run(run: StaticRun, facts: dict[str, Any], path: Path) -> None:
    """Write a run and what it ran on (engine, requests)."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({"schema": SCHEMA, "facts": facts, **asdict(run)}) + "\n")


def read_run(path: Path, facts: dict[str, Any] | None = None) -> StaticRun:
    """Read a run.

    Args:
        facts: what it must have run on; None: anything.

    Raises:
        InputError: the file is not such a run, or ran on something else.
    """
    try:
        content = json.loads(path.read_text())
        if content.pop("schema") != SCHEMA:
            raise InputError(f"recorded run: {path} is not of the schema {SCHEMA}")
        own = content.pop("facts")
        batches = tuple(Batch(tuple(batch.pop("rows")), **batch) for batch in content.pop("batches"))
        run = StaticRun(batches=batches, reference_s=tuple(content.pop("reference_s")), **content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"recorded run: {path} cannot be read: {error!r}") from error
    if facts is not None and own != json.loads(json.dumps(facts)):
        changed = ", ".join(key for key in facts if own.get(key) != json.loads(json.dumps(facts[key])))
        raise InputError(
            f"recorded run: {path} was made with another setting of {changed}: name another folder with --records"
        )
    return run
