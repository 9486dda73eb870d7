"""Learned pooling equals its formula written as loops, starts at ESTP, and finds a token that is made to tell.

The made-up prompts hold the length in one token's state; that token is marked by its entropy, or by a direction
of its state alone, so that it is known which parameter has to learn what.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from beyond.learned import LearnedPooling, fit_learned  # noqa: E402

from predictor.pooling import PoolingSettings, pool, scale_signals  # noqa: E402
from predictor.train import Split, TrainSettings  # noqa: E402

SPLIT = Split(np.arange(240), np.arange(240, 300), np.arange(300, 400))
SETTINGS = TrainSettings(epochs=12, learning_rate=3e-3, batch_size=16, seed=3)


def prompt(seed: int, tokens: int = 6, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return (
        torch.randn(tokens, 3, generator=rng, dtype=torch.float64),
        torch.randn(tokens, size, generator=rng, dtype=torch.float64),
    )


def module(query: bool = True) -> LearnedPooling:
    made = LearnedPooling([0.5, -1.0, 0.2], 4, query).double()
    if query:
        made.standardise([prompt(k)[1] for k in range(5)])
        with torch.no_grad():
            made.query.copy_(torch.tensor([0.3, -0.4, 1.0, 0.0]))
    return made


def test_pooling_equals_loops() -> None:
    made, (signals, states) = module(), prompt(9, tokens=5)
    tokens = torch.cat([prompt(k)[1] for k in range(5)])
    centre, spread = tokens.mean(0), tokens.std(0, correction=0)
    scores = []
    for f, x in zip(signals.tolist(), states, strict=True):
        own = sum(w * v for w, v in zip([0.5, -1.0, 0.2], f, strict=True))
        seen = [(float(x[k]) - float(centre[k])) / float(spread[k]) for k in range(4)]
        scores.append(own + sum(q * v for q, v in zip([0.3, -0.4, 1.0, 0.0], seen, strict=True)))
    total = sum(math.exp(t) for t in scores)
    wanted = sum(math.exp(t) / total * x for t, x in zip(scores, states, strict=True))
    torch.testing.assert_close(made([signals], [states])[0], wanted, atol=1e-6, rtol=1e-6)


def test_gradients_against_finite_differences() -> None:
    made = module()
    rows = [prompt(k, tokens=3 + k) for k in range(3)]

    def pooled(weights: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        parameters = {"weights": weights, "query": query}
        return torch.func.functional_call(made, parameters, ([f for f, _ in rows], [x for _, x in rows]))

    assert torch.autograd.gradcheck(
        pooled, (made.weights.detach().requires_grad_(), made.query.detach().requires_grad_())
    )


def test_it_starts_at_estp() -> None:
    rng = np.random.default_rng(0)
    hidden, entropy, received = rng.normal(size=(9, 4)), rng.gamma(2.0, size=9), rng.dirichlet(np.ones(9))
    one = PoolingSettings("estp", "zscore", lambda1=1.5, lambda2=0.7, alpha=2.0)
    signals = torch.stack(scale_signals(entropy, received, "zscore"), 1)
    states = torch.tensor(hidden, dtype=torch.float32)
    start = LearnedPooling(one.weights, 4, query=True)
    torch.testing.assert_close(start([signals], [states]), pool(hidden, [one], entropy, received))


def made_up(marked: str) -> tuple[list[torch.Tensor], list[torch.Tensor], np.ndarray]:
    rng = np.random.default_rng(1)
    code, sign = rng.normal(size=16), rng.normal(size=16)
    signals, states, lengths = [], [], []
    for _ in range(400):
        count, value = int(rng.integers(6, 12)), rng.normal()
        spot = int(rng.integers(count))
        x = rng.normal(size=(count, 16)) * 1.5
        x[spot] = 2 * value * code + (6 * sign if marked == "state" else 0)
        f = rng.normal(size=(count, 2))
        f[spot, 1] += 4.0 * (marked == "signal")
        signals.append(torch.tensor(f, dtype=torch.float32))
        states.append(torch.tensor(x, dtype=torch.float32))
        lengths.append(max(1, round(100 + 40 * value)))
    return signals, states, np.array(lengths, dtype=np.int32)


@pytest.mark.parametrize("marked", ["signal", "state"])
def test_it_finds_the_token_that_tells(marked: str) -> None:
    signals, states, lengths = made_up(marked)
    query = marked == "state"
    rows = SPLIT.test

    def error(rate: float) -> float:
        fitted = fit_learned(
            signals, states, lengths, SPLIT, SETTINGS, [0.0, 0.0], query=query, pooling_rate=rate
        )
        table = fitted.probabilities([signals[i] for i in rows], [states[i] for i in rows])
        return float(np.abs(table @ fitted.bins.centres - lengths[rows]).mean())

    # A rate of next to nothing leaves the mean of all tokens.
    assert error(0.05) < 0.9 * error(1e-9)


def test_a_seed_decides_the_fit() -> None:
    signals, states, lengths = made_up("signal")
    short = TrainSettings(epochs=1, seed=5)
    one, same = (
        fit_learned(signals, states, lengths, SPLIT, short, [1.0, 0.0], query=True).pooling for _ in range(2)
    )
    assert torch.equal(one.weights, same.weights)
    assert torch.equal(one.query, same.query)
