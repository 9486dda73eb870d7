"""Hidden states of any layer: ridge on the last token's, and the soft-label head on the mean of a layer.

Ridge on the last prompt token is cheap and strong, and papers on length prediction leave it out. The layer and
the penalty are chosen on validation. Neither is taken from a paper; that middle layers tell the length best is
a finding of TRAIL (arXiv 2410.01035, its comparison of layers).
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from predictor.head import Floats
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.train import Fitted, Split, TrainSettings, fit

PENALTIES = (0.01, 0.1, 1.0, 10.0)


@dataclass(frozen=True)
class Ridge:
    """Least squares with a penalty on the state of one layer; the layer and penalty of least validation MAE.

    Minimises |y - b - X w|^2 + penalty n |w|^2 over standardised features X (n, d). Estimates are at least 1.
    """

    name: str = "ridge-last"
    feature: Literal["last", "mean"] = "last"
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        truth = data.lengths.astype(np.float64)
        best, losses = np.inf, []
        for layer in range(data.layer_features().count):
            scaled = _Scaled.of(_states(data, self.feature, layer), split)
            paths = ridge_path(scaled.rows(split.train), truth[split.train], PENALTIES)
            for penalty, (weights, intercept) in zip(PENALTIES, paths, strict=True):
                line = _Line(scaled, weights, intercept)
                loss = float(np.abs(line.at(split.validation) - truth[split.validation]).mean())
                losses.append({"layer": layer, "penalty": penalty, "validation_loss": loss})
                if loss < best:
                    best, chosen, kept = loss, {"layer": layer, "penalty": penalty}, line
        return lambda rows: Forecast(kept.at(rows), settings={**chosen, "candidates": losses})


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Features (n, d) of all rows, standardised by the training rows when they are asked for."""

    features: Tensor
    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, features: Tensor, split: Split) -> "_Scaled":
        train = features[split.train]
        spread = train.std(0, correction=0)
        return cls(features, train.mean(0), torch.where(spread > 0, spread, 1.0))

    def rows(self, rows: Rows) -> Floats:
        return np.asarray(((self.features[rows] - self.mean) / self.spread).double().numpy())


@dataclass(frozen=True, eq=False)
class _Line:
    scaled: _Scaled
    weights: Floats
    intercept: float

    def at(self, rows: Rows) -> Floats:
        return np.asarray(np.maximum(self.scaled.rows(rows) @ self.weights + self.intercept, 1.0))


@dataclass(frozen=True)
class LayerHead:
    """The soft-label head on the mean (or last) state of a layer; the layer of least validation loss.

    `layers`: candidates as shares of the depth, 0 the embeddings and 1 the last hidden state.
    """

    name: str = "mean-layer"
    feature: Literal["last", "mean"] = "mean"
    layers: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        settings = replace(self.train, seed=seed)
        depth = data.layer_features().count - 1
        fitted: dict[int, Fitted] = {}
        for layer in sorted({round(share * depth) for share in self.layers}):
            fitted[layer] = fit(_states(data, self.feature, layer), data.lengths, split, settings)
        chosen = min(fitted, key=lambda layer: fitted[layer].validation_loss)
        losses = [{"layer": k, "validation_loss": one.validation_loss} for k, one in fitted.items()]
        return head_forecast(
            fitted[chosen],
            _states(data, self.feature, chosen),
            {"layer": chosen, "candidates": losses},
        )


def head_forecast(fitted: Fitted, features: Tensor, settings: dict[str, object]) -> Predict:
    """Forecasts of a trained head from the (n, d) features of all rows."""

    def predict(rows: Rows) -> Forecast:
        table = fitted.probabilities(features[rows])
        edges = np.array(fitted.bins.edges)
        return Forecast(table @ fitted.bins.centres, None, table, edges, settings=settings)

    return predict


def ridge_path(design: Floats, truth: Floats, penalties: tuple[float, ...]) -> list[tuple[Floats, float]]:
    """(weights (d,), intercept) for each penalty, from one eigendecomposition. `design` (n, d), `truth` (n,)."""
    centre, mean = design.mean(0), float(truth.mean())
    centred = design - centre
    values, vectors = np.linalg.eigh(centred.T @ centred)
    projected = vectors.T @ (centred.T @ (truth - mean))
    found = []
    for penalty in penalties:
        weights = vectors @ (projected / (np.maximum(values, 0.0) + penalty * len(truth)))
        found.append((weights, mean - float(centre @ weights)))
    return found


def _states(data: Data, feature: str, layer: int) -> Tensor:
    layers = data.layer_features()
    return layers.last_of(layer) if feature == "last" else layers.mean_of(layer)
