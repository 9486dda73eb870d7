"""Last-token states of several layers side by side under the soft-label head."""

from dataclasses import dataclass, field, replace

from predictor.extensions.start import binned
from predictor.methods import Data, Predict, Reads
from predictor.train import Split, TrainSettings, fit

TWO = (2 / 3, 1.0)
"""The depths of `last-two-layers`: two thirds of the way, and the end."""


@dataclass(frozen=True)
class Concat:
    """`depths`: the layers as shares of the depth, 0 the embeddings and 1 the last hidden state."""

    name: str = "last-two-layers"
    depths: tuple[float, ...] = TWO
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        layers = data.layer_features().at(self.depths)
        features = data.layer_features().side_by_side(layers)
        fitted = fit(features, data.lengths, split, replace(self.train, seed=seed), data.prompt_ids)
        return lambda rows: binned(fitted.probabilities(features[rows]), fitted.bins, layers=layers)
