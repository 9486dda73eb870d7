"""Diagnostics equal hand-worked cases, loops, and finite differences of the gradient's norm.

The gradients are held to central differences in float64; kinds of token to a prompt sorted by hand.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.cli import main  # noqa: E402
from predictor.backbone import Backbone, load_backbone  # noqa: E402
from predictor.checkpoint import LengthPredictor  # noqa: E402
from predictor.diagnostics import (  # noqa: E402
    by_kind,
    by_position,
    correlations,
    importance,
    mean_interval,
    mismatch,
    uniform_received,
)
from predictor.features import PromptSignals, fingerprint  # noqa: E402
from predictor.pooling import PoolingSettings  # noqa: E402
from predictor.token_kinds import kinds, template_ends  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


def predictor_for(backbone: Backbone, pooling: PoolingSettings | None = None) -> LengthPredictor:
    torch.manual_seed(0)
    settings = (pooling or PoolingSettings("estp", "zscore", 0.3, 0.7)).to_json()
    return LengthPredictor("estp", backbone.name, fingerprint(backbone), "float32", settings,
                           [1.0, 10.0, 40.0, 90.0], backbone.hidden_size)  # fmt: skip


def signals_of(entropy: list[float], received: list[float], window: int | None = None) -> PromptSignals:
    hidden = torch.zeros(len(entropy), 2, dtype=torch.float16)
    return PromptSignals(hidden, torch.tensor(entropy), torch.tensor(received), window)


def test_mismatch_of_a_case_by_hand() -> None:
    # The 60th percentile of ten different values lies above six of them: four are high.
    entropy = np.arange(10.0)
    received = np.array([9.0, 8, 7, 0, 1, 2, 3, 4, 5, 6])  # high where entropy is 0, 1, 2 and 9
    found = mismatch([entropy], [received])
    assert found.high_low == pytest.approx(0.3)  # 6, 7, 8
    assert found.low_high == pytest.approx(0.3)  # 0, 1, 2
    assert found.given_high == pytest.approx(3 / 4)
    assert found.given_low == pytest.approx(3 / 6)
    assert (found.independent_high_low, found.independent_low_high) == pytest.approx((0.24, 0.24))
    assert (found.independent_given_high, found.independent_given_low) == pytest.approx((0.6, 0.4))


def test_independent_signals_have_the_mismatch_of_independence() -> None:
    rng = np.random.default_rng(0)
    found = mismatch([rng.random(4000) for _ in range(20)], [rng.random(4000) for _ in range(20)])
    assert found.high_low == pytest.approx(found.independent_high_low, abs=0.005)
    assert found.given_low == pytest.approx(0.4, abs=0.01)
    alike = mismatch([entropy := rng.random(1000)], [entropy])
    assert (alike.high_low, alike.low_high) == (0, 0)


@given(st.lists(st.integers(0, 4), min_size=3, max_size=9), st.randoms())
def test_spearman_is_pearson_of_mean_ranks(values: list[int], random: object) -> None:
    a = np.array(values, dtype=float)
    b = np.random.default_rng(len(values)).random(len(values))
    _, rho = correlations([a], [b])
    ranks = np.array([np.mean([i + 1 for i, y in enumerate(sorted(a)) if y == x]) for x in a])
    if np.ptp(a) == 0:
        assert np.isnan(rho[0])
    else:
        assert rho[0] == pytest.approx(np.corrcoef(ranks, np.argsort(np.argsort(b)))[0, 1])


def test_an_interval_covers_the_mean_and_leaves_nans_out() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(0.4, 0.1, 200)
    mean, low, high = mean_interval(np.append(values, np.nan), rng)
    assert mean == pytest.approx(values.mean())
    assert low < mean < high
    assert high - low == pytest.approx(2 * 1.96 * 0.1 / np.sqrt(200), rel=0.2)
    assert np.isnan(mean_interval(np.array([np.nan]), rng)).all()


@pytest.mark.parametrize("window", [None, 3])
def test_uniform_attention_is_that_of_loops(window: int | None) -> None:
    count = 7
    attention = np.zeros((count, count))
    for query in range(count):
        first = 0 if window is None else max(0, query - window + 1)
        attention[query, first : query + 1] = 1 / (query + 1 - first)
    assert uniform_received(count, window) == pytest.approx(attention.mean(0))


def test_gradients_are_those_of_finite_differences(backbone: Backbone) -> None:
    """In double precision, along each token's own gradient: the slope there is the gradient's norm."""
    double = Backbone(backbone.name, load_backbone(str(TINY), "cpu").model.double(), backbone.tokenizer)
    predictor = predictor_for(backbone).double()
    prompt = "ann has four ."
    ids = torch.tensor([backbone.encode(prompt)])
    weights = np.linspace(1, 2, ids.shape[1])
    weights /= weights.sum()
    found = importance(double, predictor, prompt, weights)
    embeddings = double.model.get_input_embeddings()(ids).detach()
    centres = torch.from_numpy(predictor.bins.centres)

    def values(inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            hidden = double.model.get_decoder()(inputs_embeds=inputs, use_cache=False).last_hidden_state
            pooled = torch.einsum("n,bnd->bd", torch.from_numpy(weights), hidden)
            logs = double.model.get_output_embeddings()(hidden[:, -1]).log_softmax(-1)
            return {"estimate": predictor.head(pooled).softmax(-1) @ centres, "next token": logs}

    token = int(values(embeddings)["next token"][0].argmax())
    step = 1e-4
    for place in (0, ids.shape[1] - 2):
        shifts = torch.zeros(embeddings.shape[2], *embeddings.shape[1:], dtype=torch.float64)
        shifts[torch.arange(len(shifts)), place, torch.arange(len(shifts))] = step
        up, down = values(embeddings + shifts), values(embeddings - shifts)
        slopes = {name: (up[name] - down[name]) / (2 * step) for name in up}
        for name, slope in (("estimate", slopes["estimate"]), ("next token", slopes["next token"][:, token])):
            assert found[name][place] == pytest.approx(float(slope.norm()), rel=1e-3)


def test_kinds_of_a_prompt_by_hand() -> None:
    pieces = ["<bos>", "<user>", "The", " cat", "er", "pil", "lar", " didn", "’t", " eat", " 12", ",", " of",
              "\n", " 漢", "<end>", "<bot>", "\n"]  # fmt: skip
    assert kinds(pieces, opening=2, closing=3) == [
        "first token", "template, opening", "function words", *["content words"] * 7, "digits", "punctuation",
        "function words", "white space", "content words", "template, closing", "template, closing", "last token",
    ]  # fmt: skip


def test_the_template_is_what_all_prompts_share(backbone: Backbone) -> None:
    opening, closing = template_ends(backbone)
    assert (opening, closing) == (2, 1)  # <bos><user> ... <assistant>
    plain = Backbone("plain", None, lambda text, **_: {"input_ids": [ord(c) for c in text]})
    assert template_ends(plain) == (0, 0)


def test_shares_by_kind_and_place_add_up() -> None:
    one = signals_of([1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.15, 0.1])
    two = signals_of([1.0, 1.0], [0.75, 0.25])
    names = [["first token", "digits", "digits", "last token"], ["first token", "last token"]]
    weights = [np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.5])]
    table = by_kind(names, [one, two], weights)
    assert list(table) == ["first token", "last token", "digits"]
    assert table["first token"]["attention"] == pytest.approx((0.5 + 0.75) / 2)
    assert table["digits"]["tokens"] == pytest.approx(0.25)
    assert table["digits"]["weight"] == pytest.approx(0.25)
    assert table["digits"]["entropy"] == pytest.approx(2.5)
    # Two tokens under uniform attention: S is (1 + 1/2) / 2 and (1/2) / 2, which is what `two` has.
    assert uniform_received(2) == pytest.approx([0.75, 0.25])
    for key in ("tokens", "attention", "weight"):
        assert sum(row[key] for row in table.values()) == pytest.approx(1)
    places = by_position([one, two], weights)
    assert all(sum(shares) == pytest.approx(1) for shares in places.values())
    assert places["attention"][0] == pytest.approx((0.5 + 0.75) / 2)
    assert places["attention"][5] == pytest.approx((0.15 + 0.25) / 2)


def test_the_command_writes_what_it_prints(
    backbone: Backbone, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path / "cache"))
    predictor_for(backbone).write(tmp_path / "p")
    predictor_for(backbone, PoolingSettings("max")).write(tmp_path / "max")
    lines = [{"arrival_s": i, "prompt_tokens": 1, "output_tokens": 1, "prompt": f"ann has {word} ."}
             for i, word in enumerate(["two", "four", "six", "two"])]  # fmt: skip
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["diagnose", str(tmp_path / "t.jsonl"), "--model", str(TINY), "--device", "cpu"]
    out = ["--out", str(tmp_path / "out"), "--gradients", "2"]
    texts = []
    for _ in range(2):
        assert main([*command, "--predictor", str(tmp_path / "p"), *out]) == 0
        texts.append((capsys.readouterr().out, (tmp_path / "out" / "diagnosis.json").read_bytes()))
    assert texts[0] == texts[1]
    found = json.loads(texts[0][1])
    assert (found["prompts"], found["gradient_prompts"]) == (3, 2)
    assert "3 prompts" in texts[0][0]
    assert f"{found['mismatches']['S']['high_low']:.2%}" in texts[0][0]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "diagnosis.json", "diagnosis.png", "diagnosis.svg"
    ]  # fmt: skip
    assert main([*command, "--predictor", str(tmp_path / "max")]) == 2
    assert "pools by max" in capsys.readouterr().err
    assert main([*command, "--gradients", "0"]) == 2
    assert "must be at least 1" in capsys.readouterr().err
