"""The evaluation's own rules: equal splits, choice on validation alone, differences that add up.

Signals and lengths are made up here so that the answer is known: the length is written into one token, which
has the highest entropy, so that entropy pooling finds it and mean pooling does not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.evaluation import as_json, render  # noqa: E402
from predictor.baselines.pooled import GRIDS, Pooled  # noqa: E402
from predictor.baselines.simple import Constant, PromptLength, ScenarioMedian  # noqa: E402
from predictor.cells import Cells, fingerprint_of  # noqa: E402
from predictor.evaluate import (  # noqa: E402
    Evaluation,
    evaluate,
    noise_floor,
    random_splits,
    smaller_splits,
    splits_without,
)
from predictor.features import PromptSignals  # noqa: E402
from predictor.methods import Data, Method  # noqa: E402
from predictor.pooling import PoolingSettings  # noqa: E402
from predictor.train import TrainSettings  # noqa: E402
from traces import Trace  # noqa: E402
from traces.errors import InputError  # noqa: E402

PROMPTS, SAMPLES, WIDTH = 300, 2, 48
SMALL = {
    "mean": GRIDS["mean"],
    "last": GRIDS["last"],
    "egtp": (PoolingSettings("egtp", "zscore", lambda2=0.0), PoolingSettings("egtp", "zscore", lambda2=1.5)),
    "semantic": (PoolingSettings("semantic", "zscore"),),
    "estp": (PoolingSettings("estp", "zscore", lambda1=0.0, lambda2=1.5),),
    "estp-permuted": (PoolingSettings("estp", "zscore", lambda1=0.3, lambda2=0.3, permuted=True),),
}


METHODS: list[Method] = [
    Constant(),
    ScenarioMedian(),
    PromptLength(),
    *(Pooled(name, grid, TrainSettings(learning_rate=3e-3, epochs=40)) for name, grid in SMALL.items()),
]


@pytest.fixture(scope="module")
def made() -> Data:
    rng = np.random.default_rng(0)
    code = torch.tensor(rng.normal(size=(2, WIDTH)), dtype=torch.float32)
    signals, lengths = [], []
    for _ in range(PROMPTS):
        count, value, spot = int(rng.integers(12, 30)), rng.normal(), int(rng.integers(1, 10))
        hidden = torch.tensor(rng.normal(0, 2.0, (count, WIDTH)), dtype=torch.float32)
        hidden[spot] = 3 * value * code[0] + code[1]
        entropy = torch.full((count,), 1.0)
        entropy[spot] = 9.0
        received = torch.tensor(rng.dirichlet(np.ones(count)), dtype=torch.float32)
        signals.append(PromptSignals(hidden.half(), entropy, received, None))
        lengths.append(max(1, round(100 + 40 * value)))
    n = PROMPTS * SAMPLES
    noisy = np.repeat(lengths, SAMPLES) + np.tile([0, 4], PROMPTS)
    trace = Trace(
        request_id=np.arange(n),
        arrival_s=np.zeros(n),
        prompt_tokens=np.repeat([len(s.entropy) for s in signals], SAMPLES),
        output_tokens=noisy,
        prompt=np.repeat([f"prompt {k}" for k in range(PROMPTS)], SAMPLES),
        scenario=np.repeat(["a", "b"], n // 2),
    )
    return Data(trace, [s for s in signals for _ in range(SAMPLES)])


@pytest.fixture(scope="module")
def result(made: Data) -> Evaluation:
    return evaluate(made, METHODS, random_splits(made, (0, 1)), progress=False)


def test_entropy_pooling_finds_the_token_that_tells(result: Evaluation) -> None:
    mae = {r["method"]: r["mae"] for r in result.table() if r["scenario"] == "all"}
    assert mae["egtp"] < 0.6 * mae["mean"]
    assert mae["egtp"] < 0.5 * mae["constant"]
    assert mae["prompt-length"] > 0.8 * mae["constant"]


def test_the_choice_is_the_least_validation_loss(result: Evaluation) -> None:
    chosen = [o.forecast.settings for o in result.outcomes if o.method == "egtp"]
    for settings in chosen:
        tried = settings["candidates"]
        assert len(tried) == 2
        assert settings["lambda2"] == min(tried, key=lambda v: v["validation_loss"])["lambda2"] == 1.5


def test_differences_are_those_of_the_table(result: Evaluation) -> None:
    mae = {r["method"]: r["mae"] for r in result.table() if r["scenario"] == "all"}
    mean, low, high = result.difference("egtp", "mean")
    assert mean == pytest.approx(mae["egtp"] - mae["mean"])
    assert low < mean < high < 0


def test_every_method_meets_the_same_test_rows(result: Evaluation) -> None:
    for seed, split in result.splits.items():
        sizes = {len(o.forecast.order) for o in result.outcomes if o.seed == seed}
        assert sizes == {len(split.test)}


def test_noise_floor_is_the_gap_between_answers(made: Data) -> None:
    assert noise_floor(made.trace) == pytest.approx(4.0)


def test_unknown_method_is_named(result: Evaluation) -> None:
    with pytest.raises(InputError, match="no method 'oracle'"):
        result.difference("estp", "oracle")


def test_tables_mark_the_best_and_json_holds_all(result: Evaluation) -> None:
    text = render(result)
    assert "within noise" in text or "better" in text
    assert text.count("*") >= 4
    stored = json.loads(as_json(result, "made up", {}))
    assert len(stored["table"]) == 3 * len(METHODS)
    assert len(stored["per_seed"]) == 2 * 3 * len(METHODS)
    tried = [one for row in stored["chosen"] for one in row["candidates"]]
    assert len(tried) == 2 * sum(map(len, SMALL.values()))


def test_a_scenario_left_out_is_not_trained_on(made: Data) -> None:
    plain = random_splits(made, (0, 1))
    for seed, split in splits_without(made, "a", plain).items():
        assert set(made.scenarios[split.train]) == set(made.scenarios[split.validation]) == {"b"}
        assert set(made.scenarios[split.test]) == {"a"}
        assert set(split.test) <= set(plain[seed].test)
    with pytest.raises(InputError, match="at least two"):
        splits_without(Data(made.trace.replace(scenario=None)), "-", plain)


def test_smaller_training_parts_are_nested_and_keep_prompts_whole(made: Data) -> None:
    plain = random_splits(made, (3,))
    quarter, half = (smaller_splits(made, share, plain)[3] for share in (0.25, 0.5))
    assert set(quarter.train) < set(half.train) < set(plain[3].train)
    assert (half.test == plain[3].test).all()
    assert (half.validation == plain[3].validation).all()
    for part in (quarter, half):
        kept = set(made.prompt_ids[part.train])
        assert len(part.train) == SAMPLES * len(kept)
    assert len(half.train) == pytest.approx(len(plain[3].train) / 2, abs=SAMPLES)
    with pytest.raises(InputError, match=r"\(0, 1\], not 1.5"):
        smaller_splits(made, 1.5, plain)


class Counting:
    """A method that counts its fits."""

    name, reads, fits = "counting", frozenset(), 0

    def __init__(self, inner: Method) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"Counting({self.inner!r})"

    def fit(self, data: Data, split: Any, seed: int) -> Any:
        type(self).fits += 1
        return self.inner.fit(data, split, seed)


def test_finished_cells_are_read_back_and_not_fitted_again(made: Data, tmp_path: Path) -> None:
    cells = Cells(tmp_path / "cells", fingerprint_of(made, "made up"))
    methods = [Counting(Pooled("mean", GRIDS["mean"], TrainSettings(epochs=2)))]
    splits = random_splits(made, (0, 1))
    whole = as_json(evaluate(made, methods, splits, cells=cells, progress=False), "m", {})
    assert Counting.fits == 2
    sorted((tmp_path / "cells").iterdir())[0].unlink()  # as if killed before this one was done
    again = as_json(evaluate(made, methods, splits, cells=cells, progress=False), "m", {})
    assert Counting.fits == 3
    assert whole == again
    other = Cells(cells.folder, fingerprint_of(made, "another model"))
    assert other.read(methods[0], splits[0], 0) is None
