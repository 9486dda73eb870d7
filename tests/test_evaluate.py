"""The evaluation's own rules: equal splits, choice on validation alone, differences that add up.

Signals and lengths are made up here so that the answer is known: the length is written into one token, which
has the highest entropy, so that entropy pooling finds it and mean pooling does not.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.evaluation import as_json, render  # noqa: E402
from predictor.evaluate import GRIDS, Evaluation, evaluate, noise_floor  # noqa: E402
from predictor.features import PromptSignals  # noqa: E402
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


@pytest.fixture(scope="module")
def made() -> tuple[Trace, list[PromptSignals]]:
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
    return trace, [s for s in signals for _ in range(SAMPLES)]


@pytest.fixture(scope="module")
def result(made: tuple[Trace, list[PromptSignals]]) -> Evaluation:
    trace, signals = made
    return evaluate(
        trace,
        signals,
        seeds=(0, 1),
        settings=TrainSettings(learning_rate=3e-3, epochs=40),
        grids=SMALL,
        progress=False,
    )


def test_entropy_pooling_finds_the_token_that_tells(result: Evaluation) -> None:
    mae = {r["method"]: r["mae"] for r in result.table() if r["scenario"] == "all"}
    assert mae["egtp"] < 0.6 * mae["mean"]
    assert mae["egtp"] < 0.5 * mae["constant"]
    assert mae["prompt-length"] > 0.8 * mae["constant"]


def test_the_choice_is_the_least_validation_loss(result: Evaluation) -> None:
    for outcome in result.outcomes:
        if outcome.method == "egtp":
            rows = [v for v in result.validation if v["seed"] == outcome.seed and v["method"] == "egtp"]
            assert len(rows) == 2
            assert (
                outcome.settings["lambda2"] == min(rows, key=lambda v: v["validation_loss"])["lambda2"] == 1.5
            )


def test_differences_are_those_of_the_table(result: Evaluation) -> None:
    mae = {r["method"]: r["mae"] for r in result.table() if r["scenario"] == "all"}
    mean, low, high = result.difference("egtp", "mean")
    assert mean == pytest.approx(mae["egtp"] - mae["mean"])
    assert low < mean < high < 0


def test_every_method_meets_the_same_test_rows(result: Evaluation) -> None:
    for seed, split in result.splits.items():
        sizes = {len(o.estimate) for o in result.outcomes if o.seed == seed}
        assert sizes == {len(split.test)}


def test_noise_floor_is_the_gap_between_answers(made: tuple[Trace, list[PromptSignals]]) -> None:
    assert noise_floor(made[0]) == pytest.approx(4.0)


def test_unknown_method_is_named(result: Evaluation) -> None:
    with pytest.raises(InputError, match="no method 'estp' or 'oracle'"):
        result.difference("estp", "oracle")


def test_tables_mark_the_best_and_json_holds_all(
    result: Evaluation, made: tuple[Trace, list[PromptSignals]]
) -> None:
    text = render(result, made[0])
    assert "within noise" in text or "better" in text
    assert text.count("*") >= 4
    stored = json.loads(as_json(result, made[0], "made up"))
    assert len(stored["table"]) == 3 * (3 + len(SMALL) + 2)
    assert len(stored["validation"]) == 2 * (sum(map(len, SMALL.values())) + 2)
