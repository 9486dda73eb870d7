"""A CSV is read piece by piece, and where it is cut changes nothing but how early a fault ends the reading.

Truth: the same bytes in one piece; streams that are broken, or never end, behind their first fault.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from traces import InputError, Trace, read_trace
from traces.readers import plain_csv, source

HEAD = "id,arrival_s,prompt_tokens,output_tokens,session_id,note\n"


def outcome(path: Path, on_error: Any) -> Any:
    try:
        trace = read_trace(path, "csv", on_error=on_error)
    except InputError as error:
        return str(error)
    return {name: column.tolist() for name, column in trace.columns().items()}, trace.metadata


def cut(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(source, "SNIFFED_BYTES", max(size, len(HEAD)))
    monkeypatch.setattr(plain_csv, "PIECE_BYTES", size)
    monkeypatch.setattr(plain_csv, "PIECE_ROWS", 2)


NOTES = st.sampled_from(["", "x", '"a, ""b"""', '"two\nlines"', '"\r\n"', "é", "7", "1.5"])
IDS = st.integers(0, 40).map(str) | st.sampled_from(["a", "b", "07", ""])
ROWS = st.lists(
    st.tuples(
        IDS,
        st.integers(0, 3),
        st.sampled_from([*"123456789", "0", "x"]),
        st.sampled_from(["s1", "", "5"]),
        NOTES,
    ),
    min_size=1,
    max_size=12,
)
BREAK = st.sampled_from(["", "\n", "1,2\n", "1,2,3,4,5,6,7,8\n", ",,,,,\n"])


@settings(max_examples=30)
@given(rows=ROWS, broken=st.tuples(st.integers(0, 12), BREAK), size=st.integers(40, 120))
@example(rows=[("1", 0, "1", "", "x")] * 3, broken=(0, ""), size=20)
def test_cuts_change_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, int, str, str, str]],
    broken: tuple[int, str],
    size: int,
) -> None:
    lines = [
        f"{name},{gap * (i + 1)},{prompt},1,{session},{note}\n"
        for i, (name, gap, prompt, session, note) in enumerate(rows)
    ]
    lines.insert(broken[0], broken[1])
    path = tmp_path_factory.getbasetemp() / "pieces.csv"
    path.write_text(HEAD + "".join(lines), newline="")
    for on_error in ("fail", "skip"):
        whole = outcome(path, on_error)
        with pytest.MonkeyPatch.context() as patch:
            cut(patch, size)
            assert outcome(path, on_error) == whole


def test_faults_are_placed_in_any_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, 50)
    path = tmp_path / "t.csv"
    rows = [f'{i},{i},1,1,,"a\nb"\n' for i in range(30)]
    path.write_text(HEAD + "".join(rows) + "30,30,x,1,,\n")
    # The header and thirty rows of two lines each go before.
    with pytest.raises(InputError, match=r"line 62, column 'prompt_tokens': 'x' is not a number"):
        read_trace(path)
    path.write_text(HEAD + "".join(rows) + "3,30,1,1,,\n")
    with pytest.raises(InputError, match=r"line 62, column 'id': '3' is the id of an earlier request"):
        read_trace(path)
    path.write_text(HEAD + "".join(rows) + "30,3,1,1,,\n")
    with pytest.raises(InputError, match=r"line 62, column 'arrival_s': '3' is earlier than the row before"):
        read_trace(path)
    path.write_text(HEAD + "".join(rows) + "30,30\n31\n" * 2)
    dropped = read_trace(path, on_error="skip").metadata["dropped"]
    assert (dropped["count"], len(dropped["rows"])) == (4, 4)
    assert dropped["rows"][0].startswith("line 62")


class Endless(io.RawIOBase):
    """A fault on line 3, and rows without end behind it."""

    def __init__(self) -> None:
        self.left = (HEAD + "1,1,1,1,,\n2,2,x,1,,\n").encode()
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self.left) < len(buffer):
            self.left += b"3,3,1,1,,\n" * 10_000
        buffer[:] = self.left[: len(buffer)]
        self.left = self.left[len(buffer) :]
        self.given += len(buffer)
        return len(buffer)


def test_the_first_fault_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(endless)))
    with pytest.raises(InputError, match="standard input, line 3, column 'prompt_tokens': 'x'"):
        read_trace("-")
    assert endless.given < 4 * plain_csv.PIECE_BYTES
    # Gzip that breaks off is not broken where the fault is.
    packed = gzip.compress((HEAD + "1,1,1,1,,\n2,2,x,1,,\n" + "3,3,1,1,,\n" * 1_000_000).encode())
    path = tmp_path / "t.csv.gz"
    path.write_bytes(packed[:-100])
    with pytest.raises(InputError, match=r"line 3, column 'prompt_tokens': 'x'"):
        read_trace(path)
    with pytest.raises(InputError, match="broken gzip"):
        read_trace(path, on_error="skip")


def test_a_lone_quote_costs_no_quadratic_search(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(HEAD + '1,1,1,1,,"open\n' + '2,2,1,1,,"x"\n' * 400_000)
    # From the quote on every line end is inside quotes, so that the rest is one row.
    with pytest.raises(InputError, match=r"t.csv"):
        read_trace(path)


def test_a_character_across_the_end_of_the_header_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for shift in (0, 1):
        path.write_text("prompt,prompt_tokens,output_tokens\n" + "a" * shift + "é" * 100_000 + ",1,1\n")
        assert read_trace(path).prompt_tokens.tolist() == [1]


def through_a_pipe(data: bytes, folder: Path, **options: Any) -> Trace:
    path = folder / "pipe"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    thread = threading.Thread(target=path.write_bytes, args=(data,))
    thread.start()
    try:
        return read_trace(path, **options)
    finally:
        thread.join()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"prompt_tokens,output_tokens\n" + b"1,2\n" * 50_000
    assert len(through_a_pipe(text, tmp_path)) == 50_000
    assert len(through_a_pipe(gzip.compress(text), tmp_path)) == 50_000
    table = io.BytesIO()
    pl.DataFrame({"prompt_tokens": [1, 2], "output_tokens": [3, 4]}).write_parquet(table)
    assert len(through_a_pipe(table.getvalue(), tmp_path)) == 2
    for format in (None, "parquet"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(table.getvalue()))))
        assert read_trace("-", format).output_tokens.tolist() == [3, 4]


def test_a_first_row_without_end_is_no_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('prompt,"a\n' + "x y,7," * 200_000 + '"z"\n1,2\n')
    with pytest.raises(InputError, match=r"more than 10,000 values in its first row, so it has no header"):
        read_trace(path)
