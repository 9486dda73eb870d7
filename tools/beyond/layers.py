"""Further ways to use several layers: the mean beside the last token, and a learned mix of all layers."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from predictor.extensions.start import binned
from predictor.head import Floats, SoftLabelHead
from predictor.methods import Data, Predict, Reads, Rows
from predictor.train import Split, TrainSettings, fit, minimise, objective, reproducible


@dataclass(frozen=True)
class LastAndMean:
    """The last hidden state of the last token and its mean over the prompt, side by side under the soft-label head."""

    name: str = "last-and-mean"
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        found = data.layer_features()
        features = torch.cat([found.last_of(found.count - 1), found.mean_of(found.count - 1)], 1)
        fitted = fit(features, data.lengths, split, replace(self.train, seed=seed))
        return lambda rows: binned(fitted.probabilities(features[rows]), fitted.bins)


class LayerMix(nn.Module):
    """(n, L, d) states, standardised layer by layer -> (n, d): their mean under softmax weights (Peters et al.

    2018, eq. 1, without its scale, which the head's first layer has). Starts at equal weights.
    """

    centre: Tensor
    deviation: Tensor

    def __init__(self, layers: int, features: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(layers))
        self.register_buffer("centre", torch.zeros(layers, features))
        self.register_buffer("deviation", torch.ones(layers, features))

    def forward(self, states: Tensor) -> Tensor:
        return torch.einsum("nld,l->nd", (states - self.centre) / self.deviation, self.logits.softmax(0))


@dataclass(frozen=True)
class Mix:
    """A learned mix of every layer's last-token state under the soft-label head."""

    name: str
    rate: float = 0.03
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        found = data.layer_features()
        settings = replace(self.train, seed=seed)
        bins, split, loss_of = objective(data.lengths, split, settings, data.prompt_ids)
        states, prompt_of = found.last.float(), torch.tensor(found.prompt_of)
        training = states[prompt_of[torch.tensor(split.train)]]
        with reproducible(seed):
            head = SoftLabelHead(states.shape[2], settings.bins, settings.dropout)
            mix = LayerMix(states.shape[1], states.shape[2])
            mix.centre.copy_(training.mean(0))
            mix.deviation.copy_(training.std(0, correction=0).clamp(min=1e-6))
            with torch.no_grad():
                head.standardise(mix(training))
            both = nn.ModuleList([mix, head])
            groups: list[dict[str, Any]] = [
                {"params": head.parameters()},
                {"params": mix.parameters(), "lr": self.rate, "weight_decay": 0.0},
            ]
            minimise(
                both, lambda rows: loss_of(head(mix(states[prompt_of[rows]])), rows), split, settings, groups
            )
        weights = mix.logits.detach().softmax(0).tolist()

        def probabilities(rows: Rows) -> Floats:
            with torch.no_grad():
                return np.asarray(head(mix(states[prompt_of[rows]])).double().softmax(-1).numpy())

        return lambda rows: binned(probabilities(rows), bins, layer_weights=weights)
