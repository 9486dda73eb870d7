"""Conformal quantiles around any method's forecast."""

from dataclasses import dataclass, replace

from predictor.conformal import calibrate
from predictor.head import Bins, Floats, quantiles
from predictor.methods import Data, Forecast, Method, Predict, Reads, Rows
from predictor.train import Split
from traces.estimates import QUANTILES


@dataclass(frozen=True)
class Conformal:
    """`method` with its quantiles corrected on the validation rows.

    The validation rows also chose the method's epoch and settings, so that they are not quite new to it: how much
    of the promised coverage that costs is for the test rows to say.
    """

    name: str
    method: Method

    @property
    def reads(self) -> frozenset[Reads]:
        return self.method.reads

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        plain = self.method.fit(data, split, seed)
        rows = split.validation
        correction = calibrate(quantiles_of(plain(rows)), data.lengths[rows], data.prompt_ids[rows])

        def predict(rows: Rows) -> Forecast:
            forecast = plain(rows)
            settings = {**forecast.settings, "conformal": correction.to_json()}
            return replace(forecast, quantiles=correction.apply(quantiles_of(forecast)), settings=settings)

        return predict


def quantiles_of(forecast: Forecast) -> dict[float, Floats]:
    """The forecast's quantiles at the levels of the estimates table, its own or those of its bins."""
    if forecast.quantiles is not None:
        return {q: forecast.quantiles[q] for q in QUANTILES if q in forecast.quantiles}
    assert forecast.probabilities is not None
    assert forecast.edges is not None
    return quantiles(forecast.probabilities, Bins(tuple(forecast.edges.tolist())), tuple(QUANTILES))
