"""Conformal quantiles are those of a hand-worked case and of a loop, and cover exchangeable data as promised.

The promise, P(y inside) >= 1 - 2 * 5% for a new prompt's row, is split conformal prediction's (Vovk et al. 2005),
with several rows a prompt Lee, Barber and Willett's (2023). It is checked on made-up prompts whose samples share
the prompt's own effect, under quantiles that are wrong on purpose.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictor.conformal import Correction, calibrate, least
from traces.errors import InputError
from traces.estimates import QUANTILES

LEVELS = tuple(QUANTILES)


def flat(count: int, low: float = 10.0, high: float = 20.0) -> dict[float, np.ndarray]:
    """The same quantiles for every row, evenly spread from the 5% to the 95% one."""
    return {q: np.full(count, low + (high - low) * (q - 0.05) / 0.9) for q in LEVELS}


def test_nineteen_prompts_are_just_enough_for_95_percent() -> None:
    lengths = np.arange(1, 20) * 10
    prompts = [f"p{k}" for k in range(19)]
    found = calibrate(flat(19), lengths, prompts)
    # (19 + 1) * 0.95 = 19 of 19 scores: the largest, (190 - 20) / 10 widths, and the least below, (10 - 10) / 10.
    assert found.shifts[0.95] == pytest.approx(17)
    assert found.shifts[0.05] == pytest.approx(0)
    # The median: 10 of 19 scores, that of length 100 against the quantile 15.
    assert found.shifts[0.5] == pytest.approx(8.5)
    fewer = calibrate(flat(18), lengths[:18], prompts[:18])
    assert sorted(fewer.shifts) == [0.1, 0.25, 0.5, 0.75, 0.9]
    assert fewer.prompts == 18


@given(
    st.lists(st.tuples(st.integers(-9, 9), st.integers(1, 4)), min_size=1, max_size=30), st.floats(0.01, 0.99)
)
def test_least_is_what_a_loop_finds(pairs: list[tuple[int, int]], level: float) -> None:
    scores = np.array([s for s, _ in pairs], dtype=float)
    weights = np.array([w for _, w in pairs]) / (sum(w for _, w in pairs) + 1)
    enough = [c for c in sorted(set(scores)) if weights[scores <= c].sum() >= level - 1e-12]
    assert least(scores, weights, level) == (enough[0] if enough else np.inf)


@given(st.lists(st.integers(1, 400), min_size=20, max_size=60), st.integers(2, 4))
def test_repeated_rows_of_a_prompt_add_nothing(lengths: list[int], times: int) -> None:
    prompts = np.array([f"p{k}" for k in range(len(lengths))], dtype=object)
    once = calibrate(flat(len(lengths)), np.array(lengths), prompts)
    again = calibrate(flat(len(lengths) * times), np.repeat(lengths, times), np.repeat(prompts, times))
    assert again == once


@given(st.lists(st.floats(-3, 3), min_size=7, max_size=7), st.floats(1, 50), st.floats(1, 50))
def test_corrected_quantiles_never_cross_and_only_widen(shifts: list[float], low: float, gap: float) -> None:
    at = flat(1, low, low + gap)
    correction = Correction(dict(zip(LEVELS, shifts, strict=True)), 99)
    moved = correction.apply(at)
    assert list(moved) == sorted(moved) == list(LEVELS)
    values = [float(x[0]) for x in moved.values()]
    assert values == sorted(values)
    for q in LEVELS:
        alone = max(1.0, float(at[q][0]) + correction.shifts[q] * gap)
        assert (
            values[LEVELS.index(q)] >= alone - 1e-9 if q >= 0.5 else values[LEVELS.index(q)] <= alone + 1e-9
        )


def draw(rng: np.random.Generator, prompts: int) -> tuple[dict[float, np.ndarray], np.ndarray, np.ndarray]:
    """Rows of so many prompts, one to four each; the predictor knows half of what a prompt is like, and its

    quantiles are too narrow by a factor of three.
    """
    samples = rng.integers(1, 5, prompts)
    group = np.repeat(np.arange(prompts), samples)
    known, hidden = rng.gamma(2, 30, prompts), rng.gamma(2, 30, prompts)
    lengths = np.ceil(known[group] + hidden[group] + rng.exponential(10, len(group)))
    middle = known[group] + 60
    at = {q: middle + (q - 0.5) * (20 + 0.3 * known[group]) for q in LEVELS}
    return at, lengths, group.astype(str).astype(object)


def test_coverage_on_exchangeable_prompts() -> None:
    rng, trials = np.random.default_rng(0), 1500
    raw, inside, above, below = 0, 0, 0, 0
    for _ in range(trials):
        at, lengths, prompts = draw(rng, 41)
        new = prompts == "40"
        found = calibrate({q: x[~new] for q, x in at.items()}, lengths[~new], prompts[~new])
        row = np.flatnonzero(new)[:1]
        own = {q: x[row] for q, x in at.items()}
        moved, y = found.apply(own), lengths[row]
        raw += int((own[0.05] <= y).item() and (y <= own[0.95]).item())
        inside += int((moved[0.05] <= y).item() and (y <= moved[0.95]).item())
        above += int((y > moved[0.9]).item())
        below += int((y < moved[0.1]).item())
    error = np.sqrt(0.9 * 0.1 / trials)
    assert raw / trials < 0.4
    # At least 90%; at most 90% and twice what one prompt of 41 weighs, as scores hardly tie.
    assert 0.9 - 3 * error < inside / trials < 0.9 + 2 / 41 + 3 * error
    assert above / trials < 0.1 + 3 * error
    assert below / trials < 0.1 + 3 * error


def test_a_correction_survives_json() -> None:
    found = calibrate(flat(40), np.random.default_rng(1).integers(1, 90, 40), np.arange(40).astype(object))
    assert Correction.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_what_is_needed_is_named() -> None:
    at = flat(3)
    with pytest.raises(InputError, match="needs the 5% and the 95% quantile"):
        calibrate({0.5: at[0.5]}, np.ones(3), list("abc"))
    with pytest.raises(InputError, match="must lie above"):
        calibrate(flat(3, 7.0, 7.0), np.ones(3), list("abc"))


def test_a_checkpoint_keeps_its_correction_and_one_without_gives_the_bins_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from predictor.checkpoint import LengthPredictor, as_estimates, load_predictor
    from predictor.head import quantiles
    from predictor.pooling import PoolingSettings

    correction = Correction({0.05: -0.5, 0.5: 0.1, 0.95: 0.2}, 19)
    pooling = PoolingSettings("mean").to_json()
    made = {
        name: LengthPredictor(
            name, "llm", "f" * 16, "float32", pooling, [1.0, 10.0, 50.0], 4, conformal=stored
        )
        for name, stored in (("plain", None), ("moved", correction.to_json()))
    }
    table = np.array([[0.5, 0.5], [0.1, 0.9]])
    own = quantiles(table, made["plain"].bins, LEVELS)
    for name, wanted in (("plain", own), ("moved", correction.apply(own))):
        made[name].write(tmp_path / name)
        again = load_predictor(tmp_path / name)
        found = as_estimates(again, np.arange(2), table).quantiles
        assert again.identity() == made[name].identity()
        assert sorted(found) == sorted(wanted)
        for q, column in wanted.items():
            np.testing.assert_array_equal(found[q], column)
    assert "conformal" not in made["plain"].identity()
