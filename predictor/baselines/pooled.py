"""Poolings of the last layer's token states under the soft-label head: mean, last, EGTP, semantic, ESTP.

Each pooling has a grid of signal scales and weights; the candidate with the least validation loss is taken.
EGTP and semantic-only have grids of the same kind as ESTP, zero and weak weights included, and
`estp-permuted` is ESTP's grid with S shuffled within each prompt: what ESTP gains over it is what S knows
about *which* tokens matter. The `-literal` methods are the papers' formulas as they stand, nothing tuned.
Sources: EGTP arXiv 2602.11812; ESTP and semantic arXiv 2608.15592, eq. 1-5 (see `predictor.pooling`).

Deviations: scale and weights are chosen from a grid, since neither paper gives them for ESTP, and negative weights
are among them; the head reads standardised features and is trained by `TrainSettings`, not by EGTP's AdamW 2e-5,
batch 16 and at most 10 epochs, which stop far from the minimum on some 2,000 rows; the scale of EGTP's squared
error is the upper edge of the bins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from predictor.features import PromptSignals, fit_trend, pooled_features
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.pooling import Pooling, PoolingSettings, SignalScale
from predictor.rows import prompt_ids, prompts_of
from predictor.train import Fitted, Split, TrainSettings, fit
from traces import Trace

WEIGHTS = (0.3, 0.7, 1.5)
_JOINT = [
    *[(s, h) for s in WEIGHTS[:2] for h in (0.0, *WEIGHTS[:2])],
    (1.5, 0.7),
    (-0.3, 0.3),
    (-0.7, 0.7),
]


def _grid(
    pooling: Pooling, cells: dict[SignalScale, Sequence[tuple[float, float]]], permuted: bool = False
) -> tuple[PoolingSettings, ...]:
    return tuple(
        PoolingSettings(pooling, scale, lambda1=s, lambda2=h, permuted=permuted)
        for scale, weights in cells.items()
        for s, h in weights
    )


_ENTROPY = [(0.0, h) for h in (0.0, *WEIGHTS, -0.7)]
_ATTENTION = [(s, 0.0) for s in (*WEIGHTS, -0.7)]

GRIDS: Mapping[str, tuple[PoolingSettings, ...]] = {
    "mean": (PoolingSettings("mean"),),
    "last": (PoolingSettings("last"),),
    "egtp": _grid("egtp", {"paper": [(0.0, 0.3), (0.0, 1.0)], "zscore": _ENTROPY}),
    "semantic": _grid(
        "semantic",
        {
            "paper": [(1.0, 0.0), (10.0, 0.0)],
            "visible": [(1.0, 0.0)],
            "zscore": _ATTENTION,
            "detrended": _ATTENTION,
        },
    ),
    "estp": _grid(
        "estp",
        {
            "paper": [(1.0, 1.0), (10.0, 1.0)],
            "visible": [(1.0, 1.0)],
            "zscore": [(0.0, 0.0), *_JOINT],
            "detrended": _JOINT,
        },
    ),
    "estp-permuted": _grid("estp", {"zscore": [(0.0, 0.0)], "detrended": _JOINT}, permuted=True),
    "egtp-literal": (PoolingSettings("egtp", "paper"),),
    "estp-literal": (PoolingSettings("estp", "paper"),),
}
"""Candidates by method. The weight of a z-scored signal is 0 (plain mean) to 1.5; negative ones are tried too."""

SHORT_GRIDS: Mapping[str, tuple[PoolingSettings, ...]] = {
    **GRIDS,
    "egtp": _grid("egtp", {"zscore": [(0.0, h) for h in (0.7, 0.0, -0.7)]}),
    "semantic": _grid("semantic", {"detrended": [(0.7, 0.0), (1.5, 0.0)]}),
    "estp": _grid("estp", {"detrended": [(0.7, 0.3), (1.5, 0.7)]}),
    "estp-permuted": _grid("estp", {"zscore": [(0.0, 0.0)], "detrended": [(0.3, 0.3)]}, permuted=True),
}
"""What validation chose on the embedded LLM and its neighbours, for protocols that would train 50 heads many times."""


@dataclass(frozen=True)
class Pooled:
    """One pooling with its candidates; `train.seed` gives way to the seed of the fit."""

    name: str
    candidates: tuple[PoolingSettings, ...]
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        settings = replace(self.train, seed=seed)
        chosen, fitted, losses = best_of(data.signals, data.trace, split, self.candidates, settings)
        texts = data.prompts
        trend = fit_trend([data.signals[i] for i in split.train], [texts[i] for i in split.train])
        tried = [
            {**one.to_json(), "validation_loss": loss}
            for one, loss in zip(self.candidates, losses, strict=True)
        ]

        def predict(rows: Rows) -> Forecast:
            signals = [data.signals[i] for i in rows]
            features = pooled_features(signals, [chosen], trend, [texts[i] for i in rows])[0]
            table = fitted.probabilities(features)
            return Forecast(
                mean=table @ fitted.bins.centres,
                probabilities=table,
                edges=np.array(fitted.bins.edges),
                settings={**chosen.to_json(), "candidates": tried},
            )

        return predict


def best_of(
    signals: Sequence[PromptSignals],
    trace: Trace,
    split: Split,
    candidates: Sequence[PoolingSettings],
    settings: TrainSettings,
) -> tuple[PoolingSettings, Fitted, list[float]]:
    """Train a head for each candidate and keep the one with the least validation loss; all losses besides."""
    texts = prompts_of(trace)
    trend = fit_trend([signals[i] for i in split.train], [texts[i] for i in split.train])
    features = pooled_features(signals, candidates, trend, texts)
    prompts = prompt_ids(trace)
    fitted = [fit(one, trace.output_tokens, split, settings, prompts) for one in features]
    losses = [one.validation_loss for one in fitted]
    k = int(np.argmin(losses))
    return candidates[k], fitted[k], losses
