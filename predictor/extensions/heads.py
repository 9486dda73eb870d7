"""Other heads on ESTP's pooled state, in place of the soft-label one."""

from dataclasses import dataclass, field, replace

from predictor.extensions.start import VALIDATED, binned, pooled
from predictor.heads.log_length import fit_log_length
from predictor.heads.quantile import LEVELS, fit_quantiles
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.pooling import PoolingSettings
from predictor.train import Split, TrainSettings, fit


@dataclass(frozen=True)
class Binned:
    """A fixed pooling under the soft-label head, or under the same head with the CRPS as its loss."""

    name: str
    pooling: PoolingSettings = VALIDATED
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        features = pooled(data, split, self.pooling)
        fitted = fit(features, data.lengths, split, replace(self.train, seed=seed), data.prompt_ids)
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
