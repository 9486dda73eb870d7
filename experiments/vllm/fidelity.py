"""How far the simulation is from recorded runs of a real vLLM engine: times, and the steps themselves."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from experiments.validate.figures import Figure, render, summaries
from experiments.vllm.calibration import total_error
from experiments.vllm.recording import Composition, Recording
from sim import Result, conformance, simulate
from sim.latency import Latency
from sim.metrics import latencies

RANKED = "mean JCT s"


@dataclass(frozen=True)
class Agreement:
    """How many of the real engine's steps the simulation takes.

    Attributes:
        steps: real steps of all repeats.
        same: share of steps that have a partner of the same composition (`same_compositions`).
        in_place: share of steps that do the same as the simulation's step of the same number.
        replayed: of ``steps``, those that our scheduler decides alike when it is told after which step
            each request came; counting ends at the first that differs in each run.
        level: `speed`, averaged over the repeats.
    """

    steps: int
    same: float
    in_place: float
    replayed: int
    level: float


@dataclass(frozen=True, eq=False)
class Fidelity:
    """One policy on one load.

    Attributes:
        requests, repeats: how many.
        figures: real over the repeats, and simulated.
        at_speed: the same, if each run's own speed (`Agreement.level`) were known beforehand: what is
            left is the simulation's error, without the machine's drift since the calibration.
        agreement: of the steps.
    """

    requests: int
    repeats: int
    figures: list[Figure]
    at_speed: list[Figure]
    agreement: Agreement


def compare(recordings: Sequence[Recording], latency: Latency) -> Fidelity:
    """Simulate what the recordings (repeats of one job) ran, and set both side by side."""
    first = recordings[0]
    result = simulated(first, latency)
    figures, at_speed = [], []
    for recording in recordings:
        real, level = recording.records(), speed(recording, latency)
        figures.append(_figures(real, result.records))
        at_speed.append(_figures(real, simulated(recording, latency, level).records))
    return Fidelity(
        len(first.case["requests"]),
        len(recordings),
        _over_repeats(figures),
        _over_repeats(at_speed),
        agreement(recordings, result, latency),
    )


def speed(recording: Recording, latency: Latency) -> float:
    """Seconds of the real steps / what the latency model gives these same steps."""
    return 1 / (1 + total_error(latency, recording.steps()))


def _over_repeats(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """The figures of several runs as one each; what is equal in all runs is kept once."""
    joined = []
    for same in zip(*runs, strict=True):
        simulated = tuple(dict.fromkeys(figure.simulated[0] for figure in same))
        joined.append(Figure(same[0].name, tuple(figure.real[0] for figure in same), simulated))
    return joined


def simulated(recording: Recording, latency: Latency, level: float = 1.0) -> Result:
    """The same requests on a simulated replica with the engine's limits and order.

    ``level``: every step takes so many times what the latency model says.
    """
    policy: Any = "fcfs" if recording.case["limits"]["policy"] == "fcfs" else _given_priority
    trace = recording.trace()
    # Slower steps are the same run on a slower clock.
    slowed = trace.replace(arrival_s=trace.arrival_s / level)
    result = simulate(slowed, policy, recording.batching(), latency, record_steps=True)
    times = [name for name in result.records.columns if name.endswith("_s")]
    return dataclasses.replace(result, records=result.records.with_columns(pl.col(times) * level))


def _given_priority(request: Any, now_s: float) -> float:
    return float(request.priority)


def _figures(real: pl.DataFrame, ours: pl.DataFrame) -> list[Figure]:
    """TTFT, TPOT, JCT and throughput of one run."""
    times = latencies(real), latencies(ours)
    figures = []
    for name, unit in (("ttft", "s"), ("tpot", "s"), ("jct", "s")):
        figures += summaries(name.upper(), unit, times[0][name], times[1][name])
    rates = []
    for records in (real, ours):
        duration_s = records["completion_s"].to_numpy().max() - records["arrival_s"].to_numpy().min()
        rates.append((float(records["output_tokens"].sum() / duration_s),))
    return [*figures, Figure("output tokens/s", *rates)]


def agreement(recordings: Sequence[Recording], result: Result, latency: Latency) -> Agreement:
    """How much of the real engine's steps the simulation takes, over all repeats."""
    ours = compositions(result)
    real = [recording.compositions() for recording in recordings]
    longer = sum(max(len(steps), len(ours)) for steps in real)
    levels = [speed(recording, latency) for recording in recordings]
    return Agreement(
        steps=sum(map(len, real)),
        same=sum(same_compositions(steps, ours) for steps in real) / longer,
        in_place=sum(a == b for steps in real for a, b in zip(steps, ours, strict=False)) / longer,
        replayed=sum(map(steps_replayed, recordings)),
        level=sum(levels) / len(levels),
    )


def compositions(result: Result) -> list[Composition]:
    """What each simulated step did, in order."""
    assert result.steps is not None
    found: list[Composition] = []
    for log in result.steps[0]:
        step = tuple(sorted([*log.chunks, *((number, 1) for number in log.decoding)]))
        found += [step] * log.steps if step else []
    return found


def same_compositions(real: Sequence[Composition], ours: Sequence[Composition]) -> int:
    """Steps of one that have a partner of the same composition in the other; no step has two.

    A batch decodes for many steps with one composition and never comes back once somebody has joined
    or left, so this counts steps in their order, but is not thrown off by one step more or less.
    """
    return sum((Counter(real) & Counter(ours)).values())


def steps_replayed(recording: Recording) -> int:
    """Steps up to the first that our scheduler decides otherwise, given after which step each request came."""
    case, count = recording.case, 0
    for theirs, ours in itertools.zip_longest(case["steps"], conformance.replay(case), fillvalue=None):
        if theirs is None or ours is None:
            break
        tokens = {int(number): tokens for number, tokens in theirs["tokens"].items()}
        if (tokens, theirs["finished"]) != (ours["tokens"], ours["finished"]):
            break
        count += 1
    return count


def report(recordings: Sequence[Recording], latency: Latency) -> str:
    """The table by policy, the agreement of steps, and whether the order of the policies survives."""
    by_policy: dict[str, list[Recording]] = {}
    for recording in recordings:
        by_policy.setdefault(recording.policy, []).append(recording)
    found = {policy: compare(runs, latency) for policy, runs in by_policy.items()}
    lines = [render({policy: one.figures for policy, one in found.items()}), ""]
    for policy, one in found.items():
        said = one.agreement
        lines.append(
            f"{policy}: {one.requests} requests, {one.repeats} real run{'s' * (one.repeats > 1)}, {said.steps} "
            f"steps; {said.same:.1%} have the composition of a simulated step ({said.in_place:.1%} in the same "
            f"place); told after which step each request came, {said.replayed} of {said.steps} are decided alike; "
            f"the steps took {said.level:.3f} of what the latency model gives them. Were that known, "
            f"{_worst(one.at_speed)}"
        )
    if len(found) > 1:
        lines.append(ranking({policy: one.figures for policy, one in found.items()}))
    return "\n".join(lines)


def _worst(figures: Sequence[Figure]) -> str:
    figure = max(figures, key=lambda figure: abs(figure.error))
    return f"the worst error would be {figure.error:+.1%} ({figure.name})"


def ranking(figures: Mapping[str, Sequence[Figure]]) -> str:
    """The policies by mean JCT in the real engine and in the simulation, and whether the orders agree."""
    jct = {policy: next(f for f in some if f.name == RANKED) for policy, some in figures.items()}
    real = {policy: sum(figure.real) / len(figure.real) for policy, figure in jct.items()}
    ours = {policy: figure.simulated[0] for policy, figure in jct.items()}
    orders = [sorted(values, key=lambda policy: values[policy]) for values in (real, ours)]
    shown = [
        " < ".join(f"{policy} {values[policy]:.3g}" for policy in order)
        for values, order in zip((real, ours), orders, strict=True)
    ]
    verdict = "the same order" if orders[0] == orders[1] else "not the same order"
    return f"{RANKED}: real {shown[0]}; simulated {shown[1]}: {verdict}"
