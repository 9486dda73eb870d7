"""CRPS, pinball and log-length heads: closed forms against numeric integrals and loops, gradients against finite
differences, and distributions that are known because the lengths are made up.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from beyond.crps import crps, fit_crps  # noqa: E402
from beyond.log_length import fit_log_length  # noqa: E402
from beyond.quantile import LEVELS, fit_quantiles, pinball, rising  # noqa: E402

from predictor.scores import crps_of_bins  # noqa: E402
from predictor.train import Split, TrainSettings  # noqa: E402


@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=6),
    st.lists(st.floats(0.5, 20), min_size=6, max_size=6),
    st.floats(-30, 150),
)
def test_crps_is_its_integral(weights: list[float], widths: list[float], length: float) -> None:
    edges = np.concatenate([[5.0], 5 + np.cumsum(widths[: len(weights)])])
    table = np.array(weights) / sum(weights)
    got = crps(torch.tensor(table)[None], torch.tensor(edges), torch.tensor([length], dtype=torch.float64))
    x = np.linspace(min(length, edges[0]) - 1, max(length, edges[-1]) + 1, 40_001)
    cdf = np.interp(x, edges, np.concatenate([[0], table.cumsum()]))
    assert float(got) == pytest.approx(np.trapezoid((cdf - (x >= length)) ** 2, x), abs=1e-2)


def test_crps_without_spread_is_the_absolute_error() -> None:
    edges = torch.tensor([0.0, 49.9999, 50.0001, 100.0])
    got = crps(torch.tensor([[0.0, 1.0, 0.0]] * 3), edges, torch.tensor([20.0, 50.0, 90.0]))
    torch.testing.assert_close(got, torch.tensor([30.0, 0.0, 40.0]), atol=1e-3, rtol=0)


def test_gradients_against_finite_differences() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, generator=rng, dtype=torch.float64, requires_grad=True)
    edges = torch.tensor([1.0, 4.0, 9.0, 20.0, 30.0]).double()
    lengths = torch.tensor([2.5, 12.0, 40.0]).double()
    assert torch.autograd.gradcheck(lambda x: crps(x.softmax(-1), edges, lengths), (logits,))
    levels, base = torch.tensor([0.1, 0.3, 0.5, 0.9]).double(), torch.tensor([2.0, 5, 9, 30]).double().log()
    assert torch.autograd.gradcheck(lambda x: pinball(rising(x, base), levels, lengths), (logits,))


@given(st.lists(st.floats(-20, 20), min_size=4, max_size=4))
def test_levels_cannot_cross_and_start_at_the_training_quantiles(outputs: list[float]) -> None:
    base = torch.tensor([1.0, 4.0, 9.0, 30.0]).log()
    found = rising(torch.tensor([outputs]).double(), base.double())
    assert (found.diff() >= 0).all()
    torch.testing.assert_close(rising(torch.zeros(1, 4), base), torch.tensor([[1.0, 4.0, 9.0, 30.0]]))


def test_pinball_by_hand() -> None:
    got = pinball(
        torch.tensor([[10.0, 20.0], [10.0, 20.0]]), torch.tensor([0.1, 0.9]), torch.tensor([14.0, 5.0])
    )
    torch.testing.assert_close(got, torch.tensor([(0.4 + 0.6) / 2, (4.5 + 1.5) / 2]))


def skewed(n: int = 2400) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Lengths 20 exp(x/2) E with E exponential: median 20 exp(x/2) log 2, mean 20 exp(x/2)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    lengths = np.ceil(20 * np.exp(x / 2) * rng.exponential(size=n)).astype(np.int32)
    features = np.concatenate([x[:, None], rng.normal(size=(n, 7))], 1)
    return torch.tensor(features, dtype=torch.float32), lengths, x


SPLIT = Split(np.arange(1200), np.arange(1200, 1800), np.arange(1800, 2400))
SETTINGS = TrainSettings(epochs=20, learning_rate=5e-3, seed=1)


def test_quantile_head_holds_its_levels_and_repeats_for_a_seed() -> None:
    features, lengths, x = skewed()
    found = fit_quantiles(features, lengths, SPLIT, SETTINGS).quantiles(features[SPLIT.test])
    share = (lengths[SPLIT.test][:, None] <= found).mean(0)
    assert np.abs(share - LEVELS).max() < 0.2
    wanted = 20 * np.exp(x[SPLIT.test] / 2) * np.log(2) + 0.5
    middle = found[:, LEVELS.index(0.5)]
    assert np.abs(middle - wanted).mean() < 0.7 * np.abs(np.median(lengths) - wanted).mean()
    again = fit_quantiles(features, lengths, SPLIT, SETTINGS).quantiles(features[SPLIT.test])
    assert (found == again).all()


def test_log_length_head_finds_median_and_mean() -> None:
    features, lengths, x = skewed()
    fitted = fit_log_length(features, lengths, SPLIT, SETTINGS)
    rows = features[SPLIT.test]
    true_mean = 20 * np.exp(x[SPLIT.test] / 2) + 0.5
    assert fitted.mean(rows).mean() == pytest.approx(true_mean.mean(), rel=0.2)
    assert fitted.quantiles(rows, (0.5,))[0.5].mean() == pytest.approx(true_mean.mean() * np.log(2), rel=0.2)


def test_crps_is_that_of_the_scores() -> None:
    rng = np.random.default_rng(3)
    table, edges = rng.dirichlet(np.ones(6), 40), np.array([3.0, 9, 20, 40, 41, 80, 200])
    lengths = rng.integers(1, 260, 40)
    got = crps(torch.tensor(table), torch.tensor(edges), torch.tensor(lengths))
    np.testing.assert_allclose(got, crps_of_bins(table, edges, lengths))


def test_crps_head_learns_the_mean_and_repeats_for_a_seed() -> None:
    features, lengths, x = skewed()
    fitted = fit_crps(features, lengths, SPLIT, SETTINGS)
    found = fitted.probabilities(features[SPLIT.test])
    wanted = 20 * np.exp(x[SPLIT.test] / 2) + 0.5
    assert np.corrcoef(found @ fitted.bins.centres, wanted)[0, 1] > 0.8
    assert (found == fit_crps(features, lengths, SPLIT, SETTINGS).probabilities(features[SPLIT.test])).all()
