"""Generated prompts are different, seeded and of three scenarios, and survive their file; bad lines are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from predictor.prompts import MAKERS, Prompt, generate
from predictor.prompts.files import read_prompts, write_prompts
from traces.errors import InputError

COUNTS = {"longseq": 600, "reasoning": 600, "rl": 450}


def test_prompts_are_different_and_reproducible() -> None:
    made = generate(COUNTS, 0)
    assert len({p.text for p in made}) == len({p.prompt_id for p in made}) == 1650
    assert made == generate(COUNTS, 0)
    assert {p.text for p in made}.isdisjoint({p.text for p in generate({"longseq": 50}, 1)})


def test_more_prompts_begin_with_the_same_ones() -> None:
    few, many = generate({"rl": 20}, 3), generate({"rl": 60}, 3)
    assert many[:20] == few


def test_every_placeholder_is_filled() -> None:
    assert not [p.text for p in generate(COUNTS, 1) if "{" in p.text or "}" in p.text]


def test_rl_prompts_are_sampled_four_times_at_temperature_one() -> None:
    assert {(p.samples, p.temperature) for p in generate({"rl": 5}, 0)} == {(4, 1.0)}


def test_unknown_scenario_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown scenario .chat.*longseq"):
        generate({"chat": 3}, 0)


def test_file_round_trip(tmp_path: Path) -> None:
    made = [
        *generate(dict.fromkeys(MAKERS, 5), 0),
        Prompt("odd", "x", "line\u2028separator\nand\ttab", 2, 0.0),
    ]
    write_prompts(made, tmp_path / "p.jsonl")
    assert read_prompts(tmp_path / "p.jsonl") == made


def test_defaults_fill_what_a_line_lacks(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "hello"}\n\n{"prompt": "you", "samples": 3}\n')
    assert read_prompts(tmp_path / "p.jsonl", samples=2, temperature=0.5) == [
        Prompt("prompt-00000", "prompts", "hello", 2, 0.5),
        Prompt("prompt-00001", "prompts", "you", 3, 0.5),
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2: the field 'prompt'"),
        (json.dumps({"prompt": ""}), "line 2: the field 'prompt'"),
        (json.dumps({"prompt": "x", "samples": 0}), "line 2: 'samples' is 0"),
        (json.dumps({"prompt": "x", "temperature": -1}), "line 2: 'temperature' is -1"),
        (json.dumps({"prompt": "x", "prompt_id": "a"}), "line 2: prompt_id 'a' was there before"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "fine", "prompt_id": "a"}) + "\n" + line + "\n")
    with pytest.raises(InputError, match=what):
        read_prompts(tmp_path / "p.jsonl")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read the prompts file .*nothing\.jsonl"):
        read_prompts(tmp_path / "nothing.jsonl")
