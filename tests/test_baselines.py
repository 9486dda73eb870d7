"""Published baselines against brute force: ListMLE over all orders, TRAIL's filter over all hidden paths, ridge
against its normal equations; and that each finds what is written into made-up data, the same for a seed.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from predictor.baselines.encoder import FineTuning, Ltr, SsjfMc, SsjfReg, class_edges, load_encoder  # noqa: E402
from predictor.baselines.layerwise import LayerHead, Ridge, ridge_path  # noqa: E402
from predictor.baselines.listwise import LtrHidden, list_mle  # noqa: E402
from predictor.baselines.pooled import Pooled  # noqa: E402
from predictor.baselines.simple import ScenarioMedian  # noqa: E402
from predictor.baselines.trail import Trail, bin_of, equal_bins, filtered, refine, transition  # noqa: E402
from predictor.catalogue import NEED_ENCODER, catalogue  # noqa: E402
from predictor.evaluate import random_splits  # noqa: E402
from predictor.features import PromptSignals  # noqa: E402
from predictor.layers import LayerFeatures  # noqa: E402
from predictor.methods import Data, Forecast, Method  # noqa: E402
from predictor.scores import kendall_tau  # noqa: E402
from predictor.train import Split, TrainSettings  # noqa: E402
from traces import Trace  # noqa: E402
from traces.errors import InputError  # noqa: E402

N, LAYERS, WIDTH, TOLD = 360, 5, 24, 2
WORDS = ("alpha", "beta", "gamma", "delta")


@pytest.fixture(scope="module")
def data() -> Data:
    """Lengths that one direction of layer 2 tells, in the mean and in the last token; words of the prompt too."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=N)
    lengths = np.clip(np.round(150 + 60 * value), 1, None).astype(int)
    states = rng.normal(size=(2, N, LAYERS, WIDTH))
    states[:, :, TOLD, 0] += 3 * value
    mean, last = (torch.tensor(s, dtype=torch.float16) for s in states)
    # The number of "alpha" among eight words rises with the length.
    texts = [
        " ".join(["alpha"] * k + list(rng.choice(WORDS[1:], 8 - k))) + f" {i}"
        for i, k in enumerate(np.clip(np.round(4 + 2 * value), 0, 8).astype(int))
    ]
    trace = Trace(
        request_id=np.arange(N),
        arrival_s=np.zeros(N),
        prompt_tokens=np.full(N, 8),
        output_tokens=lengths,
        prompt=texts,
    )
    signals = [PromptSignals(last[i, TOLD][None], torch.ones(1), torch.ones(1), None) for i in range(N)]
    return Data(trace, signals, LayerFeatures(mean, last, np.arange(N)))


@pytest.fixture(scope="module")
def split(data: Data) -> Split:
    return random_splits(data, (0,))[0]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> FineTuning:
    """A one-layer BERT of width 16 with random weights, over the words of the made-up prompts."""
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocabulary = {word: k for k, word in enumerate(words)}
    transformers.BertTokenizerFast(vocab=vocabulary).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.0, initializer_range=0.3,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    return FineTuning(str(folder), learning_rate=5e-3, batch_size=8, epochs=8, patience=3)


def forecast(method: Method, data: Data, split: Split, seed: int = 0) -> Forecast:
    return method.fit(data, split, seed)(split.test)


def mae(found: Forecast, data: Data, split: Split) -> float:
    assert found.mean is not None
    return float(np.abs(found.mean - data.lengths[split.test]).mean())


def constant(data: Data, split: Split) -> float:
    return float(np.abs(np.median(data.lengths[split.train]) - data.lengths[split.test]).mean())


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_list_mle_is_minus_the_log_of_the_plackett_luce_probability(
    scores: list[float], random: object
) -> None:
    lengths = list(range(len(scores)))
    random.shuffle(lengths)  # type: ignore[attr-defined]

    def probability(order: tuple[int, ...]) -> float:
        # Draw without replacement, each item in proportion to exp(score).
        left, product = list(range(len(scores))), 1.0
        for k in order:
            product *= np.exp(scores[k]) / sum(np.exp(scores[j]) for j in left)
            left.remove(k)
        return product

    orders = list(itertools.permutations(range(len(scores))))
    assert sum(map(probability, orders)) == pytest.approx(1)
    right = tuple(np.argsort(lengths))
    expected = -np.log(probability(right)) / len(scores)
    got = list_mle(torch.tensor(scores, dtype=torch.float64), torch.tensor(lengths))
    assert float(got) == pytest.approx(expected, abs=1e-9)


def test_list_mle_gradient_agrees_with_differences() -> None:
    scores = torch.tensor([0.3, -1.0, 2.0, 0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: list_mle(s, torch.tensor([5, 2, 9, 7])), (scores,))


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.integers(1, 2))
def test_trail_refinement_is_the_sum_over_all_hidden_paths(seed: int, questions: int, tokens: int) -> None:
    rng, count, width = np.random.default_rng(seed), 3, 7.5
    first, later = rng.dirichlet(np.ones(count)), rng.dirichlet(np.ones(count), questions)
    got = filtered(first, later, width, tokens)
    # Every path of bins, one step a token: one bin down with probability 1/width, never below the lowest.
    for asked in range(questions + 1):
        weight = np.zeros(count)
        for path in itertools.product(range(count), repeat=asked * tokens + 1):
            chance = first[path[0]]
            for step, (a, b) in enumerate(itertools.pairwise(path), start=1):
                stay = 1.0 if a == 0 else 1 - 1 / width
                chance *= stay if a == b else 1 / width if b == a - 1 else 0.0
                if chance and step % tokens == 0:
                    chance *= later[step // tokens - 1][b]
                if not chance:
                    break
            weight[path[-1]] += chance
        np.testing.assert_allclose(got[asked], weight / weight.sum(), atol=1e-12)


def test_transition_keeps_all_mass_and_moves_it_down_by_hand() -> None:
    matrix = transition(3, 4.0)
    np.testing.assert_array_equal(matrix, [[1, 0.25, 0], [0, 0.75, 0.25], [0, 0, 0.75]])
    np.testing.assert_allclose(transition(10, 51.2, 16).sum(0), 1)
    np.testing.assert_array_equal(refine(np.array([1.0, 0.0]), np.array([0.0, 1.0])), [1.0, 0.0])


def test_trail_bins_reach_to_the_longest_training_length() -> None:
    edges = equal_bins(np.array([3, 500]))
    np.testing.assert_allclose(np.diff(edges), 50)
    assert bin_of(np.array([1, 49, 50, 499, 900]), edges).tolist() == [0, 0, 1, 9, 9]


@given(st.integers(0, 2**32 - 1))
def test_ridge_path_solves_the_penalised_normal_equations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(12, 4)), rng.normal(5, 2, 12)
    for penalty, (weights, intercept) in zip((0.1, 2.0), ridge_path(x, y, (0.1, 2.0)), strict=True):
        residual = y - x @ weights - intercept
        assert residual.sum() == pytest.approx(0, abs=1e-9)  # derivative by the intercept
        np.testing.assert_allclose(x.T @ residual, penalty * 12 * weights, atol=1e-9)  # and by the weights


def test_ridge_and_head_find_the_layer_that_tells(data: Data, split: Split) -> None:
    for method in (
        Ridge(),
        Ridge("ridge-mean", "mean"),
        LayerHead(layers=(0.0, 0.5, 1.0), train=TrainSettings(0.01, batch_size=16, epochs=40)),
    ):
        found = forecast(method, data, split)
        assert found.settings["layer"] == TOLD
        assert mae(found, data, split) < 0.6 * constant(data, split)


def test_trail_reads_its_middle_layer(data: Data, split: Split) -> None:
    found = forecast(Trail(), data, split)
    assert found.settings["layer"] == 1  # 11/32 of 4 layers
    told = LayerFeatures(data.layer_features().mean.roll(-1, 1), data.layer_features().last, np.arange(N))
    moved = Data(data.trace, data.signals, told)
    assert mae(forecast(Trail(), moved, split), data, split) < 0.6 * constant(data, split)
    assert found.probabilities is not None
    assert found.probabilities.shape == (len(split.test), 10)


def test_ltr_ranks_and_gives_no_tokens(data: Data, split: Split) -> None:
    found = forecast(LtrHidden(), data, split)
    assert found.mean is None
    assert kendall_tau(found.order, data.lengths[split.test]) > 0.5


def test_encoders_learn_what_the_words_tell(data: Data, split: Split, encoder: FineTuning) -> None:
    for method in (SsjfReg(encoder), SsjfMc(encoder)):
        assert mae(forecast(method, data, split), data, split) < 0.75 * constant(data, split)
    assert kendall_tau(forecast(Ltr(encoder), data, split).order, data.lengths[split.test]) > 0.4


@pytest.mark.parametrize("name", ["ridge-last", "trail", "ltr-hidden", "ssjf-mc", "ltr"])
def test_a_seed_decides(name: str, data: Data, split: Split, encoder: FineTuning) -> None:
    short = FineTuning(encoder.encoder, 1e-3, epochs=1)
    method = catalogue(TrainSettings(epochs=2), short)[name]
    one, same = (forecast(method, data, split, 1).order for _ in range(2))
    assert (one == same).all()
    if name != "ridge-last":  # the one without randomness
        assert not np.allclose(one, forecast(method, data, split, 2).order)


def test_test_lengths_are_never_read(data: Data, split: Split, encoder: FineTuning) -> None:
    wrong = data.lengths.copy()
    wrong[split.test] = 1
    blind = Data(data.trace.replace(output_tokens=wrong), data.signals, data.layers)
    methods = catalogue(TrainSettings(epochs=1), FineTuning(encoder.encoder, 1e-3, epochs=1))
    for method in methods.values():
        if not (
            isinstance(method, Pooled) and len(method.candidates) > 1
        ):  # the grids are of one kind, and slow
            one, other = (forecast(method, d, split).order for d in (data, blind))
            np.testing.assert_array_equal(one, other, method.name)


def test_classes_by_hand() -> None:
    lengths = np.arange(1, 101)
    np.testing.assert_allclose(class_edges(lengths), [1, 25.75, 50.5, 75.25, 99.01, 101])
    # Over a quarter are cut at 100: the upper percentiles coincide and that class is one.
    cut = np.minimum(lengths, 70)
    assert class_edges(cut).tolist() == [1, 25.75, 50.5, 70, 71]
    with pytest.raises(InputError, match="nearly all"):
        class_edges(np.full(9, 5))


def test_a_scenario_that_training_never_saw_gets_the_overall_median(data: Data) -> None:
    seen = data.trace.replace(scenario=["a"] * (N - 1) + ["b"])
    rows = np.arange(N - 1)
    found = ScenarioMedian().fit(Data(seen), Split(rows, rows, rows), 0)(np.array([N - 1])).mean
    assert found is not None
    assert found[0] == np.median(data.lengths[: N - 1])


def test_a_missing_encoder_is_a_sentence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="cannot load the encoder '/nowhere/bert'"):
            load_encoder(str(Path("/nowhere/bert")))


def test_layers_that_were_not_read_are_named(data: Data, split: Split) -> None:
    with pytest.raises(InputError, match="every layer"):
        Ridge().fit(Data(data.trace), split, 0)
    assert set(NEED_ENCODER) < set(catalogue())
