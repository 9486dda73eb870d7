"""Who knows best what remains while an answer is being written? Static, TRAIL and PLP, every n tokens.

Estimates are those of the remaining length after 0, n, 2n ... generated tokens, on the same splits by prompt:

    constant      median of what remained at that point in training
    at-arrival    TRAIL's estimate at arrival less what was generated, at least 1: what SPRPT makes of a static one
    trail-raw     TRAIL's classifier on the latest token alone
    trail         the same after the Bayesian refinement
    plp           PLP

`progressive_table` is the form in which a scheduler's simulation can use them: one row a request and moment,
`at_tokens` generated so far (0: at arrival) and the `mean` remaining then. At g generated tokens the row with the
largest at_tokens <= g holds, less the g - at_tokens tokens written since. A policy that orders by it (SRPT with
limited preemption, as TRAIL's) has to be asked again every n tokens of a request, and after its prefill for the
row at 0; the table has no row for a request that has ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from predictor.backbone import Backbone
from predictor.baselines.plp import fit_plp
from predictor.baselines.trail import DEPTH, Probe, bin_of, equal_bins, filtered, middles, train_classifier
from predictor.decoding import AnswerStates, balanced_rows, read_answer_states
from predictor.head import Floats
from predictor.scores import kendall_tau, paired_difference
from predictor.train import Split
from traces import Trace
from traces.errors import InputError

METHODS = ("constant", "at-arrival", "trail-raw", "trail", "plp")


@dataclass(frozen=True, eq=False)
class Remaining:
    """Estimates of every method on the test answers of each seed.

    Arrays over all moments of all answers: answer (M,) int64, at_tokens (M,) int32 and remaining (M,) the truth;
    answers in order, each from 0 tokens on. splits: of the answers. estimates: (seed, method) -> (M,), to be judged
    on test answers only.
    """

    trace: Trace
    states: AnswerStates
    answer: NDArray[np.int64]
    at_tokens: NDArray[np.int32]
    remaining: NDArray[np.float64]
    splits: Mapping[int, Split]
    estimates: Mapping[tuple[int, str], Floats]

    def test(self, seed: int) -> NDArray[np.bool_]:
        """(M,) which moments belong to test answers."""
        return np.isin(self.answer, self.splits[seed].test)

    def table(self) -> list[dict[str, Any]]:
        """Rows (method, from_tokens, to_tokens, mae, tau), means over seeds; the first row a method is over all."""
        borders = [0, 1, 65, 129, 257, int(self.at_tokens.max()) + 1]
        spans = [(0, borders[-1]), *((a, b) for a, b in pairwise(borders) if a < b)]
        rows = []
        for method in METHODS:
            for low, high in spans:
                found = []
                for seed in self.splits:
                    keep = self.test(seed) & (self.at_tokens >= low) & (self.at_tokens < high)
                    if keep.any():
                        estimate, truth = self.estimates[seed, method][keep], self.remaining[keep]
                        found.append(
                            (np.abs(estimate - truth).mean(), kendall_tau(estimate, truth), keep.sum())
                        )
                if found:
                    mae, tau = np.mean([f[:2] for f in found], 0)
                    moments = int(sum(f[2] for f in found))
                    rows.append({"method": method, "from_tokens": low, "to_tokens": high - 1,
                                 "moments": moments, "mae": float(mae), "tau": float(tau)})  # fmt: skip
        return rows

    def difference(self, first: str, second: str) -> tuple[float, float, float]:
        """MAE of `first` less `second` over all test moments, with a 95% bootstrap interval by answer."""
        keep = {seed: self.test(seed) for seed in self.splits}
        a, b = (
            np.concatenate([np.abs(self.estimates[s, name] - self.remaining)[k] for s, k in keep.items()])
            for name in (first, second)
        )
        answers = np.concatenate([self.answer[k].astype(str) for k in keep.values()]).astype(object)
        return paired_difference(a, b, answers, np.random.default_rng(0))


def read_and_evaluate(
    backbone: Backbone, trace: Trace, splits: Mapping[int, Split], answers: int, every: int
) -> Remaining:
    """Read the states of so many answers, equally many of each scenario, and compare all methods on them.

    `splits` are over the rows of the trace. The middle layer is TRAIL's share of the depth.
    """
    layer = round(DEPTH * backbone.model.config.get_text_config().num_hidden_layers)
    states = read_answer_states(backbone, trace, balanced_rows(trace, answers), layer, every=every)
    return evaluate_remaining(trace, states, splits)


def evaluate_remaining(
    trace: Trace,
    states: AnswerStates,
    splits: Mapping[int, Split],
    probe: Probe | None = None,
    progress: bool = True,
) -> Remaining:
    """Fit and test all methods for each seed; `splits` are over the rows of the trace, as in `estp evaluate`.

    Raises InputError when one of a split's parts has none of the answers.
    """
    mine = {seed: _of_answers(split, states.rows) for seed, split in splits.items()}
    count = len(states.rows)
    order = np.lexsort((np.concatenate([np.zeros(count), states.generated]),
                        np.concatenate([np.arange(count), states.answer])))  # fmt: skip
    answer = np.concatenate([np.arange(count), states.answer])
    estimates = {}
    for seed, split in tqdm(mine.items(), unit="seed", desc="remaining", disable=not progress):
        found = {**_trail(states, split, seed, probe or Probe()), "plp": fit_plp(states, split, seed)}
        for name, values in {**found, "constant": _constant(states, split)}.items():
            estimates[seed, name] = values[order]
    at_tokens = np.concatenate([np.zeros(count, np.int32), states.generated])
    remaining = np.concatenate([states.lengths, states.remaining]).astype(np.float64)
    return Remaining(trace, states, answer[order], at_tokens[order], remaining[order], mine, estimates)


def _of_answers(split: Split, rows: NDArray[np.int64]) -> Split:
    parts = [np.flatnonzero(np.isin(rows, part)) for part in (split.train, split.validation, split.test)]
    if not all(map(len, parts)):
        raise InputError(f"{len(rows)} answers are too few to train, choose and test on; take more")
    return Split(*parts)


def progressive_table(result: Remaining, seed: int) -> pl.DataFrame:
    """Columns request_id, predictor, at_tokens, mean (tokens remaining) for the test answers of one seed."""
    keep = result.test(seed)
    ids = result.trace.request_id[result.states.rows][result.answer[keep]].tolist()
    frames = [
        pl.DataFrame(
            {
                "request_id": ids,
                "predictor": [method] * len(ids),
                "at_tokens": result.at_tokens[keep],
                "mean": result.estimates[seed, method][keep],
            }
        )
        for method in METHODS
    ]
    return pl.concat(frames)


def _trail(states: AnswerStates, split: Split, seed: int, probe: Probe) -> dict[str, Floats]:
    """at-arrival, trail-raw and trail, (A + S,) each: the prompts first."""
    count = len(states.rows)
    features = torch.cat([states.prompt[:, 0], states.states[:, 0]]).float()
    answer = np.concatenate([np.arange(count), states.answer])
    remaining = np.concatenate([states.lengths, states.remaining])
    train, validation = (np.flatnonzero(np.isin(answer, p)) for p in (split.train, split.validation))
    edges = equal_bins(remaining[train])
    model, _ = train_classifier(features, bin_of(remaining, edges), train, validation, seed, probe)
    table = model.probabilities(features)
    refined = np.empty_like(table)
    for k in range(count):
        later = count + np.flatnonzero(states.answer == k)
        refined[np.concatenate([[k], later])] = filtered(
            table[k], table[later], float(edges[1] - edges[0]), states.every
        )
    raw = table @ middles(edges)
    generated = np.concatenate([np.zeros(count), states.generated])
    return {
        "at-arrival": np.maximum(raw[answer] - generated, 1.0),
        "trail-raw": raw,
        "trail": refined @ middles(edges),
    }


def _constant(states: AnswerStates, split: Split) -> Floats:
    """The training answers' median of what remains after as many tokens; that of the last known moment beyond."""
    lengths = states.lengths[split.train]
    generated = np.concatenate([np.zeros(len(states.rows), np.int64), states.generated])
    medians = {
        g: float(np.median(lengths[lengths > g] - g)) for g in sorted(set(generated)) if (lengths > g).any()
    }
    last = max(medians)
    return np.array([medians[min(g, last)] for g in generated.tolist()])
