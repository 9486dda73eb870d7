"""The head's bins, labels, loss and quantiles are those of EGTP (arXiv 2602.11812), worked by hand here."""

from __future__ import annotations

import numpy as np
import pytest

from traces.errors import InputError

torch = pytest.importorskip("torch")

from predictor.head import Bins, SoftLabelHead, loss, quantiles, soft_labels  # noqa: E402


def test_bins_have_equal_width_between_the_percentiles() -> None:
    lengths = np.arange(1, 102)  # its 1st and 99th percentiles are 2 and 100
    bins = Bins.fit(lengths, 4)
    assert bins.edges == pytest.approx((2, 26.5, 51, 75.5, 100))
    assert bins.centres == pytest.approx([14.25, 38.75, 63.25, 87.75])


def test_lengths_outside_belong_to_the_outer_bins_and_an_edge_to_the_bin_above() -> None:
    bins = Bins((10.0, 20.0, 30.0, 40.0))
    assert bins.index(np.array([1, 10, 19, 20, 39, 40, 999])).tolist() == [0, 0, 0, 1, 2, 2, 2]


def test_lengths_all_alike_are_refused() -> None:
    with pytest.raises(InputError, match="nothing to predict"):
        Bins.fit(np.full(50, 7))


@pytest.mark.parametrize("edges", [(1.0, 2.0), (1.0, 3.0, 2.0)])
def test_bad_edges_are_refused(edges: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="rising edges"):
        Bins(edges)


def test_soft_labels_by_hand() -> None:
    e = np.exp(-1.0)
    assert soft_labels(np.array([0, 1]), 3) == pytest.approx(
        np.array([[1, e, e * e] / (1 + e + e * e), [e, 1, e] / (1 + 2 * e)])
    )


def test_loss_by_hand() -> None:
    # Even logits over centres 10 and 30: cross entropy log 2, expected length 20; true length 26, scale 40.
    got = loss(
        torch.zeros(1, 2),
        torch.tensor([[0.25, 0.75]]),
        torch.tensor([26.0]),
        torch.tensor([10.0, 30.0]),
        40.0,
        0.95,
    )
    assert float(got) == pytest.approx(0.95 * np.log(2) + 0.05 * (6 / 40) ** 2, rel=1e-6)


def test_gradient_of_the_loss_against_finite_differences() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor(soft_labels(np.array([0, 2, 4]), 5))
    lengths, centres = torch.tensor([4.0, 20.0, 44.0]).double(), torch.arange(5, 50, 10).double()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, lengths, centres, 50.0, 0.95), (logits,))


def test_quantiles_by_hand() -> None:
    bins = Bins((0.0, 10.0, 20.0))
    found = quantiles(np.array([[0.5, 0.5], [0.2, 0.8]]), bins, (0.1, 0.5))
    assert found[0.1] == pytest.approx([2.0, 5.0])
    assert found[0.5] == pytest.approx([10.0, 10 + 10 * 0.3 / 0.8])


def test_a_constant_feature_is_left_unscaled() -> None:
    head = SoftLabelHead(4, 3)
    features = torch.tensor([[1.0, 5.0, 2.0, 0.0], [3.0, 5.0, 4.0, 1.0]])
    head.standardise(features)
    assert head.mean.tolist() == [2, 5, 3, 0.5]
    assert head.deviation.tolist() == [1, 1, 1, 0.5]
