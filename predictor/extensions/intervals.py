"""Conformal quantiles around any method's forecast."""

from dataclasses import dataclass, replace

import numpy as np

from predictor.conformal import calibrate
from predictor.head import Bins, quantiles
from predictor.methods import Data, Forecast, Method, Predict, Reads, Rows
from predictor.train import Split
from traces.estimates import QUANTILES


@dataclass(frozen=True)
class Conformal:
    """`method` with its quantiles corrected on the validation rows, all together or scenario by scenario.

    The validation rows also chose the method's epoch and settings, so that they are not quite new to it: how much
    of the promised coverage that costs is for the test rows to say.
    """

    name: str
    method: Method
    by_scenario: bool = False

    @property
    def reads(self) -> frozenset[Reads]:
        return self.method.reads

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        plain = self.method.fit(data, split, seed)

        def kind(rows: Rows) -> np.ndarray:
            return data.scenarios[rows] if self.by_scenario else np.full(len(rows), "all", dtype=object)

        rows = split.validation
        at = quantiles_of(plain(rows))
        corrections = {}
        for one in sorted(set(kind(rows))):
            keep = kind(rows) == one
            part = {q: column[keep] for q, column in at.items()}
            corrections[one] = calibrate(part, data.lengths[rows][keep], data.prompt_ids[rows][keep])

        def predict(rows: Rows) -> Forecast:
            forecast = plain(rows)
            at = quantiles_of(forecast)
            known = [q for q in at if all(q in c.shifts for c in corrections.values())]
            moved = {q: np.empty(len(rows)) for q in known}
            for one, correction in corrections.items():
                keep = kind(rows) == one
                part = correction.apply({q: x[keep] for q, x in at.items()})
                for q in known:
                    moved[q][keep] = part[q]
            settings = {"corrections": {k: c.to_json() for k, c in corrections.items()}}
            return replace(forecast, quantiles=moved, settings={**forecast.settings, **settings})

        return predict


def quantiles_of(forecast: Forecast) -> dict[float, np.ndarray]:
    """The forecast's quantiles at the levels of the estimates table, its own or those of its bins."""
    if forecast.quantiles is not None:
        return {q: forecast.quantiles[q] for q in QUANTILES if q in forecast.quantiles}
    assert forecast.probabilities is not None
    assert forecast.edges is not None
    return quantiles(forecast.probabilities, Bins(tuple(forecast.edges.tolist())), tuple(QUANTILES))
