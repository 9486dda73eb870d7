"""Where every extension starts: ESTP with the setting that validation chooses on the embedded LLM."""

import numpy as np
from torch import Tensor

from predictor.features import fit_trend, pooled_features
from predictor.head import Bins, Floats
from predictor.methods import Data, Forecast
from predictor.pooling import PoolingSettings, PositionTrend
from predictor.train import Split

VALIDATED = PoolingSettings("estp", "detrended", lambda1=1.5, lambda2=0.7)


def trend_of(data: Data, split: Split) -> PositionTrend:
    """The position trend over the training prompts."""
    return fit_trend([data.signals[i] for i in split.train], [data.prompts[i] for i in split.train])


def pooled(data: Data, split: Split, settings: PoolingSettings = VALIDATED) -> Tensor:
    """(n, d) float32 pooled features of all rows."""
    return pooled_features(data.signals, [settings], trend_of(data, split), data.prompts)[0]


def binned(table: Floats, bins: Bins, **settings: object) -> Forecast:
    """(n, K) probabilities as a forecast."""
    return Forecast(
        table @ bins.centres, probabilities=table, edges=np.array(bins.edges), settings=dict(settings)
    )
