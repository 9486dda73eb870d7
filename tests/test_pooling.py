"""Poolings equal their written-out definitions, and the detrended scale what a loop over prompts gives.

Values come from h = sum_i softmax(T / alpha)_i h_i computed in float64 by loops, from hand-worked cases, and
from invariances that follow from the formulas.
"""

import json
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from predictor.pooling import (
    PoolingSettings,
    PositionTrend,
    log_visible,
    pool,
    scale_signals,
    token_weights,
    visible,
    zscore,
)
from traces.errors import InputError

Array = NDArray[np.float64]
GRID = [
    PoolingSettings(pooling, scale, lambda1, lambda2, alpha)  # type: ignore[arg-type]
    for pooling, scale, lambda1, lambda2, alpha in product(
        ["egtp", "semantic", "estp"],
        ["paper", "visible", "zscore", "detrended"],
        [0, 0.5],
        [0.0, 1.5],
        [0.7, 2],
    )
]


def prompt(count: int, seed: int = 0, size: int = 5) -> tuple[Array, Array, Array]:
    """(hidden (N, d), entropy (N,), received (N,)) with attention as a random causal softmax gives it."""
    rng = np.random.default_rng([seed, count])
    attention = np.tril(rng.gamma(0.5, size=(count, count)) + 1e-3)
    attention /= attention.sum(1, keepdims=True)
    return rng.normal(size=(count, size)), rng.gamma(2.0, size=count), attention.sum(0) / count


def trend_of(prompts: list[tuple[Array, Array, Array]], **options: Any) -> PositionTrend:
    return PositionTrend.fit([received for _, _, received in prompts], **options)


def standard(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    return [(v - mean) / spread if spread > 1e-9 else 0.0 for v in values]


def by_loops(
    one: PoolingSettings, hidden: Array, entropy: Array, received: Array, trend: PositionTrend
) -> Array:
    n = len(entropy)
    seen = [received[j] * n / (n - j) for j in range(n)]
    s, h = {
        "paper": (list(received), list(entropy)),
        "visible": (seen, list(entropy)),
        "zscore": (standard(list(received)), standard(list(entropy))),
        "detrended": (
            standard([math.log(v) - float(trend.at(n)[j]) for j, v in enumerate(seen)]),
            standard(list(entropy)),
        ),
    }[one.signal_scale]
    lambda1 = one.lambda1 if one.pooling != "egtp" else 0.0
    lambda2 = one.lambda2 if one.pooling != "semantic" else 0.0
    weights = [math.exp((lambda1 * a + lambda2 * b) / one.alpha) for a, b in zip(s, h, strict=True)]
    total: Array = sum(w * row for w, row in zip(weights, hidden, strict=True)) / sum(weights)
    return total


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_whole_grid_equals_loops(count: int) -> None:
    hidden, entropy, received = prompt(count)
    trend = trend_of([prompt(12, seed) for seed in range(3)])
    got = pool(hidden, GRID, entropy, received, trend=trend)
    assert got.shape == (len(GRID), 5)
    for row, one in zip(got, GRID, strict=True):
        np.testing.assert_allclose(
            row, by_loops(one, hidden, entropy, received, trend), atol=1e-5, err_msg=str(one)
        )


def test_baselines_by_hand() -> None:
    hidden = torch.tensor([[1.0, -4.0], [3.0, -6.0], [2.0, 1.0]])
    signals = torch.tensor([9.0, 0.0, 0.0]), torch.tensor([0.0, 9.0, 0.0])
    settings = [PoolingSettings(p) for p in ("max", "mean", "last")]  # type: ignore[arg-type]
    got = pool(hidden, settings, *signals)
    torch.testing.assert_close(got, torch.tensor([[3.0, 1.0], [2.0, -3.0], [2.0, 1.0]]))


def test_estp_by_hand() -> None:
    """S = (1/2, 1/2), H = (0, log 3): T = 2 S + H / 2 over alpha 1/2 gives weights 1 : 3."""
    one = PoolingSettings("estp", "paper", lambda1=2, lambda2=0.5, alpha=0.5)
    weights = token_weights([one], [0.0, math.log(3)], [0.5, 0.5])
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75]]))


def test_egtp_and_semantic_defaults_are_the_papers() -> None:
    entropy, received = [0.0, math.log(2), math.log(5)], [math.log(4), 0.0, 0.0]
    got = token_weights(
        [PoolingSettings("egtp", "paper"), PoolingSettings("semantic", "paper")], entropy, received
    )
    torch.testing.assert_close(got, torch.tensor([[1 / 8, 2 / 8, 5 / 8], [4 / 6, 1 / 6, 1 / 6]]))


def test_visible_divides_by_the_queries_that_can_see_a_token() -> None:
    """Uniform causal attention over 3 tokens: each query that sees token j gives it 1 / (i + 1)."""
    received = [(1 + 1 / 2 + 1 / 3) / 3, (1 / 2 + 1 / 3) / 3, (1 / 3) / 3]
    torch.testing.assert_close(visible(received), torch.tensor([11 / 18, 5 / 12, 1 / 3]))
    # With a window of two tokens the first token is seen by two queries, as the second is.
    windowed = [(1 + 1 / 2) / 3, (1 / 2 + 1 / 2) / 3, (1 / 2) / 3]
    torch.testing.assert_close(visible(windowed, window=2), torch.tensor([3 / 4, 1 / 2, 1 / 2]))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 6))
def test_trend_is_the_mean_of_each_bin(lengths: list[int], min_count: int) -> None:
    prompts = [prompt(n, seed) for seed, n in enumerate(lengths)]
    trend = trend_of(prompts, min_count=min_count)
    logs = [log_visible(received).double().numpy() for _, _, received in prompts]
    ends = [*trend.starts[1:], max(lengths)]
    for start, end, value in zip(trend.starts, ends, trend.values, strict=True):
        inside = np.concatenate([one[start:end] for one in logs])
        assert len(inside) >= min(min_count, len(lengths))
        assert value == pytest.approx(inside.mean(), abs=1e-9)
        # A bin could not have ended any earlier, except the last, which takes the rest.
        if end != max(lengths):
            assert sum(len(one[start : end - 1]) for one in logs) < min(min_count, len(lengths))


def test_trend_keeps_single_positions_then_widens_then_stays() -> None:
    """Four prompts of 2, 2, 2 and 8 tokens, three a bin: positions 0 and 1 alone, then 2-4, then the rest."""
    prompts = [prompt(n, seed) for seed, n in enumerate((2, 2, 2, 8))]
    trend = trend_of(prompts, min_count=3)
    assert trend.starts == (0, 1, 2, 5)
    at = trend.at(12).tolist()
    assert at == pytest.approx([trend.values[k] for k in (0, 1, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3)])


def test_detrending_removes_what_position_alone_explains() -> None:
    """Prompts that differ only by a factor have nothing left after detrending: S drops out of ESTP."""
    _, entropy, received = prompt(20)
    trend = PositionTrend.fit([received, received * 3, received * 0.5])
    s, _ = scale_signals(entropy, received * 7, "detrended", trend)
    torch.testing.assert_close(s, torch.zeros(20))
    hidden = np.eye(20)
    estp, egtp = pool(
        hidden, [PoolingSettings("estp"), PoolingSettings("egtp")], entropy, received, trend=trend
    )
    torch.testing.assert_close(estp, egtp)


def test_trend_survives_json() -> None:
    trend = trend_of([prompt(n, n) for n in (3, 9, 40)], window=5)
    assert PositionTrend.from_json(json.loads(json.dumps(trend.to_json()))) == trend
    one = PoolingSettings("semantic", "visible", lambda1=0.3, alpha=2.0, permuted=True)
    assert PoolingSettings.from_json(json.loads(json.dumps(one.to_json()))) == one


@given(st.integers(1, 30), st.sampled_from(GRID), st.floats(-5, 5), st.floats(0.1, 10))
def test_weights_sum_to_one_and_ignore_an_entropy_offset(
    count: int, one: PoolingSettings, shift: float, factor: float
) -> None:
    _, entropy, received = prompt(count)
    trend = trend_of([prompt(12, seed) for seed in range(3)])
    (weights,) = token_weights([one], entropy, received, trend=trend)
    assert float(weights.sum()) == pytest.approx(1, abs=1e-5)
    (moved,) = token_weights([one], entropy + shift, received, trend=trend)
    torch.testing.assert_close(moved, weights, atol=1e-4, rtol=1e-3)
    if one.signal_scale in ("zscore", "detrended"):
        (stretched,) = token_weights([one], entropy * factor, received, trend=trend)
        torch.testing.assert_close(stretched, weights, atol=1e-4, rtol=1e-3)


def test_no_weight_is_the_mean_and_tiny_alpha_the_top_token() -> None:
    hidden, entropy, received = prompt(15)
    flat, sharp = pool(
        hidden,
        [PoolingSettings("estp", "zscore", 0, 0), PoolingSettings("egtp", "zscore", alpha=1e-4)],
        entropy,
        received,
    )
    np.testing.assert_allclose(flat, hidden.mean(0), atol=1e-6)
    np.testing.assert_allclose(sharp, hidden[entropy.argmax()], atol=1e-6)


def test_permuted_shuffles_attention_alone_and_repeats_for_a_seed() -> None:
    _, entropy, received = prompt(30)
    plain = PoolingSettings("semantic", "zscore")
    shuffled = PoolingSettings("semantic", "zscore", permuted=True)
    both = PoolingSettings("estp", "zscore", permuted=True)
    settings = [plain, shuffled, both]
    got = token_weights(settings, entropy, received, rng=np.random.default_rng([7, 1]))
    torch.testing.assert_close(got[1].sort().values, got[0].sort().values)
    assert not torch.allclose(got[1], got[0])
    # One permutation for all settings: ESTP's weights are the shuffled semantic ones times exp(z(H)).
    expected = got[1] * zscore(torch.as_tensor(entropy, dtype=torch.float32)).exp()
    torch.testing.assert_close(got[2], expected / expected.sum())
    again = token_weights(settings[1:], entropy, received, rng=np.random.default_rng([7, 1]))
    torch.testing.assert_close(again, got[1:])
    other = token_weights(settings[1:], entropy, received, rng=np.random.default_rng([7, 2]))
    assert not torch.allclose(other, got[1:])


def test_half_precision_states_are_pooled_in_float32() -> None:
    hidden, entropy, received = prompt(400)
    states = torch.as_tensor(hidden).bfloat16()
    (got,) = pool(states, [PoolingSettings("mean")], entropy, received)
    torch.testing.assert_close(got, states.double().mean(0).float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pooling": "esp"}, "pooling 'esp' is not one of mean, last"),
        ({"signal_scale": "raw"}, "signal_scale 'raw' is not one of paper"),
        ({"alpha": 0.0}, "alpha must be a positive number, not 0.0"),
        ({"alpha": math.inf}, "alpha must be a finite number, not Infinity"),
        ({"lambda1": math.nan}, "lambda1 must be a finite number, not NaN"),
        ({"pooling": "egtp", "permuted": True}, "which 'egtp' does not use"),
        ({"lambda3": 1}, "pooling has an unknown 'lambda3'"),
    ],
)
def test_bad_settings_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PoolingSettings.from_json({**PoolingSettings().to_json(), **values})


def test_what_is_missing_is_named() -> None:
    _, entropy, received = prompt(4)
    with pytest.raises(InputError, match="needs a position trend"):
        token_weights([PoolingSettings("estp")], entropy, received)
    with pytest.raises(InputError, match="needs a random generator"):
        token_weights([PoolingSettings("estp", "paper", permuted=True)], entropy, received)
    with pytest.raises(InputError, match="no token weights"):
        token_weights([PoolingSettings("max")], entropy, received)
    with pytest.raises(InputError, match="at least one training prompt"):
        PositionTrend.fit([])
    with pytest.raises(InputError, match="start at position 0"):
        PositionTrend((1,), (0.0,))
    with pytest.raises(InputError, match="ascending"):
        PositionTrend((0, 2, 2), (0.0, 1.0, 2.0))
    assert not PoolingSettings("egtp").needs_trend
    assert PoolingSettings("semantic").needs_trend
