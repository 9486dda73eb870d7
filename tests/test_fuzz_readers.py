"""A damaged file of any format ends in a trace or in one sentence, never in a traceback.

Truth: small files of each format in data/traces, named after it, damaged by hypothesis. tools/fuzz_readers.py
does the same for as long as one likes.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import InputError, read_trace

FILES = sorted((Path(__file__).parent / "data" / "traces").iterdir())
PIECES = [
    *(
        "\0",
        "\n",
        "\r\n",
        '"',
        ",",
        ":",
        "{",
        "}",
        "[",
        "]",
        "\\",
        "NaN",
        "-inf",
        "null",
        "true",
        "{}",
        "[[]]",
    ),
    *("-1", "0", "1.5", "1e999", "9223372036854775808", "18446744073709551616", "9" * 400, "2147483648"),
    *("\\ud800", "\u2028", "😀", "[" * 2000, "prompt_tokens=", "2023-13-45 99:99:99", "\ufeff"),
]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer whose tokens are the words of a text."""
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    path.write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})
    )
    return str(path)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_whole_files_are_told_and_read(file: Path, words: str) -> None:
    trace = read_trace(file, tokenizer=words)
    assert trace.metadata["format"] == file.name.split(".")[0]
    assert len(trace) >= 2
    assert "dropped" not in trace.metadata


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
@pytest.mark.parametrize("packed", [False, True], ids=["stdin", "gzip on stdin"])
def test_every_format_comes_packed_and_through_stdin(
    file: Path, packed: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, data = read_trace(file, tokenizer=words), file.read_bytes()
    (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(data))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(data) if packed else data)))
    for source in (tmp_path / f"{file.name}.gz", "-"):
        other = read_trace(source, tokenizer=words)
        for name in ("arrival_s", "prompt_tokens", "output_tokens"):
            assert getattr(other, name).tolist() == getattr(plain, name).tolist()
        assert other.metadata["format"] == plain.metadata["format"]


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[float, int, bytes]]:
    """Where (as a share of the file), how many bytes go, and what comes in their place."""
    piece = st.sampled_from(PIECES).map(str.encode) | st.binary(max_size=4) | st.just(b"")
    return draw(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), piece), min_size=1, max_size=4))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
@settings(max_examples=30)
@given(damage=damages(), on_error=st.sampled_from(["fail", "skip"]), sniffed=st.booleans())
def test_damaged_files(
    tmp_path_factory: pytest.TempPathFactory,
    file: Path,
    words: str,
    damage: list[tuple[float, int, bytes]],
    on_error: Any,
    sniffed: bool,
) -> None:
    data = file.read_bytes()
    for share, gone, piece in damage:
        begin = int(share * len(data))
        data = data[:begin] + piece + data[begin + gone :]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(data)
    # Anything but an InputError, a warning included, fails the test.
    with contextlib.suppress(InputError):
        read_trace(path, None if sniffed else file.name.split(".")[0], on_error=on_error, tokenizer=words)
