"""Last-token states of several layers side by side under the soft-label head."""

from dataclasses import dataclass, field, replace

import torch

from predictor.extensions.start import binned
from predictor.methods import Data, Predict, Reads
from predictor.train import Split, TrainSettings, fit


@dataclass(frozen=True)
class Concat:
    """`layers` are transformers' `hidden_states[k]`: 0 the embeddings, the highest the state after the final norm."""

    name: str
    layers: tuple[int, ...]
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        found = data.layer_features()
        features = torch.cat([found.last_of(k) for k in self.layers], 1)
        fitted = fit(features, data.lengths, split, replace(self.train, seed=seed), data.prompt_ids)
        return lambda rows: binned(
            fitted.probabilities(features[rows]), fitted.bins, layers=list(self.layers)
        )
