"""Mooncake's JSON lines are read and written with their hash ids and block size.

Truth: rows written by hand, the manifest's figures of the published files, and reading back what was written.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import InputError, Trace, read_trace, write_mooncake
from traces.export import milliseconds


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(timestamp: float, prompt: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": prompt, "output_length": 5, "hash_ids": ids, **more}


def test_milliseconds_and_ids(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, row(1000, 600, [7, 8]), row(1500, 10, [7]), row(1500, 10, [])))
    assert trace.arrival_s.tolist() == [0.0, 0.5, 0.5]
    assert trace.hash_ids is not None
    assert [ids.tolist() for ids in trace.hash_ids] == [[7, 8], [7], []]
    assert trace.metadata == {"format": "mooncake", "hash_block_tokens": 512}


@pytest.mark.parametrize("tokens", [16, 64])
def test_blocks_of_another_size_are_told_from_the_counts(tmp_path: Path, tokens: int) -> None:
    whole, partial = row(0, 3 * tokens, [1, 2, 3]), row(1, 3 * tokens + 1, [1, 2, 3, 4])
    assert read_trace(write(tmp_path, whole, partial)).metadata["hash_block_tokens"] == tokens
    # Weka leaves the last, partial block without an id.
    floor = [row(1, 3 * tokens + tokens // 2, [1, 2, 3]), row(2, 2 * tokens - 1, [1])]
    assert read_trace(write(tmp_path, whole, *floor)).metadata["hash_block_tokens"] == tokens


def test_block_size_is_overridable_and_checked(tmp_path: Path) -> None:
    path = write(tmp_path, row(0, 100, [1]), row(1, 100, [1, 2]))
    assert read_trace(path, hash_block_tokens=90).metadata["hash_block_tokens"] == 90
    with pytest.raises(InputError, match=r"line 2, column 'hash_ids': \[1, 2\] names more blocks of 512"):
        read_trace(path)
    assert len(read_trace(path, on_error="skip")) == 1
    with pytest.raises(InputError, match="at least 1"):
        read_trace(path, hash_block_tokens=0)


def test_bailian_is_seconds_and_sixteen(tmp_path: Path) -> None:
    rows = [
        row(61.114, 17, [1, 2], chat_id=159, parent_chat_id=55, turn=2, type="text"),
        row(62.25, 1, [3], chat_id=160, parent_chat_id=-1, turn=1, type="text"),
    ]
    trace = read_trace(write(tmp_path, *rows))
    assert trace.arrival_s.tolist() == [0.0, 62.25 - 61.114]
    assert trace.request_id.tolist() == [159, 160]
    assert trace.metadata == {"format": "bailian", "hash_block_tokens": 16}


@pytest.mark.parametrize(
    ("name", "requests", "span_s", "prompts", "outputs", "distinct"),
    [
        ("conversation", 12031, 3537.0, 12035.1, 342.6, 0.366),
        ("synthetic", 3993, 1022.0, 15325.5, 149.1, 0.640),
    ],
)
def test_published_traces(
    reference: Path, name: str, requests: int, span_s: float, prompts: float, outputs: float, distinct: float
) -> None:
    trace = read_trace(reference / f"data/1_traces/mooncake_fast25/{name}_trace.jsonl")
    assert len(trace) == requests
    assert trace.arrival_s[-1] == pytest.approx(span_s, abs=0.05)
    assert trace.prompt_tokens.mean() == pytest.approx(prompts, abs=0.05)
    assert trace.output_tokens.mean() == pytest.approx(outputs, abs=0.05)
    assert trace.metadata["hash_block_tokens"] == 512
    assert trace.hash_ids is not None
    ids = np.concatenate(list(trace.hash_ids))
    # With an endless cache every id is computed once; the rest are hits.
    assert 1 - len(np.unique(ids)) / len(ids) == pytest.approx(distinct, abs=5e-4)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 10**11), st.lists(st.integers(0, 2**63 - 1), max_size=2)), min_size=1)
)
def test_written_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, list[int]]]
) -> None:
    arrivals = np.sort([ms for ms, _ in rows])
    ids = np.empty(len(rows), object)
    ids[:] = [np.array(ids, np.int64) for _, ids in rows]
    n = len(rows)
    trace = Trace(
        np.arange(n), (arrivals - arrivals[0]) / 1000, np.full(n, 600), np.arange(1, n + 1), hash_ids=ids
    )
    path = tmp_path_factory.getbasetemp() / "mooncake.jsonl.gz"
    write_mooncake(trace, path)
    again = read_trace(path, hash_block_tokens=512)
    assert again.arrival_s.tolist() == trace.arrival_s.tolist()
    assert again.output_tokens.tolist() == trace.output_tokens.tolist()
    assert again.hash_ids is not None
    assert [row.tolist() for row in again.hash_ids] == [row.tolist() for row in ids]
    before = path.read_bytes()
    write_mooncake(again, path)
    assert path.read_bytes() == before


@given(st.lists(st.floats(0, 1e7), min_size=1))
def test_milliseconds_are_the_same_times(times: list[float]) -> None:
    again = np.array(milliseconds(np.array(times))) / 1000
    np.testing.assert_allclose(again, times, rtol=4e-16, atol=1e-320)


def test_whole_milliseconds_are_whole_numbers(tmp_path: Path) -> None:
    trace = Trace(np.arange(3), np.array([0.0, 0.001, 2.0005]), np.full(3, 9), np.full(3, 4))
    write_mooncake(trace, tmp_path / "t.jsonl.gz")
    lines = gzip.decompress((tmp_path / "t.jsonl.gz").read_bytes()).decode().split("\n")
    assert lines == [
        '{"timestamp": 0, "input_length": 9, "output_length": 4}',
        '{"timestamp": 1, "input_length": 9, "output_length": 4}',
        '{"timestamp": 2000.5, "input_length": 9, "output_length": 4}',
        "",
    ]


def test_sessions_and_prefixes_from_plain_files(tmp_path: Path) -> None:
    names = ("arrival_s", "prompt_tokens", "output_tokens", "session_id", "prefix_id", "prefix_tokens")
    values = [(0, 40, 3, 7, 1, 32), (1, 50, 4, -1, -1, 0)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join([",".join(names), *(",".join(map(str, row)) for row in values)]))
    lines = write(tmp_path, *(dict(zip(names, row, strict=True)) for row in values))
    for path in (table, lines):
        trace = read_trace(path)
        assert trace.session_id is not None
        assert trace.session_id.tolist() == [7, -1]
        assert trace.prefix_id is not None
        assert trace.prefix_id.tolist() == [1, -1]
        assert trace.prefix_tokens is not None
        assert trace.prefix_tokens.tolist() == [32, 0]
