"""Prediction measures against hand-worked values, brute force over pairs and grids, and normal theory."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from hypothesis import given
from hypothesis import strategies as st

from predictor.head import Bins
from predictor.methods import Forecast
from predictor.scores import (
    LEVELS,
    calibration,
    crps_of_bins,
    crps_of_quantiles,
    kendall_tau,
    losses,
    paired_difference,
    scores,
)

BINS = Bins((0.0, 15.0, 35.0, 50.0))


def test_scores_by_hand() -> None:
    truth = np.array([10, 20, 30, 40])
    got = scores(Forecast(np.array([12.0, 20.0, 45.0, 36.0])), truth, BINS)
    assert got["mae"] == got["crps"] == pytest.approx((2 + 0 + 15 + 4) / 4)
    assert got["rmse"] == pytest.approx(np.sqrt((4 + 0 + 225 + 16) / 4))
    assert got["tau"] == pytest.approx((5 - 1) / 6)  # five pairs in order, one reversed
    assert got["bin_accuracy"] == pytest.approx(3 / 4)
    assert np.isnan([got[k] for k in ("coverage_90", "width_90", "calibration")]).all()


def test_a_constant_ranks_nothing() -> None:
    assert np.isnan(kendall_tau(np.full(3, 7.0), np.array([1, 2, 3])))


def test_a_method_that_ranks_has_an_order_and_no_errors() -> None:
    got = scores(Forecast(rank=np.array([-3.0, 0.1, 9.0])), np.array([5, 6, 7]), BINS)
    assert got["tau"] == 1
    assert np.isnan([v for k, v in got.items() if k != "tau"]).all()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=15))
def test_kendall_tau_is_that_of_all_pairs(rows: list[tuple[int, int]]) -> None:
    score, truth = (np.array(column) for column in zip(*rows, strict=True))
    signs = [
        (np.sign(score[i] - score[j]), np.sign(truth[i] - truth[j]))
        for i in range(len(rows))
        for j in range(i)
    ]
    untied = [np.count_nonzero([pair[k] for pair in signs]) for k in (0, 1)]
    if not all(untied):
        assert np.isnan(kendall_tau(score.astype(float), truth))
        return
    expected = sum(a * b for a, b in signs) / np.sqrt(untied[0] * untied[1])
    assert kendall_tau(score.astype(float), truth) == pytest.approx(expected)


@given(st.lists(st.floats(0.01, 1), min_size=3, max_size=3), st.integers(1, 70))
def test_crps_of_bins_is_the_integral(weights: list[float], truth: int) -> None:
    table = np.array([weights]) / sum(weights)
    edges = np.array(BINS.edges)
    # The integrand on a fine grid, at the middles of its steps.
    step = 0.001
    x = np.arange(-5, 75, step) + step / 2
    below = np.interp(x, edges, np.concatenate([[0], table[0].cumsum()]))
    integral = np.sum(np.square(below - (x >= truth))) * step
    assert crps_of_bins(table, edges, np.array([truth]))[0] == pytest.approx(integral, abs=2e-3)


def test_crps_of_many_quantiles_nears_that_of_the_distribution() -> None:
    table = np.array([[0.2, 0.5, 0.3], [0.7, 0.2, 0.1]])
    levels = (np.arange(4000) + 0.5) / 4000
    edges = np.array(BINS.edges)
    below = [np.concatenate([[0], row.cumsum()]) for row in table]
    at = {float(q): np.array([np.interp(q, row, edges) for row in below]) for q in levels}
    truth = np.array([7, 60])
    np.testing.assert_allclose(crps_of_quantiles(at, truth), crps_of_bins(table, edges, truth), rtol=1e-3)


def test_crps_of_a_point_in_time_is_the_absolute_error() -> None:
    # All mass within a thousandth of a token of 20 and a truth of 26.
    narrow = np.array([0.0, 19.999, 20.001, 50.0])
    assert crps_of_bins(np.array([[0.0, 1.0, 0.0]]), narrow, np.array([26]))[0] == pytest.approx(6, abs=1e-3)
    assert losses(Forecast(np.array([20.0])), np.array([26]))["crps"][0] == 6


def test_a_true_distribution_is_calibrated_and_a_wrong_one_is_not() -> None:
    rng = np.random.default_rng(0)
    edges = np.linspace(0, 400, 9)
    table = np.tile(rng.dirichlet(np.ones(8)), (6000, 1))
    low = edges[rng.choice(8, 6000, p=table[0])]
    truth = np.ceil(low + rng.uniform(0, 50, 6000)).astype(int)
    right = Forecast(np.full(6000, 1.0), probabilities=table, edges=edges)
    # Of 6,000 draws a share deviates by 0.006 on average; rounding up to a whole token adds as much.
    assert calibration(right, truth) < 0.02
    assert scores(right, truth, BINS)["coverage_90"] == pytest.approx(0.9, abs=0.02)
    turned = Forecast(np.full(6000, 1.0), probabilities=table[:, ::-1].copy(), edges=edges)
    assert calibration(turned, truth) > 0.05


def test_intervals_come_from_given_quantiles_first() -> None:
    at = {0.05: np.array([10.0, 10.0]), 0.95: np.array([20.0, 20.0])}
    forecast = Forecast(np.array([15.0, 15.0]), quantiles=at)
    got = scores(forecast, np.array([10, 21]), BINS)
    assert got["coverage_90"] == 0.5
    assert got["width_90"] == 10
    # At or below the 5% quantile lies one of two, below the 95% quantile too.
    assert got["calibration"] == pytest.approx((abs(0.5 - 0.05) + abs(0.5 - 0.95)) / 2)
    assert len(LEVELS) == 19


def test_paired_difference_covers_the_truth_as_often_as_it_says() -> None:
    # Four rows a prompt share the prompt's effect, so the rows are not independent; the true mean is 1.
    rng, covered, runs = np.random.default_rng(0), 0, 200
    prompts = np.repeat(np.arange(60).astype(str), 4).astype(object)
    for _ in range(runs):
        effect = np.repeat(rng.normal(1, 2, 60), 4) + rng.normal(0, 0.1, 240)
        _, low, high = paired_difference(effect, np.zeros(240), prompts, rng, draws=400)
        covered += low <= 1 <= high
    # 0.95 with its binomial spread over 200 runs, three deviations.
    assert 0.90 <= covered / runs <= 1.0


def test_paired_difference_is_the_mean_of_the_differences() -> None:
    first, second = np.array([3.0, 5.0, 1.0]), np.array([1.0, 1.0, 1.0])
    mean, low, high = paired_difference(
        first, second, np.array(["a", "a", "b"], object), np.random.default_rng(0)
    )
    assert mean == pytest.approx(2)
    assert (low, high) == (0.0, 3.0)  # only the one or only the other prompt drawn
