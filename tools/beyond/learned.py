"""Pooling whose token weights are learned together with the head, started from a setting that is known to work.

    T_i = sum_k w_k F_ik + q . x_i,    e = softmax(T),    h = sum_i e_i h_i

F holds the token signals as `detrended` scales them: attention received, entropy and, where asked for, the
attention received of each head. w starts at (lambda1, lambda2) / alpha and 0 for the heads, so training starts at
ESTP; lambda1, lambda2 and alpha are not told apart by the data, only the two quotients are. The query q, on token
states x standardised over the training tokens, starts at zero; with it the pooling is no longer ESTP but an
attention of its own (an extension, not in the paper).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from predictor.head import Bins, Floats, SoftLabelHead
from predictor.train import Split, TrainSettings, minimise, objective, reproducible


class LearnedPooling(nn.Module):
    """(N, m) signals and (N, d) states of each prompt -> (B, d) pooled states."""

    centre: Tensor
    deviation: Tensor

    def __init__(self, start: Sequence[float], features: int, query: bool) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.tensor(start, dtype=torch.float32))
        self.query = nn.Parameter(torch.zeros(features)) if query else None
        self.register_buffer("centre", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))

    def standardise(self, states: Sequence[Tensor]) -> None:
        """Take the query's mean and deviation from the training prompts' token states."""
        tokens = torch.cat(list(states)).double()
        self.centre.copy_(tokens.mean(0))
        self.deviation.copy_(tokens.std(0, correction=0).clamp(min=1e-6))

    def scores(self, signals: Tensor, states: Tensor) -> Tensor:
        """(N, m), (N, d) -> (N,) T before the softmax."""
        total = signals @ self.weights
        if self.query is not None:
            slope = self.query / self.deviation
            total = total + states @ slope - self.centre @ slope
        return total

    def forward(self, signals: Sequence[Tensor], states: Sequence[Tensor]) -> Tensor:
        return torch.stack([self.scores(f, x).softmax(0) @ x for f, x in zip(signals, states, strict=True)])


@dataclass(frozen=True)
class LearnedFit:
    """A trained pooling with its head."""

    pooling: LearnedPooling
    head: SoftLabelHead
    bins: Bins
    validation_loss: float

    def probabilities(self, signals: Sequence[Tensor], states: Sequence[Tensor]) -> Floats:
        """(n, K) float64 bin probabilities of n prompts."""
        with torch.no_grad():
            return np.asarray(self.head(self.pooling(signals, states)).double().softmax(-1).numpy())


def fit_learned(
    signals: Sequence[Tensor],
    states: Sequence[Tensor],
    lengths: NDArray[np.int32],
    split: Split,
    settings: TrainSettings,
    start: Sequence[float],
    *,
    query: bool = False,
    pooling_rate: float = 1e-2,
    prompts: NDArray[np.object_] | None = None,
) -> LearnedFit:
    """Train pooling and head together on the rows of `split.train`.

    `signals`: (N, m) and `states`: (N, d) float32 of each row, in order; `start`: the m first weights;
    `pooling_rate`: the learning rate of the pooling's own parameters, which get no weight decay.
    """
    bins, split, loss_of = objective(lengths, split, settings, prompts)
    width = states[0].shape[1]
    with reproducible(settings.seed):
        head = SoftLabelHead(width, settings.bins, settings.dropout)
        pooling = LearnedPooling(start, width, query)
        if query:
            pooling.standardise([states[i] for i in split.train])
        with torch.no_grad():
            head.standardise(pooling([signals[i] for i in split.train], [states[i] for i in split.train]))
        both = nn.ModuleList([pooling, head])

        def loss_of_rows(rows: Tensor) -> Tensor:
            chosen = rows.tolist()
            pooled = pooling([signals[i] for i in chosen], [states[i] for i in chosen])
            return loss_of(head(pooled), rows)

        groups: list[dict[str, Any]] = [
            {"params": head.parameters()},
            {"params": pooling.parameters(), "lr": pooling_rate, "weight_decay": 0.0},
        ]
        best = minimise(both, loss_of_rows, split, settings, groups)
    return LearnedFit(pooling, head, bins, best)
