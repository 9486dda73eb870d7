"""Features of several layers: side by side, or mixed with learned weights."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from predictor.extensions.start import binned
from predictor.head import Floats, SoftLabelHead
from predictor.methods import Data, Predict, Reads, Rows
from predictor.train import Split, TrainSettings, fit, minimise, objective


@dataclass(frozen=True)
class Concat:
    """Last-token (and mean) states of some layers side by side under the soft-label head.

    `candidates`: sets of layers, of which validation takes one.
    """

    name: str
    candidates: tuple[tuple[int, ...], ...]
    mean: bool = False
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        settings = replace(self.train, seed=seed)
        tried = []
        for layers in self.candidates:
            features = side_by_side(data, layers, self.mean)
            tried.append((fit(features, data.lengths, split, settings, data.prompt_ids), features, layers))
        fitted, features, layers = min(tried, key=lambda one: one[0].validation_loss)
        losses = {str(one[2]): one[0].validation_loss for one in tried}
        return lambda rows: binned(
            fitted.probabilities(features[rows]), fitted.bins, layers=list(layers), losses=losses
        )


def side_by_side(data: Data, layers: tuple[int, ...], mean: bool) -> Tensor:
    """(n, L d) or (n, 2 L d) float32 features of all rows."""
    found = data.layer_features()
    parts = [found.last_of(k) for k in layers]
    return torch.cat(parts + ([found.mean_of(k) for k in layers] if mean else []), 1)


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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
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
