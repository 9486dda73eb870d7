"""Readers give what a file says, or name its first fault by line, column and value.

Truth: files written here by hand, and counts, spans and means that the reference data's manifest gives.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import InputError, read_trace

AZURE = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 23:59:59.9999999,10,1\r\n"
    b"2023-11-17 00:00:00.0000009,20,2\r\n"
    b"2023-11-17 00:00:01.5000000,30,3"
)
PLAIN = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,10,1\n0.25,20,2\n0.25,30,3\n"


def write(folder: Path, content: str | bytes, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_azure_2023_keeps_all_seven_digits(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, AZURE))
    assert trace.metadata["format"] == "azure-2023"
    # The first gap is 10 ticks of 100 ns over midnight.
    assert trace.arrival_s.tolist() == [0.0, 1e-6, 1.5000001]
    assert trace.prompt_tokens.tolist() == [10, 20, 30]
    assert trace.output_tokens.tolist() == [1, 2, 3]
    assert trace.request_id.tolist() == [0, 1, 2]


def test_azure_2024_offsets_and_bare_seconds(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-12 08:47:44.022580+00:00,1,1\n"
        "2024-05-12 08:47:45+00:00,2,2\n2024-05-12 10:47:46.5+02:00,3,3\n"
    )
    assert read_trace(write(tmp_path, text)).arrival_s.tolist() == [0.0, 0.97742, 2.47742]


@pytest.mark.parametrize(
    ("name", "requests", "span_s", "prompts", "outputs", "largest"),
    [
        ("code", 8819, 3435.9, 2047.8, 27.9, (7437, 1899)),
        ("conv", 19366, 3501.7, 1154.7, 211.1, (14050, 1000)),
    ],
)
def test_azure_2023_counts_and_means(
    reference: Path,
    name: str,
    requests: int,
    span_s: float,
    prompts: float,
    outputs: float,
    largest: tuple[int, int],
) -> None:
    trace = read_trace(reference / f"data/1_traces/azure_2023/AzureLLMInferenceTrace_{name}.csv")
    assert len(trace) == requests
    assert trace.arrival_s[-1] == pytest.approx(span_s, abs=0.05)
    assert trace.prompt_tokens.mean() == pytest.approx(prompts, abs=0.05)
    assert trace.output_tokens.mean() == pytest.approx(outputs, abs=0.05)
    assert (trace.prompt_tokens.max(), trace.output_tokens.max()) == largest
    # Vidur's copy of the same trace, seconds rounded by others, is read by the other reader.
    copy = read_trace(reference / f"data/1_traces/vidur_processed/splitwise_{name}.csv")
    assert copy.prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    assert copy.output_tokens.tolist() == trace.output_tokens.tolist()
    assert np.abs(copy.arrival_s - trace.arrival_s).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "requests"), [("poisson5_lognormal_1000", 1000), ("burst0_lognormal_2000", 2000)]
)
def test_workloads_read_without_a_mapping(reference: Path, name: str, requests: int) -> None:
    trace = read_trace(reference / f"workloads/{name}.csv")
    assert len(trace) == requests
    assert trace.arrival_s[0] == 0


@pytest.mark.parametrize(
    "header",
    [
        "arrived_at,num_prefill_tokens,num_decode_tokens",
        "arrival_s;prompt_tokens;output_tokens",
        "Arrival Timestamp\tPrompt-Size\tToken Size",
        "arrival_time_s , Request tokens, Response tokens",
    ],
)
def test_known_names_and_delimiters(tmp_path: Path, header: str) -> None:
    mark = next(mark for mark in "\t;," if mark in header)
    rows = PLAIN.split("\n", 1)[1].replace(",", mark)
    trace = read_trace(write(tmp_path, f"{header}\n{rows}"))
    assert trace.arrival_s.tolist() == [0.0, 0.25, 0.25]
    assert trace.output_tokens.tolist() == [1, 2, 3]
    assert trace.extra == {}


@pytest.mark.parametrize(("target", "scale"), [("arrival_s", 1), ("arrival_ms", 1e3), ("arrival_ns", 1e9)])
def test_mapping_and_units(tmp_path: Path, target: str, scale: float) -> None:
    text = "id,when,in,out,kind\nx,100,5,6,a\ny,103,7,8,b\n"
    columns = {target: "when", "prompt_tokens": "in", "output_tokens": "out"}
    trace = read_trace(write(tmp_path, text), columns=columns)
    assert trace.request_id.tolist() == ["x", "y"]
    assert trace.arrival_s.tolist() == [0.0, 3 / scale]
    assert trace.extra["kind"].tolist() == ["a", "b"]


def test_dates_are_recognised_under_any_name(tmp_path: Path) -> None:
    text = "timestamp,prompt_tokens,output_tokens\n2024-01-01T00:00:00Z,1,1\n2024-01-01T00:00:02.5Z,1,1\n"
    assert read_trace(write(tmp_path, text)).arrival_s.tolist() == [0.0, 2.5]


def test_ids_are_numbers_only_if_they_read_back(tmp_path: Path) -> None:
    head = "id,arrival_s,prompt_tokens,output_tokens\n"
    assert read_trace(write(tmp_path, head + "7,0,1,1\n3,1,1,1\n")).request_id.tolist() == [7, 3]
    assert read_trace(write(tmp_path, head + "07,0,1,1\n7,1,1,1\n")).request_id.tolist() == ["07", "7"]


def test_gzip_byte_order_mark_and_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(b"\xef\xbb\xbf" + PLAIN.encode())
    assert len(read_trace(write(tmp_path, packed, "no_matter.txt"))) == 3
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert len(read_trace("-")) == 3
    with pytest.raises(InputError, match="broken gzip"):
        read_trace(write(tmp_path, packed[:-10], "short.csv.gz"))


def test_text_columns_quotes_and_blank_lines(tmp_path: Path) -> None:
    text = 'arrival_s,prompt_tokens,output_tokens,prompt\n0,1,1,"a, ""b""\nc"\n\n1,2,2,d\n'
    trace = read_trace(write(tmp_path, text))
    assert trace.prompt is not None
    assert trace.prompt.tolist() == ['a, "b"\nc', "d"]


def test_jsonl(tmp_path: Path) -> None:
    # U+2028 inside a string ends no line, and a key may be missing where it is optional.
    text = (
        '{"arrival_ms": 1000, "input_length": 5, "output_length": 6, "hash_ids": [1, 2], '
        '"prompt": "a\u2028b"}\n\n'
        '{"arrival_ms": 1500, "input_length": 7, "output_length": 8, "hash_ids": []}\n'
    )
    trace = read_trace(write(tmp_path, text, "trace.jsonl"))
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.prompt is not None
    assert trace.prompt.tolist() == ["a\u2028b", None]
    assert trace.hash_ids is not None
    assert [row.tolist() for row in trace.hash_ids] == [[1, 2], []]


def test_foreign_parquet(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"t": [3.0, 4.0], "input_tokens": [1, 2], "output_tokens": [3, 4], "model": ["a", "b"]}
    )
    frame.write_parquet(tmp_path / "x.parquet")
    trace = read_trace(tmp_path / "x.parquet", columns={"arrival_s": "t"})
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert trace.extra["model"].tolist() == ["a", "b"]
    frame.with_columns(output_tokens=pl.Series([3, 0])).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"x.parquet, row 1, column 'output_tokens': 0 is not a length"):
        read_trace(tmp_path / "x.parquet", columns={"arrival_s": "t"})


def test_lengths_without_arrivals(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, "input_length,output_length\n3,4\n5,6\n"))
    assert trace.arrival_s.tolist() == [0.0, 0.0]
    assert trace.metadata["arrivals"] == "absent"


HEAD = "id,arrival_s,prompt_tokens,output_tokens\n"
FAULTS = [
    ("a,0,1,1\nb,1,x,1\n", "line 3, column 'prompt_tokens': 'x' is not a number"),
    ("a,0,1,1\nb,1,2.5,1\n", "line 3, column 'prompt_tokens': '2.5' is not a whole number"),
    (
        "a,0,1,0\n",
        "line 2, column 'output_tokens': '0' is not a length; a request has at least 1 output token",
    ),
    ("a,0,1,1\nb,1,-5,1\n", "line 3, column 'prompt_tokens': '-5' is not a length"),
    ("a,0,1,9999999999\n", "line 2, column 'output_tokens': '9999999999' is too large"),
    ("a,0,1,1\nb,nan,1,1\n", "line 3, column 'arrival_s': 'nan' is not finite"),
    ("a,0,1,1\nb,inf,1,1\n", "line 3, column 'arrival_s': 'inf' is not finite"),
    ("a,-1,1,1\n", "line 2, column 'arrival_s': '-1' is negative"),
    ("a,1,1,1\nb,0,1,1\n", "line 3, column 'arrival_s': '0' is earlier than the row before"),
    ("a,0,1,1\n\na,1,1,1\n", "line 4, column 'id': 'a' is the id of an earlier request"),
    ("a,0,,1\n", "line 2, column 'prompt_tokens': is missing"),
    (",0,1,1\n", "line 2, column 'id': is missing"),
    ('"a\nb",0,1,1\nc,1,1,x\n', "line 4, column 'output_tokens': 'x' is not a number"),
    ("a,0,1,1\nb,1,1\n", "line 3, column 'output_tokens': is missing|line 3: has 3 values; the header has 4"),
    ("a,0,1,1\nb,1,1,1,1\n", "line 3: has 5 values; the header has 4"),
    ("a,0,1,1\nb,2,0,1\nc,1,x,1\n", "line 3, column 'prompt_tokens': '0'"),
    (f"a,0,1,{'9' * 200}x\n", r"'9{50,60}\.\.\. is not a number"),
]


@pytest.mark.parametrize(("rows", "message"), FAULTS)
def test_first_fault_is_named(tmp_path: Path, rows: str, message: str) -> None:
    path = write(tmp_path, HEAD + rows)
    with pytest.raises(InputError, match=message) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}, ")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: is not JSON"),
        (
            '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "session_id": 1.5}',
            "line 2, column 'session_id': 1.5 is not a whole number",
        ),
        ("[1]", r"line 2: \[1\] is not a JSON object"),
        ('{"arrival_s": 1, "prompt_tokens": true, "output_tokens": 1}', "line 2, .*: 'true' is not a number"),
        ('{"arrival_s": 1, "prompt_tokens": {}, "output_tokens": 1}', "line 2, .*: '{}' is not a number"),
        ('{"arrival_s": 1, "output_tokens": 1}', "line 2, column 'prompt_tokens': is missing"),
        (
            '{"arrival_s": NaN, "prompt_tokens": 1, "output_tokens": 1}',
            "line 2, .*'arrival_s': .*finite|number",
        ),
        ('{"arrival_s": 1, "prompt_tokens": 1e999, "output_tokens": 1}', "line 2, .*'prompt_tokens': "),
        (
            '{"arrival_s": 1, "prompt_tokens": 1' + "0" * 400 + ', "output_tokens": 1}',
            "line 2, .*'prompt_tokens': ",
        ),
    ],
)
def test_first_fault_of_jsonl(tmp_path: Path, line: str, message: str) -> None:
    good = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}'
    with pytest.raises(InputError, match=message):
        read_trace(write(tmp_path, f"{good}\n{line}\n", "t.jsonl"))


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "trace.csv is empty"),
        (
            b"a,b\n1,2\n",
            {},
            "has no column for prompt_tokens, nor a prompt to count; it has 'a', 'b'. Name it",
        ),
        (PLAIN, {"columns": {"output_tokens": "out"}}, "lacks the column 'out' .for output_tokens."),
        (PLAIN, {"columns": {"outptu_tokens": "x"}}, "not a column of a trace; did you mean 'output_tokens'"),
        (PLAIN, {"format": "cvs"}, "no trace format is called 'cvs'; did you mean 'csv'"),
        (PLAIN, {"format": "azure-2023"}, "lacks the column 'TIMESTAMP'"),
        (AZURE, {"columns": {"prompt_tokens": "ContextTokens"}}, "has fixed columns"),
        (PLAIN, {"on_error": "warn"}, "on_error is 'fail' or 'skip'"),
        (
            b"timestamp,input_tokens,output_tokens\n1,1,1\n",
            {},
            "'timestamp' could be seconds or milliseconds",
        ),
        (b"prompt_tokens,output_tokens,output_tokens\n1,1,1\n", {}, "two columns named 'output_tokens'"),
        (b"prompt_tokens,output_tokens\n1,\xff\n", {}, "line 2: byte 0xff is not UTF-8"),
        (b"prompt_tokens,output_tokens\n", {}, "has no usable request"),
        (b"[1, 2]", {}, "in no format known here"),
        (b"{\n}", {}, "is one JSON object"),
        (b"\x00\x01\x02\x03", {}, "in no format known here"),
    ],
)
def test_whole_files_that_are_refused(
    tmp_path: Path, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(write(tmp_path, content), **options)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*none.csv"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)


def test_skip_counts_and_lists(tmp_path: Path) -> None:
    rows = "a,0,1,1\nb,1,x,1\nc,2,0,1\nd,3,0,1\ne,5,1,1\nf,4,1,1\ng,6,1,1,1\n"
    trace = read_trace(write(tmp_path, HEAD + rows), on_error="skip")
    assert trace.request_id.tolist() == ["a", "f", "e"]
    assert trace.metadata["reordered"] == 1
    dropped = trace.metadata["dropped"]
    assert dropped["count"] == 4
    assert sorted(dropped["reasons"].values()) == [1, 1, 2]
    assert dropped["rows"][0] == "line 3, column 'prompt_tokens': 'x' is not a number"
    assert dropped["rows"][-1] == "line 8: has 5 values; the header has 4"
    with pytest.raises(InputError, match="no usable request: all 1 were left out, the first for line 2"):
        read_trace(write(tmp_path, HEAD + "a,0,0,1\n"), on_error="skip")


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1)),
        min_size=1,
        max_size=5,
    )
)
def test_csv_and_jsonl_give_the_same_trace(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[float, int, int]]
) -> None:
    rows = sorted(rows)
    names = ("arrival_s", "prompt_tokens", "output_tokens")
    folder = tmp_path_factory.mktemp("both")
    table = "".join(",".join(map(repr, row)) + "\n" for row in [*rows])
    one = read_trace(write(folder, ",".join(names) + "\n" + table))
    lines = "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    two = read_trace(write(folder, lines, "t.jsonl"))
    assert one.arrival_s.tolist() == two.arrival_s.tolist() == [row[0] - rows[0][0] for row in rows]
    assert one.prompt_tokens.tolist() == two.prompt_tokens.tolist() == [row[1] for row in rows]
    assert one.output_tokens.tolist() == two.output_tokens.tolist() == [row[2] for row in rows]


HEADS = [HEAD.encode(), AZURE[:41], b'{"prompt_tokens": 1, "output_tokens": 1}\n', b""]


@settings(max_examples=300)
@given(st.sampled_from(HEADS), st.binary(max_size=60) | st.text('0123456789,.-"\n\r{}[]: eE', max_size=60))
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_any_bytes_end_in_a_trace_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, on_error: Any, head: bytes, tail: bytes | str
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.csv"
    path.write_bytes(head + (tail.encode() if isinstance(tail, str) else tail))
    # Anything but an InputError, a warning included, fails the test.
    with contextlib.suppress(InputError):
        assert len(read_trace(path, on_error=on_error)) > 0
