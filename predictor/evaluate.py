"""Which predictor is how good: every method on the same splits by prompt, settings chosen on validation.

A seed draws a split and starts the heads. Three protocols differ in the splits alone: all scenarios together,
one scenario left out of training, and a smaller training part. Their test rows are the same seed by seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from predictor.cells import Cells
from predictor.head import Bins, Floats
from predictor.methods import Data, Forecast, Method
from predictor.rows import prompt_ids
from predictor.scores import losses, paired_difference, scores
from predictor.train import Split, split_by_prompt
from traces import Trace
from traces.errors import InputError


@dataclass(frozen=True)
class Outcome:
    """One method on one split: its forecast of the test rows."""

    seed: int
    method: str
    forecast: Forecast


@dataclass(frozen=True)
class Evaluation:
    """Forecasts of every method and seed, with what is needed to score them."""

    data: Data
    splits: Mapping[int, Split]
    outcomes: Sequence[Outcome]

    @property
    def methods(self) -> list[str]:
        """Names, in the order of evaluation."""
        return list(dict.fromkeys(o.method for o in self.outcomes))

    @property
    def scenarios(self) -> list[str]:
        """`all`, then the scenarios of the test rows, if there are several."""
        test = np.concatenate([split.test for split in self.splits.values()])
        found = sorted(set(self.data.scenarios[test]))
        return ["all", *found] if len(found) > 1 else ["all"]

    def per_seed(self) -> list[dict[str, Any]]:
        """Rows (scenario, method, seed, measure: value), scenario `all` first."""
        return [
            {"scenario": scenario, "method": o.method, "seed": o.seed, **self._scores(o, scenario)}
            for scenario in self.scenarios
            for method in self.methods
            for o in self.outcomes
            if o.method == method
        ]

    def table(self) -> list[dict[str, Any]]:
        """Rows (scenario, method, measure: mean over seeds), scenario `all` first."""
        cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.per_seed():
            cells.setdefault((row.pop("scenario"), row.pop("method")), []).append(row)
        return [
            {
                "scenario": scenario,
                "method": method,
                **{k: float(np.mean([r[k] for r in rows])) for k in rows[0] if k != "seed"},
            }
            for (scenario, method), rows in cells.items()
        ]

    def difference(
        self, first: str, second: str, scenario: str = "all", measure: str = "mae"
    ) -> tuple[float, float, float]:
        """Mean loss of `first` less that of `second`, with a 95% bootstrap interval by prompt over all test rows.

        `measure`: mae (absolute error) or crps. nan where one of the two only ranks.
        """
        values: dict[str, list[Floats]] = {first: [], second: []}
        prompts: list[NDArray[np.object_]] = []
        for o in self.outcomes:
            if o.method in values:
                test = self.splits[o.seed].test
                keep = self._keep(o.seed, scenario)
                values[o.method].append(losses(o.forecast, self.data.lengths[test])[measure][keep])
                if o.method == first:
                    prompts.append(self.data.prompt_ids[test][keep])
        missing = [name for name, found in values.items() if not found]
        if missing:
            raise InputError(f"the evaluation has no method {missing[0]!r}; it has {', '.join(self.methods)}")
        a, b = (np.concatenate(values[name]) for name in (first, second))
        return paired_difference(a, b, np.concatenate(prompts), np.random.default_rng(0))

    def _keep(self, seed: int, scenario: str) -> NDArray[np.bool_]:
        found = self.data.scenarios[self.splits[seed].test]
        return np.asarray(np.ones(len(found), bool) if scenario == "all" else found == scenario)

    def _scores(self, outcome: Outcome, scenario: str) -> dict[str, float]:
        split = self.splits[outcome.seed]
        keep = self._keep(outcome.seed, scenario)
        bins = Bins.fit(self.data.lengths[split.train])
        return scores(outcome.forecast.take(keep), self.data.lengths[split.test][keep], bins)


def evaluate(
    data: Data,
    methods: Sequence[Method],
    splits: Mapping[int, Split],
    *,
    cells: Cells | None = None,
    progress: bool = True,
) -> Evaluation:
    """Fit and test every method on every split; finished (method, seed) cells are read back from `cells`."""
    outcomes = []
    with tqdm(total=len(splits) * len(methods), unit="fit", desc="evaluate", disable=not progress) as bar:
        for seed, split in splits.items():
            for method in methods:
                bar.set_postfix_str(f"{method.name}, seed {seed}", refresh=False)
                forecast = cells.read(method, split, seed) if cells else None
                if forecast is None:
                    forecast = method.fit(data, split, seed)(split.test)
                    if cells:
                        cells.write(method, split, seed, forecast)
                outcomes.append(Outcome(seed, method.name, forecast))
                bar.update()
    return Evaluation(data, splits, outcomes)


def random_splits(data: Data, seeds: Sequence[int]) -> dict[int, Split]:
    """A split by prompt for each seed, each scenario in the same shares."""
    return {seed: split_by_prompt(data.prompt_ids, data.scenarios, seed) for seed in seeds}


def only(result: Evaluation, scenario: str) -> Evaluation:
    """The same forecasts, of the test rows of one scenario: what `splits_without` is to be compared with."""
    keep = {seed: result.data.scenarios[split.test] == scenario for seed, split in result.splits.items()}
    return Evaluation(
        result.data,
        {seed: replace(split, test=split.test[keep[seed]]) for seed, split in result.splits.items()},
        [replace(o, forecast=o.forecast.take(keep[o.seed])) for o in result.outcomes],
    )


def splits_without(data: Data, scenario: str, splits: Mapping[int, Split]) -> dict[int, Split]:
    """The same splits with `scenario` taken out of training and validation, and alone in the test part.

    Raises InputError when no other scenario is left to train on.
    """
    found = data.scenarios
    if not (found != scenario).any():
        raise InputError(
            f"all prompts are of the scenario {scenario!r}; leaving one out needs at least two of them"
        )
    return {
        seed: Split(
            split.train[found[split.train] != scenario],
            split.validation[found[split.validation] != scenario],
            split.test[found[split.test] == scenario],
        )
        for seed, split in splits.items()
    }


def smaller_splits(data: Data, share: float, splits: Mapping[int, Split]) -> dict[int, Split]:
    """The same splits with only this share of the training prompts; a smaller share is part of a larger one.

    Raises InputError for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise InputError(f"a share of the training prompts lies in (0, 1], not {share}")
    smaller = {}
    for seed, split in splits.items():
        prompts = data.prompt_ids[split.train]
        order = np.random.default_rng(seed).permutation(sorted(set(prompts)))
        kept = set(order[: max(1, round(share * len(order)))])
        smaller[seed] = replace(split, train=split.train[[p in kept for p in prompts]])
    return smaller


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
