"""Batch size 1 with Poisson arrivals is the M/G/1 queue, whose mean waits are known in closed form.

Truth: Pollaczek-Khinchine (first come, first served) and Cobham's formula for non-preemptive
priorities, which for priority by size is Phipps' (Kleinrock, Queueing Systems II, section 3.6). Each
is to lie in the simulation's own 99% interval from independent replications.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from sim import Affine, StaticBatching, simulate
from traces.schema import Trace

SIZES = np.array([1, 4, 10, 40])
SHARE = np.array([0.4, 0.3, 0.2, 0.1])
LATENCY = Affine(a=0.01, b=0.002)
SERVICE_S = 0.01 * SIZES + 0.002 * 5
LOAD = 0.7
RATE = LOAD / (SHARE @ SERVICE_S)
RESIDUAL_S = RATE * (SHARE @ SERVICE_S**2) / 2


def fcfs_wait_s() -> float:
    return RESIDUAL_S / (1 - LOAD)


def shortest_first_waits_s() -> np.ndarray:
    """Mean wait of each size, smallest first."""
    through = np.cumsum(RATE * SHARE * SERVICE_S)
    before = through - RATE * SHARE * SERVICE_S
    return RESIDUAL_S / ((1 - before) * (1 - through))


def replication(policy: str, seed: int, requests: int = 12_000, warm_up: int = 2_000) -> np.ndarray:
    """Mean wait of all and of each size, seconds, after the start from an empty system is forgotten."""
    rng = np.random.default_rng(seed)
    outputs = rng.choice(SIZES, size=requests, p=SHARE)
    trace = Trace(
        np.arange(requests), np.cumsum(rng.exponential(1 / RATE, requests)), np.full(requests, 5), outputs
    )
    records = simulate(trace, policy, StaticBatching(batch_size=1), LATENCY, seed=seed).records
    wait_s = (records["first_scheduled_s"] - records["arrival_s"]).to_numpy()[warm_up:]
    return np.array([wait_s.mean(), *(wait_s[outputs[warm_up:] == size].mean() for size in SIZES)])


def interval(samples: np.ndarray, confidence: float) -> tuple[float, float]:
    half = stats.t.ppf(0.5 + confidence / 2, len(samples) - 1) * stats.sem(samples)
    return float(samples.mean() - half), float(samples.mean() + half)


@pytest.mark.parametrize("policy", ["fcfs", "random", "sjf"])
def test_mean_wait_of_the_single_server_queue(policy):
    samples = np.array([replication(policy, seed) for seed in range(16)])
    if policy == "sjf":
        waits = shortest_first_waits_s()
        truth = np.array([SHARE @ waits, *waits])
    else:
        # The order among waiting requests does not change their mean wait unless it looks at their size.
        truth = np.full(1 + len(SIZES), fcfs_wait_s())
    # Five intervals at once (Bonferroni), so that all hold with 99%.
    intervals = [interval(column, 1 - 0.01 / len(truth)) for column in samples.T]
    assert all(low <= expected <= high for (low, high), expected in zip(intervals, truth, strict=True))
    # Tight enough that the other discipline's mean would be rejected.
    assert intervals[0][1] - intervals[0][0] < 0.5 * (fcfs_wait_s() - SHARE @ shortest_first_waits_s())
