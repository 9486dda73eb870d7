"""A timeline follows Chromium's Trace Event Format, and its slices are what the records say happened."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import Affine, ContinuousBatching, StaticBatching, simulate
from sim.timeline import write_timeline
from traces.errors import InputError
from traces.schema import Trace

LATENCY = Affine(0.01, 1e-4, 1e-3)


@pytest.fixture(scope="module")
def run() -> Any:
    rng = np.random.default_rng(0)
    n = 60
    prompts, outputs = rng.integers(1, 60, n), rng.integers(1, 60, n)
    trace = Trace(np.arange(n) + 500, np.cumsum(rng.exponential(0.1, n)), prompts, outputs)
    batching = ContinuousBatching(max_num_seqs=8, max_num_batched_tokens=32, num_blocks=20)
    return simulate(trace, batching=batching, latency=LATENCY, replicas=2, record_steps=True)


@pytest.fixture(scope="module")
def events(run: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = write_timeline(run, tmp_path_factory.mktemp("timeline") / "run.json.gz")
    content = json.loads(gzip.decompress(path.read_bytes()))
    assert content["displayTimeUnit"] in ("ms", "ns")
    return content["traceEvents"]


def test_events_have_the_fields_of_the_format(events: list[dict[str, Any]]) -> None:
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    for event in events:
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        else:
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["tid"], int)
            assert event["dur"] > 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())


def test_slices_tell_the_life_of_each_request(run: Any, events: list[dict[str, Any]]) -> None:
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[names[event["pid"], event["tid"]]].append(event)
    assert run.metrics["preemptions"] > 0
    for row in run.records.iter_rows(named=True):
        life = slices[f"request {row['request_id']}"]
        assert {event["pid"] for event in life} == {row["replica"]}
        # One after the other, from the arrival to the completion.
        assert life[0]["ts"] == pytest.approx(row["arrival_s"] * 1e6, abs=0.01)
        for before, after in itertools.pairwise(life):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=0.01)
            assert before["name"] != after["name"]
        assert life[-1]["ts"] + life[-1]["dur"] == pytest.approx(row["completion_s"] * 1e6, abs=0.01)
        # A victim that is admitted again in the very next step was still preempted for that step.
        assert sum(event["name"] == "preempted" for event in life) == row["preemptions"]
        prefill = next(event for event in life if event["name"] == "prefill")
        assert prefill["ts"] == pytest.approx(row["first_scheduled_s"] * 1e6, abs=0.01)


def test_counters_never_pass_the_limits(events: list[dict[str, Any]]) -> None:
    counts = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            counts[event["name"]].append(event["args"]["value"])
    assert 1 < max(counts["batch (requests)"]) <= 8
    assert 1 < max(counts["KV blocks"]) <= 19
    assert all(values[-1] == 0 for values in counts.values())


def test_without_a_step_log_there_is_no_timeline(tmp_path: Path) -> None:
    trace = Trace([0], [0.0], [4], [4])
    with pytest.raises(InputError, match="record_steps=True"):
        write_timeline(
            simulate(trace, batching=ContinuousBatching(num_blocks=9), latency=LATENCY), tmp_path / "a"
        )
    static = simulate(trace, batching=StaticBatching(), latency=LATENCY, record_steps=True)
    static.steps[0].append("anything")  # type: ignore[index]
    with pytest.raises(InputError, match="needs continuous batching"):
        write_timeline(static, tmp_path / "a")
