"""Quantile regression of the length: levels that cannot cross, fitted by the pinball loss.

The head's first output moves the middle level and each further one stretches the gap between two levels, both
on the logarithm, so lengths are positive and levels in order whatever the weights. With levels evenly spread the
mean pinball loss is half the CRPS up to discretisation (Gneiting and Ranjan 2011), so this is the CRPS head
without bins.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.head import Floats, SoftLabelHead
from predictor.train import Split, TrainSettings, minimise, reproducible

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))


def pinball(quantiles: Tensor, levels: Tensor, lengths: Tensor) -> Tensor:
    """(n,) mean over L levels q of max(q (y - x), (q - 1)(y - x)) for (n, L) quantiles x and (n,) lengths y."""
    miss = lengths[:, None] - quantiles
    return torch.maximum(levels * miss, (levels - 1) * miss).mean(-1)


@dataclass(frozen=True)
class QuantileFit:
    """A trained quantile head. `base`: (L,) logarithms of the training lengths' quantiles, in tokens."""

    head: SoftLabelHead
    base: Tensor
    validation_loss: float

    def quantiles(self, features: Tensor) -> Floats:
        """(n, d) features -> (n, L) tokens at the rising levels `LEVELS`."""
        with torch.no_grad():
            return np.asarray(rising(self.head(features.float()), self.base).double().numpy())


def rising(outputs: Tensor, base: Tensor) -> Tensor:
    """(n, L) outputs -> (n, L) rising lengths; outputs of zero give exp(base), base (L,) rising logarithms.

    The first output moves the middle level, the others stretch the gaps between the logarithms.
    """
    steps = base.diff().clamp(min=0.02) * outputs[:, 1:].clamp(max=5).exp()
    above = torch.nn.functional.pad(steps.cumsum(1), (1, 0))
    middle = len(base) // 2
    return (base[middle] + outputs[:, :1] + above - above[:, middle, None]).exp()


def fit_quantiles(
    features: Tensor, lengths: NDArray[np.int32], split: Split, settings: TrainSettings
) -> QuantileFit:
    """Train on the rows of `split.train`; `features` (n, d), `lengths` (n,) tokens. A seed decides the result."""
    truth = torch.tensor(lengths, dtype=torch.float32)
    levels = torch.tensor(LEVELS)
    base = torch.quantile(truth[torch.tensor(split.train)], levels).log()
    scale = truth.max()
    features = features.float()
    with reproducible(settings.seed):
        head = SoftLabelHead(features.shape[1], len(LEVELS), settings.dropout)
        head.standardise(features[split.train])
        for parameter in head.layers[-1].parameters():  # it starts at the training quantiles
            torch.nn.init.zeros_(parameter)

        def loss_of(rows: Tensor) -> Tensor:
            return pinball(rising(head(features[rows]), base), levels, truth[rows]).mean() / scale

        best = minimise(head, loss_of, split, settings)
    return QuantileFit(head, base, best)
