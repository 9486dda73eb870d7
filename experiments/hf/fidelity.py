"""How far the simulation of static batches is from real runs: padding, throughput and completion times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.hf.static_runs import Batch, StaticRun
from experiments.validate.figures import Figure, render, worst
from sim import StaticBatching, simulate
from sim.latency import Latency
from traces import Estimates, Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fidelity:
    """One policy on one load.

    Attributes:
        figures: real (a value a repeat) and simulated.
        padding: padded and asked tokens of each real run and, last, of the simulation.
        same_batches: share of the real batches, of all repeats, that the simulation forms too.
        speed: real over simulated busy time, in the mean over the repeats.
        same_decisions: share of the real batches that the simulation forms when it is told how long each
            batch took: what is left of the differences if time is taken out.
    """

    figures: list[Figure]
    padding: list[tuple[int, int]]
    same_batches: float
    speed: float
    same_decisions: float


def compare(
    runs: Sequence[StaticRun], trace: Trace, latency: Latency, estimates: Mapping[str, Estimates]
) -> Fidelity:
    """Simulate what the runs (repeats of one) ran, and set both side by side."""
    first = runs[0]

    def simulated_by(latency: Latency) -> tuple[Batch, ...]:
        batching = StaticBatching(first.batch_size)
        records = simulate(trace, first.policy, batching, latency, estimates=estimates).records
        times = (records[name].to_numpy() for name in ("first_scheduled_s", "first_token_s", "completion_s"))
        return _formed(*times)

    formed = simulated_by(latency)
    told = [simulated_by(_Told(run.batches, trace)) for run in runs]
    names = ("mean JCT s", "p99 JCT s", "tokens/s", "padding ratio")
    real = [_measure(run.batches, trace) for run in runs]
    simulated = _measure(formed, trace)
    known = {frozenset(batch.rows) for batch in formed}
    batches = [batch for run in runs for batch in run.batches]
    return Fidelity(
        figures=[
            Figure(name, tuple(values[i] for values in real), (simulated[i],)) for i, name in enumerate(names)
        ],
        padding=[_padding(run.batches, trace) for run in runs] + [_padding(formed, trace)],
        same_batches=float(np.mean([frozenset(batch.rows) in known for batch in batches])),
        speed=float(np.mean([_busy_s(run.batches) for run in runs]) / _busy_s(formed)),
        same_decisions=float(
            np.mean(
                [
                    frozenset(batch.rows) in {frozenset(one.rows) for one in mine}
                    for run, mine in zip(runs, told, strict=True)
                    for batch in run.batches
                ]
            )
        ),
    )


class _Told:
    """A latency model that gives the batches of a run, in order, the time that they took."""

    def __init__(self, batches: Sequence[Batch], trace: Trace) -> None:
        self._decode_s: list[float] = []
        ends_s = [batch.end_s for batch in batches]
        comes_s = [float(trace.arrival_s[list(batch.rows)].min()) for batch in batches]
        for i, (batch, following) in enumerate(pairwise(batches)):
            if comes_s[i + 1] <= batch.end_s:  # somebody waited: the next batch was formed when it began
                ends_s[i] = following.start_s
        starts_s = [comes_s[0], *(max(end, come) for end, come in zip(ends_s, comes_s[1:], strict=False))]
        self._seconds = [end - start for start, end in zip(starts_s, ends_s, strict=True)][::-1]

    def step_time(self, prefill_tokens: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Half of the next batch's time; the other half follows as its decode."""
        if np.ndim(prefill_tokens) or not self._seconds:
            return np.ones_like(prefill_tokens, np.float64)
        half_s = 0.5 * self._seconds.pop()
        self._decode_s.append(half_s)
        return half_s

    def advance(self, k: Any, decode_requests: Any, context_tokens: Any) -> Any:
        return self._decode_s.pop() if np.ndim(k) == 0 and self._decode_s else np.ones_like(k, np.float64)

    def steps_until(self, seconds: float, decode_requests: int, context_tokens: int) -> int:
        raise AssertionError("padded batches run to their end and never ask")


def report(
    runs: Sequence[StaticRun],
    loads: Mapping[str, Trace],
    latency: Latency,
    estimates: Mapping[str, Estimates],
) -> str:
    """A table a load, whether the policies rank alike, and the worst figure of all."""
    lines: list[str] = []
    everything: dict[str, list[Figure]] = {}
    for load, trace in loads.items():
        mine = [run for run in runs if run.load == load]
        policies = list(dict.fromkeys(run.policy for run in mine))
        found = {
            policy: compare([run for run in mine if run.policy == policy], trace, latency, estimates)
            for policy in policies
        }
        lines += [f"load: {load}", render({policy: one.figures for policy, one in found.items()})]
        lines += [*(_sentence(policy, one) for policy, one in found.items()), ranking(found), ""]
        everything |= {f"{policy} at load {load}": one.figures for policy, one in found.items()}
    group, figure = worst(everything)
    return "\n".join([*lines, f"worst of all: {figure.name} of {group}, {figure.error:+.1%}"])


def ranking(found: Mapping[str, Fidelity]) -> str:
    """Whether mean JCT ranks the policies alike; pairs that differ by no more than the spread are noise."""
    jct = {policy: one.figures[0] for policy, one in found.items()}
    real = sorted(jct, key=lambda policy: float(np.mean(jct[policy].real)))
    simulated = sorted(jct, key=lambda policy: float(np.mean(jct[policy].simulated)))
    if real == simulated:
        return f"order by mean JCT, real and simulated: {' < '.join(real)}"
    turned = [
        (a, b) for i, a in enumerate(real) for b in real[i + 1 :] if simulated.index(a) > simulated.index(b)
    ]
    noise = all(min(jct[b].real) <= max(jct[a].real) for a, b in turned)
    pairs = ", ".join(f"{a} and {b}" for a, b in turned)
    why = "within the noise of the real runs" if noise else "beyond the noise of the real runs"
    return f"order by mean JCT: real {' < '.join(real)}; {pairs} change places in the simulation, {why}"


def _sentence(policy: str, one: Fidelity) -> str:
    *real, simulated = one.padding
    same = "the same, token for token" if set(real) == {simulated} else "not the same"
    shown = ", ".join(f"{padded}/{asked}" for padded, asked in dict.fromkeys(real))
    return (
        f"{policy}: padding {same}: real {shown}, simulated {simulated[0]}/{simulated[1]}; "
        f"{one.same_batches:.0%} of the real batches are formed by the simulation, {one.same_decisions:.0%} when it "
        f"is told how long each batch took; "
        f"the machine took {one.speed - 1:+.1%} of the simulated busy time"
    )


def _formed(scheduled_s: Floats, first_s: Floats, end_s: Floats) -> tuple[Batch, ...]:
    """The batches of a simulated run on one replica: who was scheduled at one time."""
    together = [np.flatnonzero(scheduled_s == start_s) for start_s in np.unique(scheduled_s)]
    return tuple(
        Batch(tuple(rows.tolist()), *(float(times[rows[0]]) for times in (scheduled_s, first_s, end_s)))
        for rows in together
    )


def _measure(batches: Sequence[Batch], trace: Trace) -> tuple[float, float, float, float]:
    """Mean and p99 JCT (s), output tokens a second, padding ratio, as in `sim.metrics`."""
    end_s = np.full(len(trace), np.nan)
    for batch in batches:
        end_s[list(batch.rows)] = batch.end_s
    jct = end_s - trace.arrival_s
    padded, asked = _padding(batches, trace)
    duration_s = float(end_s.max() - trace.arrival_s.min())
    return float(jct.mean()), float(np.quantile(jct, 0.99)), asked / duration_s, padded / asked


def _padding(batches: Sequence[Batch], trace: Trace) -> tuple[int, int]:
    """Tokens of padding, and tokens asked for."""
    outputs = [trace.output_tokens[list(batch.rows)] for batch in batches]
    return (
        sum(int(len(rows) * rows.max() - rows.sum()) for rows in outputs),
        sum(int(rows.sum()) for rows in outputs),
    )


def _busy_s(batches: Sequence[Batch]) -> float:
    return sum(batch.end_s - batch.start_s for batch in batches)
