"""Regression of the logarithm of the length by least squares: lengths have a heavy tail, their logs have not.

exp of the prediction is the median of a log-normal; the mean needs the spread of the residuals too, taken from
the validation rows as they are (Duan's smearing estimate, 1983), not from a normal law.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.head import Floats, SoftLabelHead
from predictor.train import Split, TrainSettings, minimise, reproducible


@dataclass(frozen=True)
class LogLengthFit:
    """A trained head; log length = `centre` + `spread` * output + one of the (m,) `residuals`."""

    head: SoftLabelHead
    centre: float
    spread: float
    residuals: Floats
    validation_loss: float

    def log_length(self, features: Tensor) -> Floats:
        """(n, d) features -> (n,) predicted log length."""
        with torch.no_grad():
            return np.asarray(self.head(features.float())[:, 0].double().numpy() * self.spread + self.centre)

    def quantiles(self, features: Tensor, levels: tuple[float, ...]) -> dict[float, Floats]:
        """(n,) tokens at each level."""
        middle = self.log_length(features)
        return {q: np.exp(middle + np.quantile(self.residuals, q)) for q in levels}

    def mean(self, features: Tensor) -> Floats:
        """(n,) tokens: exp of the prediction times the mean of exp of the residuals."""
        return np.asarray(np.exp(self.log_length(features)) * np.exp(self.residuals).mean())


def fit_log_length(
    features: Tensor, lengths: NDArray[np.int32], split: Split, settings: TrainSettings
) -> LogLengthFit:
    """Train on the rows of `split.train`; `features` (n, d), `lengths` (n,) tokens. A seed decides the result."""
    logs = np.log(lengths.astype(np.float64))
    centre, spread = float(logs[split.train].mean()), float(logs[split.train].std())
    target = torch.tensor((logs - centre) / spread, dtype=torch.float32)
    features = features.float()
    with reproducible(settings.seed):
        head = SoftLabelHead(features.shape[1], 1, settings.dropout)
        head.standardise(features[split.train])

        def loss_of(rows: Tensor) -> Tensor:
            return torch.nn.functional.mse_loss(head(features[rows])[:, 0], target[rows])

        best = minimise(head, loss_of, split, settings)
    plain = LogLengthFit(head, centre, spread, np.zeros(1), best)
    rows = torch.tensor(split.validation)
    return LogLengthFit(head, centre, spread, logs[split.validation] - plain.log_length(features[rows]), best)
