"""The soft-label head: pooled prompt features -> a distribution over length bins -> an estimate.

EGTP's head (arXiv 2602.11812), reused by ESTP (arXiv 2608.15592): Linear(d, d/2)-LayerNorm-ReLU-Dropout-
Linear(d/2, K); K bins of equal width between the 1st and the 99th percentile of the training lengths.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from traces.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """K length bins. `edges`: K + 1 rising tokens; a length outside counts to the first or the last bin."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.edges) < 3 or any(b <= a for a, b in zip(self.edges, self.edges[1:], strict=False)):
            raise InputError(f"length bins need at least three rising edges, not {self.edges}")

    @classmethod
    def fit(cls, lengths: NDArray[np.integer], count: int = 20) -> "Bins":
        """Equal widths between the 1st and 99th percentile of (n,) training lengths, in tokens."""
        low, high = np.percentile(lengths, [1, 99])
        if high <= low:
            raise InputError(
                f"nearly all training lengths are {low:g} tokens, so there is nothing to predict; "
                "use more varied prompts"
            )
        return cls(tuple(np.linspace(low, high, count + 1).tolist()))

    @property
    def centres(self) -> Floats:
        edges = np.array(self.edges)
        return np.asarray((edges[:-1] + edges[1:]) / 2)

    def index(self, lengths: NDArray[np.number]) -> NDArray[np.int64]:
        """(n,) bin of each length; a length on an inner edge belongs to the bin above it."""
        return np.asarray(np.searchsorted(self.edges[1:-1], lengths, side="right"), dtype=np.int64)


def soft_labels(index: NDArray[np.int64], count: int) -> Floats:
    """(n, K) targets p_j ~ exp(-|j - i|) around the true bin i; rows sum to one (EGTP, soft labels)."""
    weights = np.exp(-np.abs(np.arange(count)[None] - index[:, None]).astype(np.float64))
    return np.asarray(weights / weights.sum(1, keepdims=True))


def quantiles(probabilities: Floats, bins: Bins, levels: tuple[float, ...]) -> dict[float, Floats]:
    """(n,) tokens at each level, lengths taken as uniform within a bin."""
    edges = np.array(bins.edges)
    below = np.concatenate([np.zeros((len(probabilities), 1)), probabilities.cumsum(1)], 1)
    below /= below[:, -1:]
    return {q: np.array([np.interp(q, row, edges) for row in below]) for q in levels}


class SoftLabelHead(nn.Module):
    """Features (n, d) -> logits (n, K). Features are standardised by the training mean and deviation first."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, features: int, bins: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))
        self.layers = nn.Sequential(
            nn.Linear(features, features // 2),
            nn.LayerNorm(features // 2),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(features // 2, bins),
        )

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers((features - self.mean) / self.deviation)
        return logits

    def standardise(self, features: Tensor) -> None:
        """Take mean and deviation from the (n, d) training features; a constant feature keeps deviation 1."""
        self.mean.copy_(features.mean(0))
        spread = features.std(0, correction=0)
        self.deviation.copy_(torch.where(spread > 0, spread, 1.0))


def loss(
    logits: Tensor, labels: Tensor, lengths: Tensor, centres: Tensor, scale: float, weight: float
) -> Tensor:
    """weight * CE(soft labels) + (1 - weight) * MSE of the expected length, both lengths over `scale` tokens.

    `logits`, `labels`: (n, K); `lengths`: (n,) tokens; `centres`: (K,). EGTP: weight 0.95. The scale is the
    last bin edge, so that the squared error is of the order of one; EGTP does not say which it uses.
    """
    cross_entropy = torch.nn.functional.cross_entropy(logits, labels)
    expected = logits.softmax(-1) @ centres
    squared = torch.nn.functional.mse_loss(expected / scale, lengths / scale)
    return weight * cross_entropy + (1 - weight) * squared
