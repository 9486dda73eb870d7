"""Splits, fits and features keep what they promise: prompts stay whole, seeds decide, the truth is learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from predictor.backbone import Backbone, load_backbone  # noqa: E402
from predictor.features import SHARD_PROMPTS, PromptSignals, fit_trend, pooled_features, read_signals  # noqa: E402
from predictor.pooling import PoolingSettings  # noqa: E402
from predictor.train import TrainSettings, fit, split_by_prompt  # noqa: E402
from traces.errors import InputError  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"
TEXTS = [
    "list every bird you see .",
    "ann has four .",
    "list every bird you see .",
    "how many cards ?",
    "one .",
]


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


@given(st.lists(st.integers(1, 5), min_size=12, max_size=60), st.integers(0, 9))
def test_a_prompt_is_in_one_part_and_every_row_in_some(samples: list[int], seed: int) -> None:
    ids = np.array([f"p{k}" for k, n in enumerate(samples) for _ in range(n)], dtype=object)
    scenarios = np.full(len(ids), "s", dtype=object)
    split = split_by_prompt(ids, scenarios, seed)
    parts = (split.train, split.validation, split.test)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(ids)))
    names = [set(ids[p]) for p in parts]
    assert len(set.union(*names)) == sum(map(len, names))


def test_each_scenario_is_split_in_the_same_shares() -> None:
    ids = np.array([f"p{k}" for k in range(300)], dtype=object)
    scenarios = np.repeat(np.array(["a", "b", "c"], dtype=object), [200, 60, 40])
    split = split_by_prompt(ids, scenarios, 1)
    for scenario, count in (("a", 200), ("b", 60), ("c", 40)):
        assert (scenarios[split.train] == scenario).sum() == 0.65 * count
        assert (scenarios[split.test] == scenario).sum() == 0.2 * count


def test_too_few_prompts_are_refused() -> None:
    with pytest.raises(InputError, match="2 prompts are too few"):
        split_by_prompt(np.array(["a", "b"], object), np.array(["s", "s"], object), 0)


def problem(n: int = 600) -> tuple[torch.Tensor, np.ndarray]:
    """Lengths that follow from two of eight hidden factors, with a little noise, seen through 64 features."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 8))
    lengths = np.clip(60 + 25 * x[:, 0] - 15 * x[:, 3] + rng.normal(0, 2, n), 1, None).astype(np.int32)
    return torch.tensor(x @ rng.normal(size=(8, 64)), dtype=torch.float32), lengths


def test_a_head_learns_a_linear_truth() -> None:
    features, lengths = problem()
    ids = np.array([str(k) for k in range(600)], dtype=object)
    split = split_by_prompt(ids, np.full(600, "s", dtype=object), 0)
    fitted = fit(features, lengths, split, TrainSettings(epochs=60))
    estimate = fitted.probabilities(features[split.test]) @ fitted.bins.centres
    error = np.abs(estimate - lengths[split.test]).mean()
    constant = np.abs(np.median(lengths[split.train]) - lengths[split.test]).mean()
    assert error < 0.4 * constant


def test_a_seed_decides_the_head() -> None:
    features, lengths = problem(200)
    ids = np.array([str(k) for k in range(200)], dtype=object)
    split = split_by_prompt(ids, np.full(200, "s", dtype=object), 0)
    one, same, other = (
        fit(features, lengths, split, TrainSettings(epochs=2, seed=s)).probabilities(features)
        for s in (1, 1, 2)
    )
    assert (one == same).all()
    assert not np.allclose(one, other)


def test_threads_do_not_change_the_head() -> None:
    rng, count, size, tokens = np.random.default_rng(0), 500, 512, 70
    signals = [
        PromptSignals(
            torch.tensor(rng.normal(size=(tokens, size)), dtype=torch.float16),
            torch.tensor(rng.random(tokens), dtype=torch.float32),
            torch.tensor(rng.random(tokens), dtype=torch.float32),
            None,
        )
        for _ in range(count)
    ]
    texts = [str(k) for k in range(count)]
    lengths = rng.integers(1, 500, count).astype(np.int32)
    split = split_by_prompt(np.array(texts, dtype=object), np.full(count, "s", dtype=object), 0)

    def weights(threads: int) -> list[torch.Tensor]:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            features = pooled_features(signals, [PoolingSettings("estp", "zscore", 0.3, 0.7)], None, texts)[0]
            head = fit(features, lengths, split, TrainSettings(epochs=2)).head
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(before)
        return list(head.state_dict().values())

    for one, two in zip(weights(1), weights(2), strict=True):
        assert torch.equal(one, two)


def test_signals_come_back_from_the_cache_as_they_were(tiny: Backbone, tmp_path: Path) -> None:
    first = read_signals(tiny, TEXTS, folder=tmp_path, progress=False)
    stored = {f.name: f.stat().st_mtime_ns for f in tmp_path.iterdir()}
    again = read_signals(tiny, TEXTS, folder=tmp_path, progress=False)
    assert {f.name: f.stat().st_mtime_ns for f in tmp_path.iterdir()} == stored
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a.hidden, b.hidden)
        assert torch.equal(a.received, b.received)
    assert first[0] is first[2]  # equal prompts are read once
    assert [len(s.entropy) for s in first] == [len(tiny.encode(t)) for t in TEXTS]


def test_signals_after_a_lost_shard_are_the_same(tiny: Backbone, tmp_path: Path) -> None:
    texts = [
        f"{word} has {count} ." for word in ("ann", "tom", "leo", "ben") for count in ("one", "two", "four")
    ] * 8
    texts = [f"{'the winter was short . ' * (k // 12)}{t}" for k, t in enumerate(texts)]
    whole = read_signals(tiny, texts, folder=tmp_path / "a", progress=False)
    assert len(list((tmp_path / "a").iterdir())) == -(-len(set(texts)) // SHARD_PROMPTS) > 1
    (tmp_path / "a" / "00001.safetensors").unlink()
    again = read_signals(tiny, texts, folder=tmp_path / "a", progress=False)
    assert all(torch.equal(a.entropy, b.entropy) for a, b in zip(whole, again, strict=True))


def test_pooled_features_are_one_row_a_prompt_and_setting(tiny: Backbone, tmp_path: Path) -> None:
    signals = read_signals(tiny, TEXTS, folder=tmp_path, progress=False)
    settings = [PoolingSettings("mean"), PoolingSettings("last"), PoolingSettings("estp")]
    features = pooled_features(signals, settings, fit_trend(signals, TEXTS), TEXTS)
    assert features.shape == (3, 5, tiny.hidden_size)
    for k, one in enumerate(signals):
        torch.testing.assert_close(features[0, k], one.hidden.float().mean(0))
        torch.testing.assert_close(features[1, k], one.hidden[-1].float())
    torch.testing.assert_close(features[:, 0], features[:, 2])
