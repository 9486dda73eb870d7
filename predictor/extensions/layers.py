"""Last-token states of several layers side by side under the soft-label head."""

from dataclasses import dataclass, field, replace

import torch

from predictor.extensions.start import binned
from predictor.methods import Data, Predict, Reads
from predictor.train import Split, TrainSettings, fit


@dataclass(frozen=True)
class Concat:
    """`depths`: the layers as shares of the depth, 0 the embeddings and 1 the last hidden state."""

    name: str = "last-two-layers"
    depths: tuple[float, ...] = (2 / 3, 1.0)
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        found = data.layer_features()
        layers = [round(share * (found.count - 1)) for share in self.depths]
        features = torch.cat([found.last_of(k) for k in layers], 1)
        fitted = fit(features, data.lengths, split, replace(self.train, seed=seed), data.prompt_ids)
        return lambda rows: binned(fitted.probabilities(features[rows]), fitted.bins, layers=layers)
