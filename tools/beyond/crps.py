"""The continuous ranked probability score of a distribution over length bins, as a loss for the same head.

CRPS(F, y) = integral of (F(x) - [x >= y])^2 dx (Matheson and Winkler 1976; Gneiting and Raftery 2007, eq. 20),
with lengths uniform within a bin, so that F is linear there. In tokens; for a forecast without spread it is
the absolute error. The soft labels' cross entropy knows which bin is right, this also knows how far the others
are from it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.head import Bins, SoftLabelHead
from predictor.train import Fitted, Split, TrainSettings, minimise, reproducible


def crps(probabilities: Tensor, edges: Tensor, lengths: Tensor) -> Tensor:
    """(n,) CRPS in tokens of (n, K) bin probabilities, (K + 1,) rising edges and (n,) lengths.

    A length outside the edges adds its distance to them, as F is 0 below the first and 1 above the last.
    """
    above = probabilities.cumsum(-1)
    below = above - probabilities
    width = edges.diff()
    # Each bin is cut at y: left of the cut the integrand is F^2, right of it (1 - F)^2.
    share = ((lengths[:, None] - edges[:-1]) / width).clamp(0, 1)
    at_cut = below + probabilities * share
    left = share * _mean_square(below, at_cut)
    right = (1 - share) * _mean_square(1 - at_cut, 1 - above)
    outside = (edges[0] - lengths).clamp(min=0) + (lengths - edges[-1]).clamp(min=0)
    return (width * (left + right)).sum(-1) + outside


def _mean_square(first: Tensor, last: Tensor) -> Tensor:
    """Mean of x^2 where x goes from `first` to `last` in a straight line."""
    return (first.square() + first * last + last.square()) / 3


def fit_crps(features: Tensor, lengths: NDArray[np.int32], split: Split, settings: TrainSettings) -> Fitted:
    """Train on the rows of `split.train`; `features` (n, d), `lengths` (n,) tokens. A seed decides the result."""
    bins = Bins.fit(lengths[split.train], settings.bins)
    edges, truth = torch.tensor(bins.edges), torch.tensor(lengths, dtype=torch.float32)
    features = features.float()
    with reproducible(settings.seed):
        head = SoftLabelHead(features.shape[1], settings.bins, settings.dropout)
        head.standardise(features[split.train])

        def loss_of(rows: Tensor) -> Tensor:
            return crps(head(features[rows]).softmax(-1), edges, truth[rows]).mean() / bins.edges[-1]

        best = minimise(head, loss_of, split, settings)
    return Fitted(head, bins, best)
