"""Targets over samples are means written out by hand, and count a prompt once however often it was sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from predictor.head import Bins, soft_labels  # noqa: E402
from predictor.targets import Targets  # noqa: E402
from predictor.train import Split, TrainSettings, fit, one_row_a_prompt  # noqa: E402
from traces.errors import InputError  # noqa: E402


def test_sample_targets_are_the_mean_over_a_prompts_rows() -> None:
    bins = Bins((0.0, 10.0, 20.0, 30.0))
    lengths, prompts = np.array([5, 25, 15]), np.array(["a", "a", "b"], dtype=object)
    found = Targets.over_samples(lengths, prompts, bins)
    own = soft_labels(bins.index(lengths), 3)
    np.testing.assert_allclose(found.labels, [(own[0] + own[1]) / 2] * 2 + [own[2]], rtol=1e-6)
    assert found.mean.tolist() == [15, 15, 15]
    np.testing.assert_allclose(Targets.one_draw(lengths, bins).labels, own, rtol=1e-6)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(0, 5))
def test_one_row_a_prompt_is_one_of_its_rows(owner: list[int], seed: int) -> None:
    prompts = np.array([f"p{k % 4}" if k % 2 else f"q{k}" for k in owner], dtype=object)
    parts = [np.flatnonzero([p[0] == kind for p in prompts]) for kind in "pq"]
    for rng in (None, np.random.default_rng(seed)):
        once = one_row_a_prompt(Split(parts[0], parts[1], np.arange(3)), prompts, rng)
        assert once.test.tolist() == [0, 1, 2]
        for rows, found in zip(parts, (once.train, once.validation), strict=True):
            assert sorted(prompts[found]) == sorted(set(prompts[rows]))
            assert set(found) <= set(rows)
            assert (found == np.sort(found)).all()
            assert rng is not None or all(k == rows[prompts[rows] == prompts[k]][0] for k in found)


def test_targets_of_samples_do_not_count_a_prompt_by_its_samples() -> None:
    """Training rows that come four times change nothing when all rows of a prompt are one."""
    rng = np.random.default_rng(0)
    features = torch.tensor(rng.normal(size=(240, 8)), dtype=torch.float32)
    # Many lengths of 5 and 60, so that the percentiles, and the bins, stay where they are.
    lengths = rng.integers(-20, 90, 240).clip(5, 60).astype(np.int32)
    prompts = np.arange(240).astype(str).astype(object)
    settings = TrainSettings(epochs=2, targets="samples")
    train, validation, test = np.arange(150), np.arange(150, 200), np.arange(200, 240)
    once = fit(features, lengths, Split(train, validation, test), settings, prompts)
    rows = np.concatenate([np.arange(240), np.tile(np.arange(50), 3)])
    split = Split(np.concatenate([train, np.arange(240, 390)]), validation, test)
    again = fit(features[rows], lengths[rows], split, settings, prompts[rows])
    assert again.bins == once.bins
    assert np.array_equal(again.probabilities(features), once.probabilities(features))
    plain = fit(features[rows], lengths[rows], split, TrainSettings(epochs=2))
    assert not np.allclose(plain.probabilities(features), once.probabilities(features))


def test_unknown_targets_are_named() -> None:
    with pytest.raises(InputError, match="targets 'draws' is not one of rows, samples"):
        TrainSettings(targets="draws")  # type: ignore[arg-type]
