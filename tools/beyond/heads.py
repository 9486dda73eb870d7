"""Other heads on ESTP's pooled state, in place of the soft-label one."""

from dataclasses import dataclass, field, replace

from beyond.crps import fit_crps
from beyond.log_length import fit_log_length
from beyond.quantile import LEVELS, fit_quantiles
from predictor.extensions.start import binned, pooled
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.train import Split, TrainSettings


@dataclass(frozen=True)
class Crps:
    """The same head over the same bins, with the CRPS as its loss."""

    name: str
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        features = pooled(data, split)
        fitted = fit_crps(features, data.lengths, split, replace(self.train, seed=seed))
        return lambda rows: binned(fitted.probabilities(features[rows]), fitted.bins)


@dataclass(frozen=True)
class Quantiles:
    """The quantile head; the mean is that of its levels, which are evenly spread."""

    name: str
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        features = pooled(data, split)
        fitted = fit_quantiles(features, data.lengths, split, replace(self.train, seed=seed))

        def predict(rows: Rows) -> Forecast:
            at = fitted.quantiles(features[rows])
            return Forecast(at.mean(1), quantiles=dict(zip(LEVELS, at.T, strict=True)))

        return predict


@dataclass(frozen=True)
class LogLength:
    """Regression of the log length; mean and quantiles from the validation residuals."""

    name: str
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        features = pooled(data, split)
        fitted = fit_log_length(features, data.lengths, split, replace(self.train, seed=seed))

        def predict(rows: Rows) -> Forecast:
            at = features[rows]
            return Forecast(fitted.mean(at), quantiles=fitted.quantiles(at, LEVELS))

        return predict
