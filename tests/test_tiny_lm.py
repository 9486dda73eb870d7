"""The stored tiny language model answers as its grammar says: the truth is tools/tiny_grammar.py, whose
expected answer lengths are closed sums and are checked here by hand and by sampling."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "data" / "tiny_lm"
sys.path.insert(0, str(ROOT / "tools"))

import make_tiny_lm as tiny  # noqa: E402  (a script, found by the path above)
import tiny_grammar as grammar  # noqa: E402


@pytest.fixture(scope="module")
def model_and_tokenizer() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(FOLDER)


def lengths(answers: list[str]) -> np.ndarray:
    return np.array([len(answer.split()) for answer in answers])


def test_expected_length_by_hand() -> None:
    # "two tips ." 3, then twice: ("one : rest" 3, half the time "in the spring" 3, "." 1), then the end: 1
    plan = [(1.0, "two tips ."), *[(1.0, "one : DO"), (0.5, "in the SEASON"), (1.0, ".")] * 2]
    task = grammar.Task("rl", "", [(0.75, plan), (0.25, [(1.0, "no .")])])
    assert task.expected_tokens == 1 + 0.75 * (3 + 2 * (3 + 1.5 + 1)) + 0.25 * 2
    assert task.parses("two tips . one : walk in the winter . one : rest .")
    assert task.parses("no .")
    assert not task.parses("two tips . one : walk in the winter .")
    assert not task.parses("two tips . one : bridge . one : rest .")


def test_expected_length_is_the_mean_of_sampled_answers() -> None:
    rng = np.random.default_rng(3)
    for task in grammar.tasks(12, seed=4):
        drawn = lengths([task.answer(rng) for _ in range(400)]) + 1
        assert abs(drawn.mean() - task.expected_tokens) <= 5 * drawn.std() / 20
        assert task.parses(task.answer(rng))


def test_neither_prompt_length_nor_scenario_gives_the_length_away() -> None:
    tasks = grammar.tasks(1500, seed=5)
    expected = np.array([task.expected_tokens for task in tasks])
    words = np.array([len(task.prompt.split()) for task in tasks])
    assert words.min() >= 8
    assert words.max() <= 60
    assert abs(np.corrcoef(words, expected)[0, 1]) < 0.15
    means = [expected[[t.scenario == name for t in tasks]].mean() for name in grammar.SCENARIOS]
    assert max(means) - min(means) < 0.6 * expected.std()


def test_stored_prompts_are_the_grammars() -> None:
    rows = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text().splitlines()]
    assert rows == grammar.prompts(len(rows), seed=0)
    assert len({row["prompt_id"] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows)


def test_model_is_a_small_llama_with_grouped_queries(model_and_tokenizer: tuple[Any, Any]) -> None:
    model, tokenizer = model_and_tokenizer
    assert sum(file.stat().st_size for file in FOLDER.glob("*.safetensors")) <= 4_000_000
    assert model.config.model_type == "llama"
    assert model.config.num_key_value_heads < model.config.num_attention_heads
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id
    text = tiny.chat(tokenizer, "be brief. name two tips on work.")
    assert text == "<bos><user> be brief. name two tips on work. <assistant>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == 12
    assert tokenizer.unk_token_id not in ids


def test_sampled_lengths_follow_the_grammar(model_and_tokenizer: tuple[Any, Any]) -> None:
    """Best where the rule is a number word (rl), least where items must be found in a text (longseq).

    When it was made, `tools/make_tiny_lm.py` printed r = 0.96 (rl), 0.84 (reasoning) and 0.78 (all), and 96% of
    the rl answers in the grammar.
    """
    tasks = grammar.tasks(192, seed=0)
    model, tokenizer = model_and_tokenizer
    answers = tiny.sample(model, tokenizer, [tiny.chat(tokenizer, t.prompt) for t in tasks], seed=1)
    drawn = lengths(answers)
    expected = np.array([t.expected_tokens for t in tasks])
    scenario = np.array([t.scenario for t in tasks])
    assert all(answer.endswith(" <eos>") for answer in answers)
    for part, least in ((scenario == "rl", 0.9), (scenario == "reasoning", 0.7), (scenario != "", 0.6)):
        assert np.corrcoef(drawn[part], expected[part])[0, 1] > least
    parsed = [
        t.parses(a.removesuffix(" <eos>")) for t, a in zip(tasks, answers, strict=True) if t.scenario == "rl"
    ]
    assert np.mean(parsed) > 0.85


def test_number_and_level_words_rule_the_length(model_and_tokenizer: tuple[Any, Any]) -> None:
    """The same words in other places, where they say nothing about the answer, change nothing."""
    short = "the door was fully open. name one tips on work. page six was torn. keep it short."
    long = "explain it fully. page one was torn. name six tips on work. the winter was short."
    model, tokenizer = model_and_tokenizer
    texts = [tiny.chat(tokenizer, prompt) for prompt in [short] * 8 + [long] * 8]
    drawn = lengths(tiny.sample(model, tokenizer, texts, seed=2))
    # by the grammar: 6 to 10 tokens, and 60 to 128
    assert drawn[:8].max() < 15
    assert drawn[8:].min() > 45
