"""The decode loop against transformers' own generate, and its draws against the distribution they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from scipy.stats import chisquare  # noqa: E402

from predictor.backbone import Backbone, load_backbone  # noqa: E402
from predictor.generate import _draw, sample  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


@pytest.fixture(scope="module")
def prompts(tiny: Backbone) -> list[list[int]]:
    import json

    lines = (TINY / "prompts.jsonl").read_text().splitlines()[:24:2]
    return [tiny.encode(json.loads(line)["prompt"]) for line in lines]


def answers(tiny: Backbone, prompts: list[list[int]], temperature: float, uniforms: Any) -> list[Any]:
    return sample(tiny.model, prompts, np.full(len(prompts), temperature), uniforms, tiny.stop_ids(), 0)


def test_greedy_answers_are_those_of_transformers(tiny: Backbone, prompts: list[list[int]]) -> None:
    got = answers(tiny, prompts, 0.0, np.zeros((len(prompts), 40)))
    for prompt, answer in zip(prompts, got, strict=True):
        ids = torch.tensor([prompt])
        wanted = tiny.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False, pad_token_id=0
        )[0, len(prompt) :].tolist()
        assert answer.token_ids == wanted
        assert answer.censored == (wanted[-1] not in tiny.stop_ids())


def test_an_answer_does_not_depend_on_who_shares_its_batch(tiny: Backbone, prompts: list[list[int]]) -> None:
    uniforms = np.random.default_rng(0).random((len(prompts), 60))
    together = answers(tiny, prompts, 1.0, uniforms)
    for k in (0, 5, 11):
        assert answers(tiny, prompts[k : k + 1], 1.0, uniforms[k : k + 1])[0] == together[k]


def test_an_answer_at_the_limit_is_censored(tiny: Backbone, prompts: list[list[int]]) -> None:
    got = answers(tiny, prompts, 1.0, np.random.default_rng(1).random((len(prompts), 2)))
    assert all(len(a.token_ids) == 2 and a.censored for a in got if a.token_ids[-1] not in tiny.stop_ids())
    assert any(a.censored for a in got)


@pytest.mark.parametrize(("top_k", "top_p", "kept"), [(0, 1.0, 6), (3, 1.0, 3), (0, 0.75, 3), (4, 0.5, 2)])
def test_draws_follow_the_truncated_distribution(top_k: int, top_p: float, kept: int) -> None:
    probabilities = np.array([0.05, 0.3, 0.1, 0.25, 0.22, 0.08])
    heat, count = 1.3, 20_000
    logits = torch.tensor(np.log(probabilities) * heat).repeat(count, 1)
    uniform = torch.tensor(np.random.default_rng(2).random((count, 1)))
    drawn = _draw(logits, torch.full((count, 1), heat), uniform, top_k, top_p)[:, 0].numpy()
    likely = np.sort(np.argsort(-probabilities)[:kept])
    wanted = probabilities[likely] / probabilities[likely].sum()
    seen = np.bincount(drawn, minlength=6)
    assert seen.sum() == seen[likely].sum()
    assert chisquare(seen[likely], wanted * count).pvalue > 1e-4
