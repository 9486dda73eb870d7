"""Other corrections of the attention received for what the causal mask does to it, under ESTP's weights.

    log         log attention received per visible query, no trend taken off
    rank        the detrended attention's rank within the prompt
    both-ends   detrended by the position from the prompt's end as well as from its start
    no-sink     detrended, the first token left out of the z-score and of the pooling

All are z-scored within the prompt and added to the z-scored entropy.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from predictor.extensions.start import binned, trend_of
from predictor.methods import Data, Predict, Reads
from predictor.pooling import PositionTrend, log_visible, zscore
from predictor.train import Split, TrainSettings, fit

Correction = Literal["log", "rank", "both-ends", "no-sink"]
WEIGHTS = ((1.5, 0.7),)


@dataclass(frozen=True)
class Corrected:
    """ESTP under another correction; validation takes one of `weights` for (attention, entropy)."""

    name: str
    correction: Correction
    weights: tuple[tuple[float, float], ...] = WEIGHTS
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        trend = trend_of(data, split)
        end = end_trend(data, split, trend) if self.correction == "both-ends" else torch.zeros(0)
        done: dict[str, Tensor] = {}
        for text, one in zip(data.prompts, data.signals, strict=True):
            if text not in done:
                s = token_scores(self.correction, one.received, trend, end)
                h = zscore(one.entropy)
                t = torch.stack([a * s + b * h for a, b in self.weights])
                if self.correction == "no-sink":
                    t[:, 0] = -torch.inf
                done[text] = t.softmax(-1) @ one.hidden.float()
        features = torch.stack([done[text] for text in data.prompts], 1)
        settings = replace(self.train, seed=seed)
        fits = [fit(one, data.lengths, split, settings, data.prompt_ids) for one in features]
        k = int(np.argmin([one.validation_loss for one in fits]))
        losses = [one.validation_loss for one in fits]
        return lambda rows: binned(
            fits[k].probabilities(features[k][rows]), fits[k].bins, chosen=self.weights[k], losses=losses
        )


def token_scores(correction: Correction, received: Tensor, trend: PositionTrend, end: Tensor) -> Tensor:
    """(N,) z-scored attention received under a correction; `end`: the trend by position from the end."""
    if correction == "log":
        return zscore(log_visible(received))
    s = trend.apply(received)
    if correction == "rank":
        return zscore(s.argsort().argsort().float())
    if correction == "both-ends":
        return zscore(s - end[: len(s)].flip(0))
    return torch.cat([torch.zeros(1), zscore(s[1:])])


def end_trend(data: Data, split: Split, trend: PositionTrend) -> Tensor:
    """(longest N,) mean detrended attention at each position from the end, over the training prompts.

    Positions that fewer than 32 prompts have take the value of the last that has enough; so do longer prompts.
    """
    once = {data.prompts[i]: trend.apply(data.signals[i].received).flip(0) for i in split.train}
    longest = max(len(one.entropy) for one in data.signals)
    total, count = torch.zeros(longest), torch.zeros(longest)
    for s in once.values():
        total[: len(s)] += s
        count[: len(s)] += 1
    known = int((count >= min(32, len(once))).sum())
    means = total / count.clamp(min=1)
    means[known:] = means[known - 1]
    return means
