"""Intervals are those of the t law: published quantiles, worked examples, and the coverage that they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as reference_stats

from experiments.stats import (
    batch_means_interval,
    batch_values,
    paired_interval,
    t_interval,
    t_quantile,
)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8, 30, 121, 1000])
@pytest.mark.parametrize("probability", [0.025, 0.5, 0.6, 0.9, 0.975, 0.9995])
def test_quantiles_are_scipys(degrees: int, probability: float) -> None:
    expected = reference_stats.t.ppf(probability, degrees)
    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_quantiles_of_printed_tables() -> None:
    assert [round(t_quantile(0.975, n), 3) for n in (1, 4, 9, 29)] == [12.706, 2.776, 2.262, 2.045]
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(0.975, 0)


def test_worked_interval() -> None:
    # Mean 3, standard deviation sqrt(2.5), n = 5: 2.776445 * sqrt(2.5 / 5).
    found = t_interval([1, 2, 3, 4, 5])
    assert found.mean == 3
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(0.5), rel=1e-6)
    assert (found.low, found.high) == (3 - found.half_width, 3 + found.half_width)
    assert not found.includes_zero


def test_pairs_cancel_what_they_share() -> None:
    shared = np.array([10.0, 200.0, 3000.0])
    found = paired_interval(shared + np.array([1.0, 2.0, 3.0]), shared)
    assert found.mean == pytest.approx(2)
    assert found.half_width == pytest.approx(t_interval([1, 2, 3]).half_width)
    assert paired_interval([1, 2, 3], [3, 2, 1]).includes_zero
    assert paired_interval([1.0, 2.0], [1.0, 2.0]).includes_zero


def test_one_value_tells_no_noise() -> None:
    assert math.isnan(t_interval([4.0]).half_width)
    assert t_interval([4.0]).includes_zero
    assert math.isnan(t_interval([]).mean)
    assert math.isnan(batch_means_interval(4.0, []).half_width)


def test_rounding_is_no_spread() -> None:
    values = 191.259473088 + np.array([0, 1, -1, 2]) * 3e-14
    assert t_interval(values).half_width == 0
    assert paired_interval(values, values[::-1]).mean == 0
    assert t_interval(191 + np.array([0, 1, -1, 2]) * 1e-6).half_width > 0


def test_batches_are_consecutive_and_use_every_value() -> None:
    values = np.arange(205.0)
    assert batch_values(values, len).tolist() == [21] * 5 + [20] * 5
    assert batch_values(values, np.min).tolist() == [0, 21, 42, 63, 84, 105, 125, 145, 165, 185]
    assert len(batch_values(values[:199], np.mean)) == 0
    # Batches of equal size: their mean is the overall mean, so the interval is a plain t interval.
    found = batch_means_interval(99.5, batch_values(values[:200], np.mean))
    assert found.mean == 99.5
    assert found.half_width == pytest.approx(t_interval(np.arange(10) * 20.0 + 9.5).half_width)
    assert found.method == "batch means"


def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    samples = rng.normal(3.0, 2.0, size=(4000, 5))
    covered = np.mean([found.low <= 3 <= found.high for found in map(t_interval, samples)])
    # Four standard errors of a share of 0.95 over 4,000 trials.
    assert covered == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


def test_replications_cover_where_one_queue_does_not() -> None:
    """M/M/1 at load 0.9, by Lindley's recursion: the mean wait is 0.9 / (1 - 0.9) = 9 service times."""
    rng = np.random.default_rng(1)
    trials, customers, warm = 60, 4000, 2000
    hits = 0
    for _ in range(trials):
        steps = rng.exponential(1.0, (10, customers)) - rng.exponential(1 / 0.9, (10, customers))
        walk = np.cumsum(steps, axis=1)
        waits = walk - np.minimum(np.minimum.accumulate(walk, axis=1), 0)
        means = waits[:, warm:].mean(axis=1)
        found = t_interval(means)
        # Started empty, the first customers wait less: after 2,000 the bias is about 2%.
        hits += found.low <= 9 <= found.high
    # Around 92% are expected; fewer than 80% of 60 has a chance below 1 in 500.
    assert hits / trials >= 0.8
