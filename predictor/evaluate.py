"""Which predictor is how good: every method on the same splits by prompt, settings chosen on validation.

A seed draws a split and starts the heads. Each pooling has a grid of signal scales and weights; the candidate
with the least validation loss is the one whose test errors count. EGTP and semantic-only have grids of the
same kind as ESTP, zero and weak weights included, and `estp-permuted` is ESTP's grid with S shuffled within
each prompt: what ESTP gains over it is what S knows about *which* tokens matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from predictor.features import PromptSignals, fit_trend, pooled_features
from predictor.head import Bins, Floats
from predictor.pooling import Pooling, PoolingSettings, SignalScale
from predictor.rows import prompt_ids, prompts_of, scenarios_of
from predictor.scores import paired_difference, scores
from predictor.train import Fitted, Split, TrainSettings, fit, split_by_prompt
from traces import Trace
from traces.errors import InputError

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

GRIDS: dict[str, tuple[PoolingSettings, ...]] = {
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
}
"""Candidates by method. The weight of a z-scored signal is 0 (plain mean) to 1.5; negative ones are tried too."""

LITERAL = {
    "egtp-literal": PoolingSettings("egtp", "paper"),
    "estp-literal": PoolingSettings("estp", "paper"),
}
"""The papers' formulas as they stand, nothing tuned."""


@dataclass(frozen=True)
class Outcome:
    """One method on one split: its estimates for the test rows and the settings that validation chose."""

    seed: int
    method: str
    estimate: Floats
    settings: dict[str, Any]


@dataclass(frozen=True)
class Evaluation:
    """Test estimates of every method and seed, with what is needed to score them."""

    outcomes: list[Outcome]
    splits: dict[int, Split]
    bins: dict[int, Bins]
    lengths: NDArray[np.int32]
    prompts: NDArray[np.object_]
    scenarios: NDArray[np.object_]
    validation: list[dict[str, Any]] = field(default_factory=list)

    def table(self) -> list[dict[str, Any]]:
        """Rows (method, scenario, measure: mean over seeds), scenario `all` first."""
        rows = []
        for scenario in ("all", *sorted(set(self.scenarios))):
            for method in dict.fromkeys(o.method for o in self.outcomes):
                per_seed = []
                for o in self.outcomes:
                    test = self.splits[o.seed].test
                    keep = np.ones(len(test), bool) if scenario == "all" else self.scenarios[test] == scenario
                    if o.method == method:
                        per_seed.append(scores(o.estimate[keep], self.lengths[test][keep], self.bins[o.seed]))
                means = {k: float(np.mean([s[k] for s in per_seed])) for k in per_seed[0]}
                rows.append({"scenario": scenario, "method": method, **means})
        return rows

    def difference(self, first: str, second: str, scenario: str = "all") -> tuple[float, float, float]:
        """MAE of `first` less MAE of `second`, with a 95% bootstrap interval by prompt over all test rows."""
        errors: dict[str, list[Floats]] = {first: [], second: []}
        prompts: list[NDArray[np.object_]] = []
        for o in self.outcomes:
            test = self.splits[o.seed].test
            keep = np.ones(len(test), bool) if scenario == "all" else self.scenarios[test] == scenario
            if o.method in errors:
                errors[o.method].append(np.abs(o.estimate - self.lengths[test])[keep])
            if o.method == first:
                prompts.append(self.prompts[test][keep])
        if not prompts or not errors[second]:
            raise InputError(f"the evaluation has no method {first!r} or {second!r}")
        a, b = (np.concatenate(errors[name]) for name in (first, second))
        return paired_difference(a, b, np.concatenate(prompts), np.random.default_rng(0))


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
    fitted = [fit(one, trace.output_tokens, split, settings) for one in features]
    losses = [one.validation_loss for one in fitted]
    k = int(np.argmin(losses))
    return candidates[k], fitted[k], losses


def evaluate(
    trace: Trace,
    signals: Sequence[PromptSignals],
    *,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    settings: TrainSettings | None = None,
    grids: dict[str, tuple[PoolingSettings, ...]] | None = None,
    progress: bool = True,
) -> Evaluation:
    """Split, train and test every method for every seed; `signals` are those of the trace's prompts, in order."""
    prompts, scenarios, lengths = prompt_ids(trace), scenarios_of(trace), trace.output_tokens
    grids = {**(grids or GRIDS), **{k: (v,) for k, v in LITERAL.items()}}
    result = Evaluation([], {}, {}, lengths, prompts, scenarios)
    total = len(seeds) * sum(map(len, grids.values()))
    with tqdm(total=total, unit="head", desc="train", disable=not progress) as bar:
        for seed in seeds:
            split = split_by_prompt(prompts, scenarios, seed)
            result.splits[seed] = split
            result.bins[seed] = Bins.fit(lengths[split.train])
            for name, estimate in simple_baselines(trace, split).items():
                result.outcomes.append(Outcome(seed, name, estimate, {}))
            for method, grid in grids.items():
                chosen = _train(trace, signals, split, grid, settings, seed, method, result.validation)
                result.outcomes.append(chosen)
                bar.update(len(grid))
    return result


def _train(
    trace: Trace,
    signals: Sequence[PromptSignals],
    split: Split,
    grid: Sequence[PoolingSettings],
    settings: TrainSettings | None,
    seed: int,
    method: str,
    log: list[dict[str, Any]],
) -> Outcome:
    texts = prompts_of(trace)
    base = settings or TrainSettings()
    tuned = TrainSettings(**{**base.__dict__, "seed": seed})
    chosen, fitted, losses = best_of(signals, trace, split, grid, tuned)
    for one, value in zip(grid, losses, strict=True):
        log.append({"seed": seed, "method": method, **one.to_json(), "validation_loss": value})
    trend = fit_trend([signals[i] for i in split.train], [texts[i] for i in split.train])
    test = [signals[i] for i in split.test]
    features = pooled_features(test, [chosen], trend, [texts[i] for i in split.test])[0]
    estimate = fitted.probabilities(features) @ fitted.bins.centres
    return Outcome(seed, method, estimate, chosen.to_json())


def simple_baselines(trace: Trace, split: Split) -> dict[str, Floats]:
    """Estimates for the test rows without any LLM: constant, scenario and prompt length.

    constant: the training median; scenario: the training median of the row's scenario; prompt-length: least
    squares of the output tokens on the prompt tokens and their logarithm.
    """
    scenarios, lengths = scenarios_of(trace), trace.output_tokens
    train, test = split.train, split.test
    medians = {
        s: float(np.median(lengths[train][scenarios[train] == s])) for s in sorted(set(scenarios[train]))
    }
    design = np.stack([np.ones(len(trace)), trace.prompt_tokens, np.log(trace.prompt_tokens)], 1)
    weights, *_ = np.linalg.lstsq(design[train], lengths[train].astype(np.float64), rcond=None)
    return {
        "constant": np.full(len(test), float(np.median(lengths[train]))),
        "scenario": np.array([medians[s] for s in scenarios[test]]),
        "prompt-length": np.asarray(design[test] @ weights),
    }


def noise_floor(trace: Trace) -> float | None:
    """Mean absolute difference between two answers to one prompt, in tokens; None without repeated samples.

    No estimate from the prompt alone can undo this: its error is at least half of the gap, on average.
    """
    groups: dict[str, list[int]] = {}
    for prompt, length in zip(prompt_ids(trace), trace.output_tokens.tolist(), strict=True):
        groups.setdefault(prompt, []).append(length)
    gaps = [
        np.abs(np.subtract.outer(g, g)).sum() / (len(g) * (len(g) - 1))
        for g in map(np.array, groups.values())
        if len(g) > 1
    ]
    return float(np.mean(gaps)) if gaps else None
