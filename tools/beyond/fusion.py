"""ESTP with learned fusion, with a weight for each attention head, and with a learned query in its place."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from beyond.learned import fit_learned
from predictor.extensions.start import VALIDATED, binned, trend_of
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.pooling import PositionTrend, scale_signals, zscore
from predictor.train import Split, TrainSettings


@dataclass(frozen=True)
class Learned:
    """Token scores learned with the head, from the validated setting on.

    signals: whether attention received and entropy are in the score; heads: (N, heads) attention received by
    head of each row, to give each head a weight of its own; query: whether a query vector is in the score.
    """

    name: str
    signals: bool = True
    query: bool = False
    heads: Sequence[Tensor] | None = field(default=None, repr=False)
    rate: float = 1e-2
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        columns = self._columns(data, split)
        once: dict[int, Tensor] = {}
        states = [once.setdefault(id(s.hidden), s.hidden.float()) for s in data.signals]
        start = list(VALIDATED.weights) if self.signals else []
        start += [0.0] * (columns[0].shape[1] - len(start))
        settings = replace(self.train, seed=seed)
        fitted = fit_learned(
            columns, states, data.lengths, split, settings, start,
            query=self.query, pooling_rate=self.rate, prompts=data.prompt_ids,
        )  # fmt: skip

        def predict(rows: Rows) -> Forecast:
            table = fitted.probabilities([columns[i] for i in rows], [states[i] for i in rows])
            weights = fitted.pooling.weights.tolist()
            return binned(table, fitted.bins, weights=weights, loss=fitted.validation_loss)

        return predict

    def _columns(self, data: Data, split: Split) -> list[Tensor]:
        trend = trend_of(data, split)
        own: list[PositionTrend] = []
        if self.heads is not None:
            rows = list({data.prompts[i]: i for i in split.train}.values())
            count = self.heads[0].shape[1]
            own = [PositionTrend.fit(self.heads[i][:, k] for i in rows) for k in range(count)]
        done: dict[str, Tensor] = {}
        for i, (text, one) in enumerate(zip(data.prompts, data.signals, strict=True)):
            if text in done:
                continue
            parts: list[Tensor] = []
            if self.signals:
                parts += scale_signals(one.entropy, one.received, "detrended", trend, one.window)
            for k, other in enumerate(own):
                assert self.heads is not None
                parts.append(zscore(other.apply(self.heads[i][:, k])))
            done[text] = torch.stack(parts, 1) if parts else torch.zeros(len(one.entropy), 0)
        return [done[text] for text in data.prompts]
