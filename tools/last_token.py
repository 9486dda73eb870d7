"""Is it the last token? Where each pooling looks on the embedded LLM, and what is left without the template's tail.

    python tools/last_token.py

First the mean share of the pooling weight that falls on the last token, on the chat template's tail and on the
first token (for the papers' other diagnostics see `estp diagnose`). Then the evaluation again with the tail's
tokens taken out of every pooling; the attention that each other token receives is still counted from all queries.
Finished cells are kept in the user's cache, so a killed run goes on where it stopped.
"""

import dataclasses

import numpy as np
import torch

from experiments.evaluation import render
from predictor.backbone import EMBEDDED, cache_folder, load_backbone
from predictor.baselines.pooled import GRIDS, Pooled
from predictor.cells import Cells, fingerprint_of
from predictor.embedded import read_rollout
from predictor.evaluate import evaluate, random_splits
from predictor.features import PromptSignals, fingerprint, fit_trend, read_signals
from predictor.methods import Data
from predictor.pooling import PoolingSettings, token_weights
from predictor.rows import prompts_of
from predictor.token_kinds import template_ends

SETTINGS = {
    "egtp, paper": PoolingSettings("egtp", "paper"),
    "egtp, zscore 0.7": PoolingSettings("egtp", "zscore", lambda2=0.7),
    "estp, paper": PoolingSettings("estp", "paper"),
    "estp, zscore 0.7 0.3": PoolingSettings("estp", "zscore", 0.7, 0.3),
    "estp, detrended 0.7 0.3": PoolingSettings("estp", "detrended", 0.7, 0.3),
    "estp, detrended 1.5 0.7": PoolingSettings("estp", "detrended", 1.5, 0.7),
}


def without_tail(signals: PromptSignals, tail: int) -> PromptSignals:
    """The prompt less its last `tail` tokens, S rescaled so that S N / (N - j) stays what it was."""
    count = len(signals.entropy)
    position = torch.arange(count - tail)
    rescaled = (
        signals.received[:-tail] * count / (count - position) * (count - tail - position) / (count - tail)
    )
    return dataclasses.replace(
        signals, hidden=signals.hidden[:-tail], entropy=signals.entropy[:-tail], received=rescaled
    )


def main() -> None:
    """Print both tables."""
    trace = read_rollout()
    backbone = load_backbone(EMBEDDED, "cpu", "float32")
    texts = prompts_of(trace)
    signals = read_signals(backbone, texts)
    _, tail = template_ends(backbone)
    trend = fit_trend(signals, texts)
    once = dict(zip(texts, signals, strict=True)).values()
    weights = [token_weights(list(SETTINGS.values()), s.entropy, s.received, trend=trend) for s in once]
    print(f"mean share of the weight, {len(once)} prompts, template tail of {tail} tokens")
    print(f"  {'':26}{'last token':>12}{'tail':>8}{'first':>8}")
    print(f"  {'uniform':26}{np.mean([1 / w.shape[1] for w in weights]):12.3f}"
          f"{np.mean([tail / w.shape[1] for w in weights]):8.3f}")  # fmt: skip
    for row, name in enumerate(SETTINGS):
        shares = np.mean(
            [[float(w[row, -1]), float(w[row, -tail:].sum()), float(w[row, 0])] for w in weights], 0
        )
        print(f"  {name:26}{shares[0]:12.3f}{shares[1]:8.3f}{shares[2]:8.3f}")
    cut = {id(s): without_tail(s, tail) for s in once}
    print("\nwithout the tail\n")
    data = Data(trace, [cut[id(s)] for s in signals])
    methods = [Pooled(name, grid) for name, grid in GRIDS.items()]
    cells = Cells(
        cache_folder() / "cells" / "last_token", fingerprint_of(data, f"{fingerprint(backbone)} no tail")
    )
    print(render(evaluate(data, methods, random_splits(data, range(5)), cells=cells)))


if __name__ == "__main__":
    main()
