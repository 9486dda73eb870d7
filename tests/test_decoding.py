"""States read per layer and while decoding are those of transformers' own forward pass, and survive a kill."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.cli import main  # noqa: E402
from predictor.backbone import Backbone, load_backbone  # noqa: E402
from predictor.baselines.trail import Probe  # noqa: E402
from predictor.decoding import SHARD_ANSWERS, balanced_rows, read_answer_states  # noqa: E402
from predictor.evaluate import random_splits  # noqa: E402
from predictor.layers import prompt_layers, read_layers  # noqa: E402
from predictor.methods import Data  # noqa: E402
from predictor.remaining import METHODS, Remaining, evaluate_remaining, progressive_table  # noqa: E402
from traces import Trace, write_trace  # noqa: E402
from traces.errors import InputError  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"
EVERY = 4


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


@pytest.fixture(scope="module")
def trace(tiny: Backbone) -> Trace:
    """Answers whose length follows from a word of the prompt; every fifth is cut."""
    rng, n = np.random.default_rng(0), 60
    counts = rng.integers(1, 4, n)
    names = rng.choice(["ann", "tom", "leo", "ben"], n)
    texts = [
        f"{name} has {('one', 'two', 'four')[k - 1]} . {i}"
        for i, (name, k) in enumerate(zip(names, counts, strict=True))
    ]
    answers = ["the winter was short . " * int(3 * k) for k in counts]
    tokens = [len(tiny.tokenizer(a, add_special_tokens=False)["input_ids"]) for a in answers]
    cut = np.arange(n) % 5 == 0
    return Trace(
        request_id=[f"r{i}" for i in range(n)],
        arrival_s=np.zeros(n),
        prompt_tokens=[len(tiny.encode(t)) for t in texts],
        output_tokens=np.array(tokens) + ~cut,
        prompt=texts,
        response=answers,
        scenario=["a", "b"] * (n // 2),
        extra={"censored": cut},
    )


def states_of(tiny: Backbone, ids: list[int]) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        found: tuple[torch.Tensor, ...] = tiny.model(
            torch.tensor([ids]), output_hidden_states=True
        ).hidden_states
    return found


def test_layers_are_those_of_output_hidden_states(tiny: Backbone) -> None:
    texts = ["list every bird you see .", "ann has four .", "one ."]
    encoded = [tiny.encode(t) for t in texts]
    mean, last = prompt_layers(tiny.model, encoded)
    for k, ids in enumerate(encoded):
        for layer, states in enumerate(states_of(tiny, ids)):
            torch.testing.assert_close(mean[k, layer], states[0].mean(0), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(last[k, layer], states[0, -1], atol=1e-4, rtol=1e-4)


def test_layers_come_back_from_the_cache_in_row_order(tiny: Backbone, tmp_path: Path) -> None:
    texts = ["one .", "ann has four .", "one .", "list every bird you see ."]
    first = read_layers(tiny, texts, folder=tmp_path, progress=False)
    again = read_layers(tiny, texts, folder=tmp_path, progress=False)
    assert torch.equal(first.mean_of(2), again.mean_of(2))
    mean, last = prompt_layers(tiny.model, [tiny.encode(t) for t in texts])
    torch.testing.assert_close(first.mean_of(1), mean[:, 1], atol=0.02, rtol=2e-3)
    torch.testing.assert_close(first.last_of(1), last[:, 1], atol=0.02, rtol=2e-3)
    assert first.mean_of(0).shape == (4, tiny.hidden_size)


def test_states_are_those_from_which_the_next_token_is_sampled(
    tiny: Backbone, trace: Trace, tmp_path: Path
) -> None:
    rows = np.array([0, 3, 7])
    got = read_answer_states(tiny, trace, rows, 2, every=EVERY, folder=tmp_path, progress=False)
    assert trace.response is not None
    assert trace.prompt is not None
    assert got.lengths.tolist() == trace.output_tokens[rows].tolist()
    for k, row in enumerate(rows):
        prompt = tiny.encode(trace.prompt[row])
        answer = list(tiny.tokenizer(trace.response[row], add_special_tokens=False)["input_ids"])
        mine = got.answer == k
        assert got.generated[mine].tolist() == list(range(EVERY, trace.output_tokens[row], EVERY))
        for state, generated in zip(got.states[mine], got.generated[mine], strict=True):
            # What a server has computed after that many tokens: the prompt and those tokens, and no more.
            hidden = states_of(tiny, prompt + answer[:generated])
            torch.testing.assert_close(state[0].float(), hidden[2][0, -1], atol=0.02, rtol=4e-3)
            torch.testing.assert_close(state[1].float(), hidden[-1][0, -1], atol=0.02, rtol=4e-3)
        torch.testing.assert_close(
            got.prompt[k, 1].float(), states_of(tiny, prompt)[-1][0].mean(0), atol=0.02, rtol=4e-3
        )
    assert (got.remaining == got.lengths[got.answer] - got.generated).all()
    assert got.remaining.min() >= 1


def test_an_answer_shorter_than_the_interval_has_no_states(
    tiny: Backbone, trace: Trace, tmp_path: Path
) -> None:
    rows = np.array([0, 3])
    every = int(trace.output_tokens[rows].max()) + 5
    got = read_answer_states(tiny, trace, rows, 1, every=every, folder=tmp_path, progress=False)
    assert len(got.states) == len(got.answer) == len(got.generated) == 0
    assert got.prompt.shape == (2, 2, tiny.hidden_size)


def test_test_answers_are_those_of_the_evaluation(trace: Trace, result: Remaining) -> None:
    for seed, split in random_splits(Data(trace), (0, 1)).items():
        judged = result.states.rows[np.unique(result.answer[result.test(seed)])]
        assert set(judged) == set(split.test) & set(result.states.rows)


def test_a_lost_shard_is_read_again_to_the_same_states(tiny: Backbone, trace: Trace, tmp_path: Path) -> None:
    rows = np.arange(60)
    whole = read_answer_states(tiny, trace, rows, 1, every=EVERY, folder=tmp_path, progress=False)
    assert len(list(tmp_path.iterdir())) == -(-60 // SHARD_ANSWERS) > 1
    (tmp_path / "00001.safetensors").unlink()
    kept = (tmp_path / "00000.safetensors").stat().st_mtime_ns
    again = read_answer_states(tiny, trace, rows, 1, every=EVERY, folder=tmp_path, progress=False)
    assert (tmp_path / "00000.safetensors").stat().st_mtime_ns == kept
    assert torch.equal(whole.states, again.states)


def test_balanced_rows_are_prompts_of_their_own_in_equal_shares(trace: Trace) -> None:
    rows = balanced_rows(trace, 20)
    assert trace.scenario is not None
    assert (trace.scenario[rows] == "a").sum() == (trace.scenario[rows] == "b").sum() == 10
    assert len(set(trace.prompt[rows])) == 20  # type: ignore[index]
    assert (rows == balanced_rows(trace, 20)).all()


def test_answers_without_text_are_named(tiny: Backbone, trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="request 'r3' has no response"):
        read_answer_states(tiny, trace.replace(response=None), np.array([3]), 1, folder=tmp_path)


@pytest.fixture(scope="module")
def result(tiny: Backbone, trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Remaining:
    folder = tmp_path_factory.mktemp("states")
    states = read_answer_states(tiny, trace, np.arange(60), 2, every=EVERY, folder=folder, progress=False)
    splits = random_splits(Data(trace), (0, 1))
    return evaluate_remaining(trace, states, splits, Probe(epochs=6), progress=False)


def test_moments_are_in_order_and_truth_counts_down(result: Remaining) -> None:
    for k in range(60):
        mine = result.answer == k
        assert result.at_tokens[mine].tolist() == [EVERY * s for s in range(mine.sum())]
        assert (result.at_tokens[mine] + result.remaining[mine] == result.states.lengths[k]).all()


def test_progress_makes_estimates_better_than_a_constant(result: Remaining) -> None:
    mae = {r["method"]: r["mae"] for r in result.table() if r["from_tokens"] == 0 and r["to_tokens"] > 0}
    assert mae["trail"] < mae["constant"]
    assert mae["plp"] < mae["constant"]
    mean, low, high = result.difference("trail", "constant")
    assert low <= mean <= high
    assert mean < 0


def test_the_progressive_table_has_every_moment_of_the_test_answers(result: Remaining) -> None:
    table = progressive_table(result, 0)
    assert table.columns == ["request_id", "predictor", "at_tokens", "mean"]
    assert table["predictor"].unique(maintain_order=True).to_list() == list(METHODS)
    one = table.filter(pl.col("predictor") == "plp")
    assert len(one) == int(result.test(0).sum())
    assert (one["mean"] >= 1).all()
    counts = one.group_by("request_id").len()
    assert len(counts) == len(result.splits[0].test)


def test_remaining_command(
    trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path / "cache"))
    write_trace(trace, tmp_path / "trace.parquet")
    files = [tmp_path / name for name in ("one.json", "two.json")]
    for file in files:
        command = ["remaining", tmp_path / "trace.parquet", "--model", TINY, "--device", "cpu", "--answers", "40",
                   "--every", "4", "--seeds", "1", "--out", file, "--estimates", tmp_path / "e.parquet"]  # fmt: skip
        assert main([str(part) for part in command]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert {r["method"] for r in json.loads(files[0].read_text())["table"]} == set(METHODS)
    assert "trail - at-arrival" in capsys.readouterr().out
    assert pl.read_parquet(tmp_path / "e.parquet").columns == ["request_id", "predictor", "at_tokens", "mean"]


def test_evaluate_lists_plp_beside_the_other_methods(
    trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path / "cache"))
    write_trace(trace, tmp_path / "trace.parquet")
    command = ["evaluate", tmp_path / "trace.parquet", "--methods", "constant", "--model", TINY, "--device", "cpu",
               "--seeds", "1", "--remaining", "40", "--out", tmp_path / "out.json"]  # fmt: skip
    assert main([str(part) for part in command]) == 0
    assert {
        r["method"] for r in json.loads((tmp_path / "out.json").read_text())["remaining"]["table"]
    } == set(METHODS)
    assert "plp - trail" in capsys.readouterr().out


def test_too_few_answers_are_one_sentence(tiny: Backbone, trace: Trace, tmp_path: Path) -> None:
    states = read_answer_states(tiny, trace, np.arange(2), 1, every=EVERY, folder=tmp_path, progress=False)
    with pytest.raises(InputError, match="2 answers are too few"):
        evaluate_remaining(trace, states, random_splits(Data(trace), (0,)), progress=False)
