"""A trace keeps the rules of its docstring, names what breaks one, and survives Parquet unchanged."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import InputError, Trace, read_parquet_trace, read_trace, write_trace
from traces.parquet import write_table
from traces.schema import COLUMNS


def make(**changes: Any) -> Trace:
    columns: dict[str, Any] = {
        "request_id": np.array([7, 3, 5]),
        "arrival_s": np.array([0.0, 0.5, 0.5]),
        "prompt_tokens": np.array([10, 20, 30]),
        "output_tokens": np.array([1, 2, 3]),
    }
    return Trace(**(columns | changes))


def same(one: Trace, other: Trace) -> None:
    assert one.metadata == other.metadata
    assert list(one.columns()) == list(other.columns())
    for name, column in one.columns().items():
        assert column.dtype == other.columns()[name].dtype, name
        assert len(column) == len(other.columns()[name])
        for left, right in zip(column.tolist(), other.columns()[name].tolist(), strict=True):
            assert np.array_equal(left, right), name


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(0, 6))

    def column(strategy: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(strategy, min_size=n, max_size=n))

    ids: Any = draw(
        st.one_of(
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=n, max_size=n, unique=True),
            st.lists(text, min_size=n, max_size=n, unique=True),
        )
    )
    optional: dict[str, Any] = {
        "prompt": np.array(column(st.none() | text), dtype=object),
        "response": np.array(column(st.none() | text), dtype=object),
        "scenario": np.array(column(text), dtype=object),
        "session_id": np.array(column(st.integers(-1, 2**63 - 1)), dtype=np.int64),
        "prefix_id": np.array(column(st.integers(-1, 2**63 - 1)), dtype=np.int64),
        "prefix_tokens": np.zeros(n, dtype=np.int32),
        "priority": np.array(column(st.floats(allow_nan=False, allow_infinity=False)), dtype=np.float64),
        "hash_ids": [
            np.array(row, np.int64) for row in column(st.lists(st.integers(0, 2**63 - 1), max_size=3))
        ],
    }
    chosen = draw(st.sets(st.sampled_from(sorted(optional))))
    arrivals = sorted(column(st.floats(0, 1e9)))
    tokens = st.integers(1, 2**31 - 1)
    return Trace(
        request_id=np.array(ids, dtype=object if ids and isinstance(ids[0], str) else np.int64),
        arrival_s=np.array(arrivals, dtype=np.float64),
        prompt_tokens=np.array(column(tokens), dtype=np.int64),
        output_tokens=np.array(column(tokens), dtype=np.int64),
        extra={
            "sample": np.array(column(st.integers(0, 9)), np.int64),
            "censored": np.array(column(st.booleans()), bool),
        },
        metadata={"seed": 1, "nested": {"a": [1, None]}},
        **{name: optional[name] for name in chosen},
    )  # fmt: skip


@settings(max_examples=40)
@given(traces())
def test_parquet_brings_a_trace_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    write_trace(trace, path)
    same(trace, read_parquet_trace(path))
    same(trace, read_trace(path))
    assert [file.name for file in path.parent.iterdir()] == ["trace.parquet"]


def test_file_states_version_and_units(tmp_path: Path) -> None:
    write_trace(make(metadata={"source": "here"}), tmp_path / "t.parquet")
    facts = json.loads(pl.read_parquet_metadata(tmp_path / "t.parquet")["estp"])
    assert facts["kind"] == "trace"
    assert facts["schema_version"] == 1
    assert facts["source"] == "here"
    assert facts["units"]["arrival_s"] == "seconds since the first arrival"
    assert facts["units"]["output_tokens"] == "tokens"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_tokens": [1, 0, 3]}, r"request 3 \(row 1\): output_tokens is 0; it must be at least 1"),
        ({"prompt_tokens": [1, 2, -4]}, r"request 5 \(row 2\): prompt_tokens is -4"),
        ({"prompt_tokens": [1, 2.5, 4]}, r"row 1\): prompt_tokens is 2.5; it must be a whole number"),
        ({"output_tokens": [1, 2, 2**31]}, r"row 2\): output_tokens is 2147483648; .* at most 2147483647"),
        ({"arrival_s": [0.0, np.nan, 1.0]}, r"request 3 \(row 1\): arrival_s is nan; it must be finite"),
        ({"arrival_s": [0.0, np.inf, 1.0]}, r"arrival_s is inf; it must be finite"),
        ({"arrival_s": [-1.0, 0.0, 1.0]}, r"request 7 \(row 0\): arrival_s is -1.0; it must be at least 0"),
        ({"arrival_s": [0.0, 2.0, 1.0]}, r"request 5 \(row 2\) arrives at 1.0 s, before .* \(2.0 s\)"),
        ({"request_id": [7, 3, 7]}, r"request id 7 stands in row 0 and again in row 2"),
        ({"request_id": ["a", "b", "a"]}, r"request id 'a' stands in row 0 and again in row 2"),
        ({"request_id": ["a", 1, 2]}, r"all whole numbers or all strings"),
        ({"request_id": [1.0, 2.0, 3.0]}, r"all whole numbers or all strings, but one is 1.0"),
        ({"arrival_s": [0.0, 1.0]}, r"'arrival_s' has shape \(2,\), but there are 3 request ids"),
        ({"scenario": ["a"]}, r"'scenario' has shape \(1,\)"),
        ({"extra": {"x": [1, 2]}}, r"'x' has shape \(2,\)"),
        ({"extra": {"prompt": [1, 2, 3]}}, r"'prompt' has the name of a trace column"),
        ({"prompt_tokens": ["a", "b", "c"]}, r"'prompt_tokens' holds .* it needs numbers"),
        ({"prefix_tokens": [0, 21, 0]}, r"request 3 \(row 1\): prefix_tokens is 21, more than the 20"),
    ],
)  # fmt: skip
def test_broken_rule_names_request_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(**changes)


def test_take_and_replace() -> None:
    trace = make(prompt=["a", "b", "c"], extra={"sample": np.array([1, 2, 3])})
    part = trace.take([0, 2])
    assert part.request_id.tolist() == [7, 5]
    assert part.prompt is not None
    assert part.prompt.tolist() == ["a", "c"]
    assert part.extra["sample"].tolist() == [1, 3]
    assert trace.take(np.array([False, True, False])).request_id.tolist() == [3]
    assert len(trace.take([])) == 0
    with pytest.raises(InputError, match="before the row above"):
        trace.take([1, 0])
    assert trace.replace(output_tokens=[4, 5, 6]).output_tokens.tolist() == [4, 5, 6]


def test_schema_names_every_field() -> None:
    assert {*COLUMNS, "extra", "metadata"} == {field.name for field in dataclasses.fields(Trace)}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(make(), path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="not plain JSON"):
        write_trace(make(metadata={"x": object()}), path)
    with pytest.raises(InputError, match="mixes kinds"):
        write_trace(make(extra={"x": np.array([1, "a", None], dtype=object)}), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]
    with pytest.raises(InputError, match="cannot write"):
        write_trace(make(), tmp_path / "nowhere" / "t.parquet")


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_parquet_trace(tmp_path / "none.parquet")
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(InputError, match="not readable as Parquet"):
        read_trace(bad)
    pl.DataFrame({"a": [1]}).write_parquet(bad)
    with pytest.raises(InputError, match="not a table of this project"):
        read_parquet_trace(bad)
    write_table(pl.DataFrame({"a": [1]}), bad, {"kind": "estimates"})
    with pytest.raises(InputError, match="holds estimates, where trace is needed"):
        read_parquet_trace(bad)
    write_table(pl.DataFrame({"a": [1]}), bad, {"kind": "trace", "schema_version": 9})
    with pytest.raises(InputError, match="schema version 9"):
        read_parquet_trace(bad)
    write_table(pl.DataFrame({"request_id": [1]}), bad, {"kind": "trace"})
    with pytest.raises(InputError, match="lacks the column 'arrival_s'"):
        read_parquet_trace(bad)


def test_import_is_ours_and_light() -> None:
    code = (
        "import sys, traces, pathlib; print(pathlib.Path(traces.__file__).parent); "
        "print(sorted({'torch', 'matplotlib', 'sim', 'predictor', 'experiments'} & set(sys.modules)))"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    where, heavy = done.stdout.split("\n")[:2]
    assert Path(where) == root / "traces"
    assert heavy == "[]"
