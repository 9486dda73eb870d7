"""An explanation shows the text that the LLM reads, token by token and whole, and the numbers that made the estimate.

The pieces must give the text back (byte pieces put together again); the numbers are those of the signals, and
weights times hidden states are what the head is given. No character of a prompt can act on a terminal or a page.
"""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tokenizers  # noqa: E402
from figure_check import check_legible  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from experiments.cli import main  # noqa: E402
from experiments.explain_figure import draw, explained  # noqa: E402
from experiments.explain_html import page  # noqa: E402
from experiments.explain_terminal import bar, distribution, render, weightiest, width  # noqa: E402
from experiments.style import PAGE_WIDTH_IN, plot_style  # noqa: E402
from experiments.visible import visible  # noqa: E402
from predictor.backbone import Backbone, load_backbone  # noqa: E402
from predictor.checkpoint import LengthPredictor  # noqa: E402
from predictor.conformal import Correction  # noqa: E402
from predictor.explain import Explanation, explain, pieces, strength  # noqa: E402
from predictor.features import fingerprint  # noqa: E402
from predictor.pooling import PoolingSettings  # noqa: E402
from predictor.signals import extract  # noqa: E402
from traces.errors import InputError  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"
NASTY = 'a \x1b[31mred\x07 <script>alert(1)</script> & "q" $x$\n\tשלום 漢 \u202eabc\u2066 e\u0301 🙂 \u200d.'


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


def predictor_for(backbone: Backbone, pooling: PoolingSettings) -> LengthPredictor:
    torch.manual_seed(0)
    return LengthPredictor("estp", backbone.name, fingerprint(backbone), "float32", pooling.to_json(),
                           [1.0, 10.0, 40.0, 90.0], backbone.hidden_size)  # fmt: skip


def invented(tokens: tuple[str, ...], **changes: Any) -> Explanation:
    n = len(tokens)
    settings: dict[str, Any] = {
        "entropy": np.linspace(0, 3, n),
        "received": np.geomspace(0.5, 1e-6, n),
        "weight": np.full(n, 1 / n),
        "probabilities": np.array([0.25, 0.5, 0.25]),
        "edges": np.array([1.0, 10.0, 40.0, 90.0]),
        "mean": 30.0,
        "quantiles": {0.05: 2.0, 0.25: 10.0, 0.5: 25.0, 0.75: 40.0, 0.95: 80.0},
        "conformal": False,
        "backbone": "an-llm",
        "predictor": "estp",
        "summary": "estp, zscore",
    }
    return Explanation(tokens=tokens, **{**settings, **changes})


def byte_level(merges: list[tuple[str, str]], trim: bool) -> Backbone:
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(a + b for a, b in merges)]
    model = tokenizers.models.BPE(vocab={word: k for k, word in enumerate(words)}, merges=merges)
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.post_processor = tokenizers.processors.ByteLevel(trim_offsets=trim)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return Backbone("bytes", None, PreTrainedTokenizerFast(tokenizer_object=inner))


def bytes_again(found: list[str]) -> bytes:
    """The bytes that a list of pieces stands for, `‹E2›` taken as the byte that it names."""
    parts = re.split(r"‹([0-9A-F]{2})›", "".join(found))
    return b"".join(bytes([int(x, 16)]) if k % 2 else x.encode() for k, x in enumerate(parts))


@pytest.mark.parametrize("trim", [False, True])
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="‹›"), min_size=1))
def test_byte_level_pieces_give_the_text_back(text: str, trim: bool) -> None:
    backbone = byte_level([("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ġ", "æ"), ("ð", "Ł")], trim)
    found = pieces(backbone, text)
    assert len(found) == len(backbone.encode(text))
    assert bytes_again(found) == text.encode()


def test_a_split_character_is_shown_by_its_bytes() -> None:
    backbone = byte_level([("Ġ", "æ")], False)
    assert pieces(backbone, "é!") == ["‹C3›", "‹A9›", "!"]
    assert pieces(backbone, "a 漢b") == ["a", " ‹E6›", "‹BC›", "‹A2›", "b"]


def test_a_byte_fallback_vocabulary_too() -> None:
    names = ["<unk>", "▁", "a", *(f"<0x{b:02X}>" for b in range(256))]
    model = tokenizers.models.BPE(
        vocab={name: k for k, name in enumerate(names)}, merges=[], unk_token="<unk>", byte_fallback=True
    )
    inner = tokenizers.Tokenizer(model)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    backbone = Backbone("fallback", None, PreTrainedTokenizerFast(tokenizer_object=inner))
    assert pieces(backbone, "a é a") == ["a", " ", "‹C3›", "‹A9›", " ", "a"]


def test_pieces_spell_out_the_chat_template(backbone: Backbone) -> None:
    prompt = "ann has four ."
    found = pieces(backbone, prompt)
    assert "".join(found) == backbone.text_of(prompt)[0]
    assert found[0] == "<bos>"
    assert found[-1].strip() == "<assistant>"
    assert len(found) == len(backbone.encode(prompt))


def test_the_numbers_are_those_of_the_estimate(backbone: Backbone) -> None:
    predictor = predictor_for(backbone, PoolingSettings("estp", "zscore", 0.3, 0.7))
    found = explain(backbone, predictor, "ann has four .")
    ids = torch.tensor([backbone.encode("ann has four .")])
    (signals,) = extract(backbone.model, ids, torch.ones_like(ids))
    assert found.entropy == pytest.approx(signals.entropy.numpy(), abs=1e-5)
    assert found.received == pytest.approx(signals.received.numpy(), abs=1e-6)
    assert found.weight is not None
    assert found.weight.sum() == pytest.approx(1)
    pooled = torch.from_numpy(found.weight).float()[None] @ signals.hidden.half().float()
    with torch.no_grad():
        assert found.probabilities == pytest.approx(predictor(pooled)[0].numpy(), abs=1e-4)
    assert found.mean == pytest.approx(found.probabilities @ [5.5, 25, 65])
    assert found.quantiles[0.5] == pytest.approx(
        np.interp(0.5, np.cumsum([0, *found.probabilities]), found.edges), abs=1e-6
    )


def test_quantiles_carry_the_checkpoints_conformal_correction(backbone: Backbone, tmp_path: Path) -> None:
    plain = explain(backbone, predictor_for(backbone, PoolingSettings("mean")), "ann .")
    assert not plain.conformal
    predictor = predictor_for(backbone, PoolingSettings("mean"))
    predictor.conformal = Correction({0.05: -0.02, 0.5: 0.0, 0.95: 0.25}, 40)
    found = explain(backbone, predictor, "ann .")
    width = plain.quantiles[0.95] - plain.quantiles[0.05]
    moved = {q: plain.quantiles[q] + c * width for q, c in predictor.conformal.shifts.items()}
    assert found.quantiles == pytest.approx({q: max(x, 1.0) for q, x in moved.items()})
    for text in (render(found, colour=False), page(found)):
        assert "with conformal correction" in text
    draw(replace(found, quantiles={}), tmp_path / "none.png")  # levels that had too few prompts are left out


def test_max_pooling_has_no_weights(backbone: Backbone) -> None:
    found = explain(backbone, predictor_for(backbone, PoolingSettings("max")), "ann .")
    assert found.weight is None
    assert "no token has a weight" in render(found, colour=False)
    assert "weight" not in page(found).split("</style>")[1]


def test_an_empty_prompt_and_another_llm_are_refused(backbone: Backbone) -> None:
    predictor = predictor_for(backbone, PoolingSettings("mean"))
    with pytest.raises(InputError, match="the prompt is empty"):
        explain(backbone, predictor, "")
    predictor.backbone_fingerprint = "other"
    with pytest.raises(InputError, match="was trained on the activations of"):
        explain(backbone, predictor, "ann")


def test_strength_of_known_values() -> None:
    values = np.array([1.0, 0.1, 0.001, 1e-9, 0.0])
    assert strength(values, logarithmic=True) == pytest.approx([1, 2 / 3, 0, 0, 0])
    assert strength(values, logarithmic=False) == pytest.approx([1, 0.1, 0.001, 1e-9, 0])
    assert strength(np.zeros(2), logarithmic=True).tolist() == [0, 0]


@given(st.text(max_size=20))
def test_nothing_invisible_is_left(text: str) -> None:
    shown = visible(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", shown)
    assert not set(shown) & set("\n\r\t\x1b")


def test_white_space_and_marks_are_named() -> None:
    assert visible(" a\n\t\r\x1b") == " a⏎⇥␍␛"
    assert visible("\u00a0\u202e\u200d") == "‹U+00A0›‹U+202E›‹U+200D›"
    assert visible("\u0301x") == "◌\u0301x"


def test_a_prompt_cannot_act_on_the_terminal() -> None:
    tokens = tuple(re.findall(r".{1,3}", NASTY, re.DOTALL))
    text = render(invented(tokens), colour=True)
    assert set(re.findall(r"\x1b\[([0-9;]*)m", text)) <= {"0", *(f"48;5;{g};38;5;{f}" for g, f in (
        (17, 15), (60, 15), (102, 16), (143, 16), (221, 16)))}  # fmt: skip
    assert not re.search(r"\x1b(?!\[[0-9;]*m)", text)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert plain.replace("\n", "").count("".join(map(visible, tokens))) == 3
    assert "\x1b" not in render(invented(tokens), colour=False)


def test_the_table_has_a_row_a_token() -> None:
    lines = render(invented(("漢", "\n", "e")), colour=False).split("\n")
    assert [line.split()[1] for line in lines[1:4]] == ["漢", "⏎", "e"]
    assert {width(line) for line in lines[:4]} == {width(lines[0])}
    assert lines[3].split()[2:] == ["3", "1e-06", "0.3333"]


def test_bars_and_the_weightiest() -> None:
    assert bar(1.0) == "█" * 40
    assert bar(0.5) == "█" * 20
    assert bar(1 / 320) == "▏"
    assert bar(0) == ""
    text = distribution(invented(("a",)))
    assert "30 tokens on average" in text
    assert "10-40  50.0% " + "█" * 40 in text
    assert "95% 80" in text
    weights = np.array([0.2, 0.5, 0.3])
    assert weightiest(invented(("a", "b", "\n"), weight=weights)).startswith(
        "most weight: “b” (1) 50.0%, “⏎” (2) 30.0%"
    )


class Reader(HTMLParser):
    """Tags, attributes, and the text of the tokens."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tokens: list[str] = []
        self.inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.inside = tag == "span" and any(name == "title" for name, _ in attrs)
        if self.inside:
            self.tokens.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.tokens[-1] += data


def test_the_page_is_self_contained_and_escaped() -> None:
    tokens = tuple(re.findall(r".{1,3}", NASTY, re.DOTALL))
    text = page(invented(tokens, backbone="<b>llm</b>", predictor='"x'))
    read = Reader(text)
    assert not {"script", "link", "img", "iframe", "b"} & set(read.tags)
    assert not [a for a in read.attributes if a[0] in ("src", "href", "onload")]
    assert "http" not in text.replace("http-equiv", "")
    assert read.tokens == [visible(t) for t in tokens] * 3
    assert "prefers-color-scheme: dark" in text
    assert "About 30 tokens" in text


def test_the_figure_is_legible_over_both_columns_of_a_page() -> None:
    words = tuple(f" word{i}" + "\n" * (i % 40 == 39) for i in range(400))
    for tokens in (("Hi",), words):
        with plot_style():
            check_legible(explained(invented(tokens)), PAGE_WIDTH_IN)


def test_the_figure_is_drawn_whole_and_alike(tmp_path: Path) -> None:
    tokens = tuple(re.findall(r".{1,9}", NASTY, re.DOTALL))
    for name in ("a.png", "b.png"):
        draw(invented(tokens), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    # A long prompt is cut in the middle, so its figure stays of a readable size.
    draw(invented(tokens * 100, weight=None), tmp_path / "long.png")
    size = int.from_bytes((tmp_path / "long.png").read_bytes()[20:24], "big")
    assert size < 6000


@pytest.fixture
def checkpoint(backbone: Backbone, tmp_path: Path) -> Path:
    predictor_for(backbone, PoolingSettings("estp", "zscore", 0.3, 0.7)).write(tmp_path / "p")
    return tmp_path / "p"


def test_the_command_reads_text_file_and_standard_input(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text("ann has four .")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ann has four .")))
    outputs = []
    for source in (["ann has four ."], ["--file", str(tmp_path / "prompt.txt")], ["-"]):
        assert main(["explain", *source, "--predictor", str(checkpoint), "--device", "cpu"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] == outputs[2]
    assert "\x1b" not in outputs[0]
    assert "tokens on average" in outputs[0]
    files = ["--html", str(tmp_path / "x.html"), "--png", str(tmp_path / "x.png"), "--color", "always"]
    assert main(["explain", "ann", "--predictor", str(checkpoint), "--device", "cpu", *files]) == 0
    assert "\x1b[48;5;" in capsys.readouterr().out
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "give a prompt"),
        (("a", "--file", "b"), "one of them"),
        (("--file", "nothing.txt"), "cannot read the prompt from nothing.txt"),
        (("--file", "latin.txt"), "is not UTF-8 text"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert main(["explain", *arguments]) == 2
    assert sentence in capsys.readouterr().err
