"""Estimates that need no LLM: a constant, the scenario, the prompt's length. What any predictor has to beat."""

from dataclasses import dataclass

import numpy as np

from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.train import Split


@dataclass(frozen=True)
class Constant:
    """The training median: the constant that minimises the mean absolute error in training."""

    name: str = "constant"
    reads: frozenset[Reads] = frozenset()

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        value = float(np.median(data.lengths[split.train]))
        return lambda rows: Forecast(np.full(len(rows), value))


@dataclass(frozen=True)
class ScenarioMedian:
    """The training median of the row's scenario; that of all rows for a scenario not seen in training."""

    name: str = "scenario"
    reads: frozenset[Reads] = frozenset()

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        seen, lengths = data.scenarios[split.train], data.lengths[split.train]
        medians = {s: float(np.median(lengths[seen == s])) for s in sorted(set(seen))}
        overall = float(np.median(lengths))

        def predict(rows: Rows) -> Forecast:
            return Forecast(np.array([medians.get(s, overall) for s in data.scenarios[rows]]))

        return predict


@dataclass(frozen=True)
class PromptLength:
    """Least squares of the output tokens on the prompt tokens and their logarithm."""

    name: str = "prompt-length"
    reads: frozenset[Reads] = frozenset()

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        tokens = data.trace.prompt_tokens
        design = np.stack([np.ones(len(tokens)), tokens, np.log(tokens)], 1)
        truth = data.lengths[split.train].astype(np.float64)
        weights, *_ = np.linalg.lstsq(design[split.train], truth, rcond=None)
        return lambda rows: Forecast(np.asarray(design[rows] @ weights))
