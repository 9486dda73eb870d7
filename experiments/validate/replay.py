"""Replay a recorded run in the simulator: fit the engine's overhead on one half, judge on the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from experiments.validate.figures import Figure, summaries
from experiments.validate.recorded import Recording
from sim import ContinuousBatching, simulate
from sim.latency import Profile
from sim.latency.profile import MIXED
from traces.errors import InputError

Floats = NDArray[np.float64]
HALVES = ("early", "alternate")
ROUTER = "join_shortest_queue"
"""vLLM sends a request to the data-parallel replica with the fewest, those that wait counting four times."""

START = (0.0, 1e-3, 3e-3, 8e-3), (0.0, 4e-6, 15e-6, 50e-6)
"""Seconds a step and a token from which the fit starts, each with each."""
TTFT_WEIGHT = 0.1
"""A short TTFT hangs on the moment in a step at which a request came, so its relative error says less."""
SIMPLEXES = 1.0, 0.3
"""Sizes of the simplexes of the search, one after the other, in units."""
UNIT = 1e-3, 5e-6
"""Seconds a step and a token that are one in the search for the best."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A simulated run beside the recorded one; arrays are (n,), in the order of the recording's trace.

    Attributes:
        latency: with the fitted overhead. judged: requests that the fit did not see.
        queued_s, first_token_s, completion_s: as in `Recording`.
        running, waiting: at the recorded ticks (m,).
        preemptions: of all requests. num_blocks: KV blocks.
    """

    latency: Profile
    judged: NDArray[np.bool_]
    queued_s: Floats
    first_token_s: Floats
    completion_s: Floats
    running: Floats
    waiting: Floats
    preemptions: int
    num_blocks: int


def fitted_half(recording: Recording, half: str) -> NDArray[np.bool_]:
    """The requests to fit on: the earlier half, or every other one.

    Raises:
        InputError: there are too few requests, or no such half.
    """
    count = len(recording.trace)
    if half not in HALVES:
        raise InputError(f"half = {half!r} must be one of {', '.join(HALVES)}")
    if count < 4:
        raise InputError(
            f"the recorded run has {count} requests; at least 4 are needed to fit on half of them"
        )
    return np.arange(count) < count // 2 if half == "early" else np.arange(count) % 2 == 0


def replay(recording: Recording, profile: Profile, num_blocks: int | None, half: str | None) -> Replay:
    """Fit the overhead on ``half`` of the requests, if one is named, and replay the whole run.

    Args:
        profile: the layer times; its a, b and mixed are the start of the fit, or are kept if ``half`` is None.
        num_blocks: KV blocks; None: as recorded, else as the profile's model and GPU say.
    """
    batching = _batching(recording, profile, num_blocks)
    fitted = np.zeros(len(recording.trace), bool)
    if half is not None:
        fitted = fitted_half(recording, half)
        profile = fit_overhead(recording, profile, batching, fitted)
    result = simulate(
        recording.trace,
        batching=dataclasses.replace(batching, leap=False),
        latency=profile,
        replicas=recording.replicas,
        router=ROUTER,
        record_steps=True,
    )
    assert result.steps is not None
    records = result.records
    queued_s = records["arrival_s"].to_numpy().copy()
    for number, steps in enumerate(result.steps):
        mine = (records["replica"] == number).to_numpy()
        queued_s[mine] = _heard_s(queued_s[mine], np.array([(s.start_s, s.end_s) for s in steps]))
    scheduled_s, completion_s = (records[name].to_numpy() for name in ("first_scheduled_s", "completion_s"))
    ticks = recording.series.get("t", np.zeros(0))[:, None]
    return Replay(
        latency=profile,
        judged=~fitted,
        queued_s=queued_s,
        first_token_s=records["first_token_s"].to_numpy(),
        completion_s=completion_s,
        running=((scheduled_s <= ticks) & (ticks < completion_s)).sum(axis=1).astype(np.float64),
        waiting=((queued_s <= ticks) & (ticks < scheduled_s)).sum(axis=1).astype(np.float64),
        preemptions=int(result.metrics["preemptions"]),
        num_blocks=batching.num_blocks or 0,
    )


def fit_overhead(
    recording: Recording, profile: Profile, batching: ContinuousBatching, fitted: NDArray[np.bool_]
) -> Profile:
    """The profile with the overhead, and the kind of mixed attention, that fit the given requests best.

    Least squares of the relative errors of JCT, of the time from first to last token and, with less weight,
    of TTFT, which tells a token's cost from a step's where prompts are computed. The whole run is
    simulated each time; only the given requests are compared. From the best point of a coarse grid the
    search goes on by Nelder and Mead's simplex (1965), since a step's and a token's cost make up for each other.
    """
    real = recording.first_token_s[fitted], recording.completion_s[fitted]
    arrival_s = recording.trace.arrival_s[fitted]
    long = real[1] > real[0]

    def cost(candidate: Profile) -> float:
        result = simulate(
            recording.trace, batching=batching, latency=candidate, replicas=recording.replicas, router=ROUTER
        )
        first_s, last_s = (
            result.records[name].to_numpy()[fitted] for name in ("first_token_s", "completion_s")
        )
        jct = (last_s - arrival_s) / (real[1] - arrival_s) - 1
        decode = (last_s - first_s)[long] / (real[1] - real[0])[long] - 1
        first = (first_s - arrival_s) / (real[0] - arrival_s) - 1
        return float((jct**2).sum() + (decode**2).sum() + TTFT_WEIGHT * (first**2).sum())

    best = min(
        (_search(cost, dataclasses.replace(profile, mixed=mixed)) for mixed in MIXED),
        key=lambda found: found[0],
    )
    return best[1]


def _search(cost: Callable[[Profile], float], profile: Profile) -> tuple[float, Profile]:
    from scipy.optimize import minimize

    def at(point: Floats) -> Profile:
        return dataclasses.replace(profile, a=float(point[0]) * UNIT[0], b=float(point[1]) * UNIT[1])

    def priced(point: Floats) -> float:
        return cost(at(point)) if point.min() >= 0 else float("inf")

    starts = [np.array([a / UNIT[0], b / UNIT[1]]) for a in START[0] for b in START[1]]
    point = min(starts, key=priced)
    for size in SIMPLEXES:  # where one gets stuck, a smaller one goes on
        simplex = point + size * np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        options = {"initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-9, "maxfev": 60}
        found = minimize(priced, point, method="Nelder-Mead", options=options)
        point = found.x
    return float(found.fun), at(point)


def metrics(recording: Recording, run: Recording | Replay) -> dict[str, Floats]:
    """Seconds (n,) by name: TTFT from the queue, TPOT (nan for one token) and JCT from the arrival."""
    output = recording.trace.output_tokens
    with np.errstate(invalid="ignore", divide="ignore"):
        tpot = np.where(output > 1, (run.completion_s - run.first_token_s) / (output - 1), np.nan)
    return {
        "TTFT": run.first_token_s - run.queued_s,
        "TPOT": tpot,
        "JCT": run.completion_s - recording.trace.arrival_s,
    }


def figures(recording: Recording, run: Replay, rows: NDArray[np.bool_]) -> list[Figure]:
    """Mean, p50 and p99 of TTFT, TPOT and JCT of these requests."""
    real, simulated = metrics(recording, recording), metrics(recording, run)
    return [
        figure
        for name in real
        for figure in summaries(
            name,
            "ms" if name == "TPOT" else "s",
            real[name][rows] * (1e3 if name == "TPOT" else 1),
            simulated[name][rows] * (1e3 if name == "TPOT" else 1),
        )
    ]


def per_request(recording: Recording, run: Replay) -> pl.DataFrame:
    """One row a request: recorded and simulated seconds, and their relative error, by metric."""
    columns: dict[str, object] = {
        "request_id": recording.trace.request_id,
        "judged": run.judged,
        "arrival_s": recording.trace.arrival_s,
    }
    real, simulated = metrics(recording, recording), metrics(recording, run)
    for name in real:
        key = name.lower()
        columns |= {
            f"real_{key}_s": real[name],
            f"simulated_{key}_s": simulated[name],
            f"{key}_error": simulated[name] / real[name] - 1,
        }
    return pl.DataFrame(columns)


def _batching(recording: Recording, profile: Profile, num_blocks: int | None) -> ContinuousBatching:
    limits = dict(recording.limits)
    if num_blocks is not None:
        limits["num_blocks"] = num_blocks
    elif "num_blocks" not in limits:
        limits["num_blocks"] = profile.kv_blocks(limits.get("block_size", 16))
    return ContinuousBatching(
        **limits,
        async_scheduling=recording.async_scheduling,
        lockstep=recording.expert_parallel_size > recording.tensor_parallel_size,
    )


def _heard_s(arrival_s: Floats, steps: Floats) -> Floats:
    """When the engine hears of each arrival: at once if it is idle, else at the end of its step.

    Args:
        steps: (m, 2) start and end of each step, in order.
    """
    if not len(steps):
        return arrival_s
    at = np.clip(np.searchsorted(steps[:, 0], arrival_s, side="left") - 1, 0, None)
    end_s = steps[at, 1]
    busy = (steps[at, 0] < arrival_s) & (arrival_s < end_s)
    return np.where(busy, end_s, arrival_s)
