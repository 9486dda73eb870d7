"""Prediction measures against hand-worked values, and the paired bootstrap against independent normal theory."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from predictor.head import Bins
from predictor.scores import paired_difference, scores


def test_scores_by_hand() -> None:
    truth = np.array([10, 20, 30, 40])
    got = scores(np.array([12.0, 20.0, 45.0, 36.0]), truth, Bins((0.0, 15.0, 35.0, 50.0)))
    assert got["mae"] == pytest.approx((2 + 0 + 15 + 4) / 4)
    assert got["rmse"] == pytest.approx(np.sqrt((4 + 0 + 225 + 16) / 4))
    assert got["tau"] == pytest.approx((5 - 1) / 6)  # five pairs in order, one reversed
    assert got["bin_accuracy"] == pytest.approx(3 / 4)


def test_a_constant_ranks_nothing() -> None:
    assert np.isnan(scores(np.full(3, 7.0), np.array([1, 2, 3]), Bins((0.0, 2.0, 4.0)))["tau"])


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
