"""vLLM priorities keep the order of the estimates, in the form that vLLM's batch runner reads.

What a line must hold is vLLM's: `custom_id`, `method`, `url` and a chat completion `body`, whose `priority` is
a signed 64-bit integer, smaller served first, ties by arrival (so a stable sort must give the policy's order).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from experiments.cli import main
from predictor.priority import STEPS_PER_TOKEN, Scale, batch_lines, priorities
from sim import Affine, StaticBatching, simulate
from traces import Estimates, InputError, Trace, write_estimates, write_trace

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from vllm_order import tau

LINE = {"custom_id": str, "method": str, "url": str, "body": dict}


def trace_of(lengths: list[int], prompts: bool = True) -> Trace:
    n = len(lengths)
    texts = [f"Say {k} words, “quoted”\n\u2028\tשלום" for k in lengths]
    return Trace(
        np.arange(n), np.zeros(n), np.full(n, 5), np.array(lengths), prompt=texts if prompts else None
    )


def estimates_of(mean: list[float], name: str = "estp", **metadata: Any) -> Estimates:
    return Estimates(name, np.arange(len(mean)), np.array(mean), metadata=metadata)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write_trace(trace_of([3, 1, 2]), tmp_path / "trace.parquet")
    write_trace(trace_of([3, 1, 2], prompts=False), tmp_path / "bare.parquet")
    write_estimates(
        [
            estimates_of([30.0004, 10.5, 20.25], backbone="an-llm"),
            estimates_of([2.0, 1.0, 1.0], "ltr", backbone="an-llm"),
        ],
        tmp_path / "estimates.parquet",
    )
    return tmp_path


def export(files: Path, *arguments: object) -> int:
    return main(
        ["export-priority", *(str(a) for a in (files / "estimates.parquet", files / "out.jsonl", *arguments))]
    )


def read(files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (files / "out.jsonl").read_bytes().split(b"\n")[:-1]]


@given(st.lists(st.floats(-1e12, 1e12), max_size=20), st.sampled_from(["tokens", "rank"]))
def test_an_order_is_never_turned_round(values: list[float], scale: Scale) -> None:
    given_values = np.array(values)
    found = priorities(given_values, scale)
    assert found.dtype == np.int64
    order = np.argsort(given_values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    if scale == "rank":
        assert [*np.argsort(found, kind="stable")] == [*order]
        assert sorted(set(found.tolist())) == list(range(len(set(values))))
    else:
        assert np.abs(found / STEPS_PER_TOKEN - given_values) == pytest.approx(0, abs=1e-3)


def test_equal_estimates_tie() -> None:
    assert priorities(np.array([7.5, 2.0, 7.5, 2.0])).tolist() == [7500, 2000, 7500, 2000]
    assert priorities(np.array([7.5, 2.0, 7.5, -1.0]), "rank").tolist() == [2, 1, 2, 0]


def test_a_value_beyond_64_bits_is_refused() -> None:
    assert priorities(np.array([9.2e15]))[0] == 9_200_000_000_000_000_000
    for value in (9.3e15, -1e300):
        with pytest.raises(InputError, match="too large for a 64-bit priority"):
            priorities(np.array([1.0, value]))


def test_vllm_would_serve_in_the_order_of_the_simulation() -> None:
    rng = np.random.default_rng(3)
    trace = trace_of(rng.integers(1, 200, 40).tolist())
    one = estimates_of(rng.choice([5.0, 40.0, 40.0001, 90.0], 40).tolist())
    result = simulate(
        trace, "estp", StaticBatching(batch_size=1), Affine(1e-3, 0, 1e-3, 0), estimates={"estp": one}
    )
    records = result.records.sort("first_scheduled_s")
    lines = [json.loads(line) for line in batch_lines(trace, priorities(one.mean, "rank"), "m")]
    served = sorted(range(len(lines)), key=lambda row: (lines[row]["body"]["priority"], row))
    assert [lines[row]["custom_id"] for row in served] == [str(i) for i in records["request_id"]]


def test_lines_of_a_trace_are_chat_requests(files: Path) -> None:
    assert export(files, "--trace", files / "trace.parquet", "--policy", "estp") == 0
    lines = read(files)
    for line, length in zip(lines, (3, 1, 2), strict=True):
        assert {key: type(value) for key, value in line.items()} == LINE
        assert (line["method"], line["url"]) == ("POST", "/v1/chat/completions")
        assert line["body"]["messages"] == [
            {"role": "user", "content": f"Say {length} words, “quoted”\n\u2028\tשלום"}
        ]
        assert line["body"]["model"] == "an-llm"
        assert "max_tokens" not in line["body"]
    assert [line["custom_id"] for line in lines] == ["0", "1", "2"]
    assert [line["body"]["priority"] for line in lines] == [30000, 10500, 20250]


def test_settings_of_the_answers(files: Path) -> None:
    trace = ("--trace", files / "trace.parquet", "--policy", "ltr", "--scale", "rank", "--model", "served")
    assert export(files, *trace, "--max-tokens", 9) == 0
    assert [(b["body"]["priority"], b["body"]["max_tokens"]) for b in read(files)] == [(1, 9), (0, 9), (0, 9)]
    assert {b["body"]["model"] for b in read(files)} == {"served"}
    assert export(files, *trace, "--recorded-lengths") == 0
    assert [b["body"]["max_tokens"] for b in read(files)] == [3, 1, 2]
    assert all(b["body"]["ignore_eos"] is True for b in read(files))


def test_fcfs_and_the_oracle_come_from_the_trace(files: Path) -> None:
    for policy, wanted in (("fcfs", [0, 0, 0]), ("sjf", [3000, 1000, 2000])):
        assert export(files, "--trace", files / "trace.parquet", "--policy", policy) == 0
        assert [line["body"]["priority"] for line in read(files)] == wanted


def test_without_a_trace_ids_and_priorities_alone(files: Path) -> None:
    assert export(files) == 0
    assert read(files)[1] == {"custom_id": "1", "priority": 10500}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--policy", "egtp"), "policy 'egtp' is none of estp, ltr, fcfs, sjf"),
        (("--policy", "sjf"), "policy 'sjf' needs the trace"),
        (("--max-tokens", "5"), "add --trace"),
        (("--max-tokens", "0"), "--max-tokens is 0"),
        (("--trace", "trace.parquet", "--max-tokens", "5", "--recorded-lengths"), "exclude each other"),
        (("--trace", "bare.parquet"), "no column 'prompt'"),
        (("--trace", "nothing.parquet"), "nothing.parquet"),
    ],
)
def test_bad_input_is_one_sentence(
    files: Path,
    arguments: tuple[str, ...],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(files)
    assert export(files, *arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (files / "out.jsonl").exists()


def test_estimates_that_name_no_llm_ask_for_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_estimates([estimates_of([1.0, 2.0, 3.0])], files / "estimates.parquet")
    assert export(files, "--trace", files / "trace.parquet") == 2
    assert "names no LLM; say which the server has with --model" in capsys.readouterr().err


def test_what_was_read_is_not_overwritten(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("estimates.parquet", "trace.parquet"):
        before = (files / name).read_bytes()
        arguments = ["export-priority", str(files / "estimates.parquet"), str(files / name)]
        assert main([*arguments, "--policy", "estp", "--trace", str(files / "trace.parquet")]) == 2
        assert "would be overwritten" in capsys.readouterr().err
        assert (files / name).read_bytes() == before


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_the_order_tool_counts_pairs_as_scipy_does(rows: list[tuple[int, int]]) -> None:
    first, second = (list(column) for column in zip(*rows, strict=True))
    if len(set(first)) == 1 or len(set(second)) == 1:
        assert tau(first, second) == "-"
    else:
        assert float(tau(first, second)) == pytest.approx(kendalltau(first, second).statistic, abs=0.006)
