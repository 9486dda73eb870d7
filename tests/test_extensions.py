"""Extensions read what they say they read: never the lengths of the test rows, and validation alone to correct.

The lengths of the test rows are changed, and nothing that is forecast for them may change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from predictor.extensions.intervals import Conformal  # noqa: E402
from predictor.extensions.layers import Concat  # noqa: E402
from predictor.extensions.samples import OneDraw  # noqa: E402
from predictor.features import PromptSignals  # noqa: E402
from predictor.layers import LayerFeatures  # noqa: E402
from predictor.methods import Data, Forecast, Method, Predict, Reads, Rows  # noqa: E402
from predictor.train import Split, TrainSettings, split_by_prompt  # noqa: E402
from traces import Trace  # noqa: E402
from traces.estimates import QUANTILES  # noqa: E402

PROMPTS, SAMPLES, WIDTH = 150, 2, 8
SHORT = TrainSettings(epochs=3)


@pytest.fixture(scope="module")
def data() -> Data:
    """Two samples a prompt; half of the length is in layer 1's last token, half in layer 2's."""
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(PROMPTS, 2))
    lengths = np.repeat(100 + 30 * parts.sum(1), SAMPLES) + rng.normal(0, 5, PROMPTS * SAMPLES)
    last = rng.normal(size=(PROMPTS, 3, WIDTH))
    last[:, 1, 0], last[:, 2, 0] = 3 * parts[:, 0], 3 * parts[:, 1]
    states = [torch.tensor(rng.normal(size=(5, WIDTH)), dtype=torch.float16) for _ in range(PROMPTS)]
    signals = [PromptSignals(x, torch.rand(5), torch.full((5,), 0.2), None) for x in states]
    layers = torch.tensor(last, dtype=torch.float16)
    n = PROMPTS * SAMPLES
    trace = Trace(
        request_id=np.arange(n),
        arrival_s=np.zeros(n),
        prompt_tokens=np.full(n, 5),
        output_tokens=lengths.clip(1).astype(np.int32),
        prompt=np.repeat([f"prompt {k}" for k in range(PROMPTS)], SAMPLES),
    )
    rows = np.repeat(np.arange(PROMPTS), SAMPLES)
    return Data(trace, [signals[k] for k in rows], LayerFeatures(layers, layers, rows))


@dataclass(frozen=True)
class TooNarrow:
    """The training median with quantiles that lie within two tokens of it."""

    name: str = "too-narrow"
    reads: frozenset[Reads] = frozenset()

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        middle = float(np.median(data.lengths[split.train]))

        def predict(rows: Rows) -> Forecast:
            at = {q: np.full(len(rows), middle + 4 * (q - 0.5)) for q in QUANTILES}
            return Forecast(np.full(len(rows), middle), quantiles=at)

        return predict


METHODS: list[Method] = [
    Conformal("conformal", TooNarrow()),
    Concat("layers", (0.5, 1.0), SHORT),
    OneDraw(train=SHORT),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_the_lengths_of_test_rows_are_not_read_and_a_seed_decides(data: Data, method: Method) -> None:
    split = split_by_prompt(data.prompt_ids, data.scenarios, 0)
    other = data.lengths.copy()
    other[split.test] = 7
    changed = replace(data, trace=replace(data.trace, output_tokens=other))
    first, second = (method.fit(one, split, 0)(split.test) for one in (data, changed))
    assert first.mean is not None
    np.testing.assert_array_equal(first.mean, second.mean)
    for q, column in (first.quantiles or {}).items():
        np.testing.assert_array_equal(column, (second.quantiles or {})[q])
    if first.probabilities is not None:
        np.testing.assert_array_equal(first.probabilities, second.probabilities)


def test_intervals_that_are_too_narrow_are_widened(data: Data) -> None:
    split = split_by_prompt(data.prompt_ids, data.scenarios, 1)
    truth = data.lengths[split.test]
    inside = {}
    for method in (TooNarrow(), METHODS[0]):
        at = method.fit(data, split, 1)(split.test).quantiles
        assert at is not None
        inside[method.name] = ((at[0.05] <= truth) & (truth <= at[0.95])).mean()
    assert inside["too-narrow"] < 0.2
    assert inside["conformal"] > 0.8


def test_two_layers_tell_more_than_one(data: Data) -> None:
    split = split_by_prompt(data.prompt_ids, data.scenarios, 2)
    settings = TrainSettings(epochs=40, learning_rate=3e-3)
    error = {}
    for depths in ((1.0,), (0.5, 1.0)):
        mean = Concat("layers", depths, settings).fit(data, split, 2)(split.test).mean
        assert mean is not None
        error[depths] = np.abs(mean - data.lengths[split.test]).mean()
    assert error[0.5, 1.0] < 0.8 * error[1.0,]
