"""The paper's questions about the two signals (arXiv 2608.15592), asked of any LLM and set of prompts.

Do entropy and attention point at different tokens? `mismatch`, beside what independence alone would give.
Is a token that receives attention one that matters? `importance`, the gradient of two things in the input, and
`correlations` with it. Which tokens receive the attention? `by_kind` and `by_position`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.backbone import Backbone
from predictor.checkpoint import LengthPredictor
from predictor.features import PromptSignals
from predictor.head import Floats
from predictor.token_kinds import KINDS

LEVEL = 60
POSITIONS = 10


@dataclass(frozen=True)
class Mismatch:
    """Shares of a prompt's tokens, mean over prompts, when each signal is cut at one percentile.

    high_low: high in entropy and low in attention; low_high: the reverse; given_high: the first as a share of the
    tokens high in entropy, given_low: the second as a share of those low in entropy. The `independent_` ones are
    what these would be if the two signals knew nothing of each other, from the same margins.
    """

    high_low: float
    low_high: float
    given_high: float
    given_low: float
    independent_high_low: float
    independent_low_high: float
    independent_given_high: float
    independent_given_low: float


def mismatch(entropy: Sequence[Floats], received: Sequence[Floats], level: float = LEVEL) -> Mismatch:
    """Cut each prompt's (N,) entropies and attention at their own percentile `level`; N at least 2."""
    rows = []
    for h, s in zip(entropy, received, strict=True):
        high, seen = h >= np.percentile(h, level), s >= np.percentile(s, level)
        p, q = high.mean(), seen.mean()
        both, neither = (high & ~seen).mean(), (~high & seen).mean()
        rows.append([both, neither, both / p, neither / (1 - p), p * (1 - q), (1 - p) * q, 1 - q, q])
    return Mismatch(*(float(value) for value in np.mean(rows, 0)))


def importance(
    backbone: Backbone, predictor: LengthPredictor, prompt: str, weights: Floats
) -> dict[str, Floats]:
    """(N,) L2 norm of a gradient in each token's input embedding, through the whole LLM.

    `estimate`: of the predictor's expected length in tokens, pooling weights held fixed; `next token`: of the
    LLM's log-probability of the token that it would write first. One forward and two backward passes.
    """
    model = backbone.model
    ids = torch.tensor([backbone.encode(prompt)], device=model.device)
    inputs = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    hidden = model.get_decoder()(inputs_embeds=inputs, use_cache=False).last_hidden_state
    row = torch.from_numpy(weights).float().to(hidden.device)
    pooled = (row @ hidden[0].float())[None].cpu()
    centres = torch.from_numpy(predictor.bins.centres)
    logits = model.get_output_embeddings()(hidden[0, -1:]).float()
    targets = {
        "estimate": (predictor(pooled) @ centres).sum(),
        "next token": logits.log_softmax(-1).max(),
    }
    found = {}
    for name, target in targets.items():
        (gradient,) = torch.autograd.grad(target, inputs, retain_graph=True)
        found[name] = np.asarray(gradient[0].float().norm(dim=-1).double().cpu().numpy())
    return found


def correlations(signal: Sequence[Floats], wanted: Sequence[Floats]) -> tuple[Floats, Floats]:
    """(prompts,) Pearson's and Spearman's r within each prompt; nan where one of the two is constant."""
    pairs = [(a, b) for a, b in zip(signal, wanted, strict=True)]
    pearson = np.array([_pearson(a, b) for a, b in pairs])
    return pearson, np.array([_pearson(_ranks(a), _ranks(b)) for a, b in pairs])


def _pearson(a: NDArray[Any], b: NDArray[Any]) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Mean ranks, ties alike."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])


def mean_interval(values: Floats, rng: np.random.Generator, draws: int = 4000) -> tuple[float, float, float]:
    """Mean over prompts and its 95% bootstrap interval by prompt; nans left out."""
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan"), float("nan"), float("nan")
    means = known[rng.integers(len(known), size=(draws, len(known)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(known.mean()), float(low), float(high)


def by_kind(
    kinds: Sequence[Sequence[str]], signals: Sequence[PromptSignals], weights: Sequence[Floats]
) -> dict[str, dict[str, float]]:
    """For each kind of token, over all prompts alike.

    tokens, attention, weight: shares of a prompt's tokens, of S and of the pooling weight, mean over prompts;
    over_uniform: attention received over what `uniform_received` has, entropy: nats; both mean over tokens.
    """
    masses: dict[str, Floats] = {kind: np.zeros(3) for kind in KINDS}
    sums: dict[str, Floats] = {kind: np.zeros(3) for kind in KINDS}
    for names, one, weight in zip(kinds, signals, weights, strict=True):
        received = one.received.double().numpy()
        over = received / uniform_received(len(names), one.window)
        entropy = one.entropy.double().numpy()
        for kind in set(names):
            at = np.array([name == kind for name in names])
            masses[kind] += [
                at.mean() / len(kinds),
                received[at].sum() / len(kinds),
                weight[at].sum() / len(kinds),
            ]
            sums[kind] += [at.sum(), over[at].sum(), entropy[at].sum()]
    table = {}
    for kind in KINDS:
        if sums[kind][0]:
            tokens, attention, weight = masses[kind].tolist()
            over_uniform, nats = (sums[kind][1:] / sums[kind][0]).tolist()
            table[kind] = {"tokens": tokens, "attention": attention, "weight": weight,
                           "over_uniform": over_uniform, "entropy": nats}  # fmt: skip
    return table


def by_position(signals: Sequence[PromptSignals], weights: Sequence[Floats]) -> dict[str, list[float]]:
    """Shares of S, of the pooling weight, and of S under uniform attention, in each tenth of a prompt; means."""
    total = np.zeros((3, POSITIONS))
    for one, weight in zip(signals, weights, strict=True):
        count = len(one.received)
        tenth = np.arange(count) * POSITIONS // count
        columns = (one.received.double().numpy(), weight, uniform_received(count, one.window))
        total += [np.bincount(tenth, weights=column, minlength=POSITIONS) for column in columns]
    names = ("attention", "weight", "uniform")
    return dict(zip(names, (total / len(signals)).tolist(), strict=True))


def uniform_received(count: int, window: int | None = None) -> Floats:
    """(N,) what S would be if every query looked at all tokens that it sees alike; sums to one."""
    sees = np.minimum(np.arange(1, count + 1), count if window is None else window)
    below = np.concatenate([[0.0], np.cumsum(1 / sees)])
    last = np.minimum(np.arange(count) + (count if window is None else window), count)
    return np.asarray((below[last] - below[:-1]) / count)
