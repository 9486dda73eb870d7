"""The continuous ranked probability score of a distribution over length bins, as a loss for the same head.

CRPS(F, y) = integral of (F(x) - [x >= y])^2 dx (Matheson and Winkler 1976; Gneiting and Raftery 2007, eq. 20),
with lengths uniform within a bin, so that F is linear there. In tokens; for a forecast without spread it is
the absolute error. The soft labels' cross entropy knows which bin is right, this also knows how far the others
are from it.
"""

from torch import Tensor


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
