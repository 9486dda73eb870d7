"""Each metric is what its formula says, on records written by hand, and vLLM's file has vLLM's keys."""

from __future__ import annotations

import json
import math

import numpy as np
import polars as pl
import pytest

from sim import Affine, StaticBatching, simulate
from sim.metrics import Totals, measure, meets, parse_goodput, vllm_result
from traces.errors import InputError
from traces.schema import Trace

NAN = math.nan

RECORDS = pl.DataFrame(
    {
        "status": ["completed", "completed", "completed", "rejected"],
        "arrival_s": [1.0, 2.0, 4.0, 5.0],
        "first_scheduled_s": [1.0, 3.0, 4.5, NAN],
        "first_token_s": [1.5, 4.0, 5.0, NAN],
        "completion_s": [3.5, 6.0, 5.0, NAN],
        "prompt_tokens": [10, 20, 30, 40],
        "output_tokens": [5, 3, 1, 9],
        "preemptions": [0, 2, 0, 0],
        "recomputed_tokens": [0, 21, 0, 0],
        "prefix_hit_tokens": [0, 15, 0, 0],
        "alone_s": [2.5, 2.0, 0.5, 1.0],
    }
)
TOTALS = Totals(
    replicas=2,
    slots=4,
    busy_s=6.0,
    slot_s=9.0,
    padded_tokens=3,
    batched_tokens=9,
    peak_kv_blocks=7,
    horizon_s=math.inf,
)


def test_every_metric_by_hand():
    metrics = measure(RECORDS, TOTALS, goodput=parse_goodput("ttft:1000 tpot:600"), starvation_s=0.75)
    # JCT 2.5, 4, 1; TTFT 0.5, 2, 1; TPOT 2/4, 2/2, none; queueing 0, 1, 0.5; first arrival 1, last end 6.
    expected = {
        "mean_jct_s": 7.5 / 3,
        "p50_jct_s": 2.5,
        "p90_jct_s": 2.5 + 0.8 * 1.5,
        "mean_ttft_s": 3.5 / 3,
        "p95_ttft_s": 1.9,
        "mean_tpot_s": 0.75,
        "p99_tpot_s": 0.995,
        "mean_queueing_s": 0.5,
        "max_queueing_s": 1.0,
        "starved_share": 1 / 3,
        "mean_slowdown": (1 + 2 + 2) / 3,
        "prefix_hit_tokens": 15,
        "prefix_hit_rate": 15 / (10 + 20 + 30),
        "duration_s": 5.0,
        "output_throughput": 9 / 5,
        "request_throughput": 3 / 5,
        # The first meets both; the second has a TTFT of 2 s; the third has one token, so a TPOT of 0.
        "goodput": 2 / 5,
        "goodput_share": 2 / 4,
        "padding_ratio": 3 / 9,
        "effective_share": 9 / 12,
        "busy_share": 6 / 10,
        "occupancy": 9 / 24,
        "mean_batch_size": 1.5,
        "arrivals": 4,
        "completed": 3,
        "rejected": 1,
        "unfinished": 0,
        "preemptions": 2,
        "recomputed_tokens": 21,
        "peak_kv_blocks": 7,
    }
    for key, value in expected.items():
        assert metrics[key] == pytest.approx(value, rel=1e-14), key


def test_the_keys_are_those_of_the_design():
    named = [
        f"{p}_{m}_s"
        for p in ("mean", "p50", "p90", "p95", "p99")
        for m in ("jct", "ttft", "tpot", "queueing")
    ]
    named += [
        "mean_slowdown",
        "output_throughput",
        "request_throughput",
        "goodput",
        "padding_ratio",
        "duration_s",
    ]
    named += ["busy_share", "occupancy", "completed", "rejected", "preemptions", "recomputed_tokens"]
    named += ["peak_kv_blocks"]
    assert not set(named) - measure(RECORDS, TOTALS).keys()
    assert math.isnan(measure(RECORDS, TOTALS)["goodput"])


def test_nothing_completed_is_nan_and_not_an_error():
    metrics = measure(RECORDS.with_columns(status=pl.lit("rejected")), TOTALS)
    assert math.isnan(metrics["mean_jct_s"])
    assert math.isnan(metrics["output_throughput"])
    assert metrics["rejected"] == 4


def test_pooled_gaps_equal_the_gaps_written_out():
    rng = np.random.default_rng(3)
    gaps = [(rng.random(n), rng.integers(0, 4, n)) for n in (5, 1, 8)] + [(0.25, 3)]
    written_out = np.concatenate([np.repeat(seconds, counts) for seconds, counts in gaps])
    metrics = measure(RECORDS, TOTALS, gaps=gaps)
    assert metrics["mean_itl_s"] == pytest.approx(written_out.mean(), rel=1e-13)
    for level in (50, 90, 95, 99):
        assert metrics[f"p{level}_itl_s"] == pytest.approx(np.percentile(written_out, level), rel=1e-13)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("ttft:500 tpot:50", {"ttft": 0.5, "tpot": 0.05}),
        ("e2el:20000", {"e2el": 20.0}),
        ("ttft:0,tpot:1", {"ttft": 0, "tpot": 0.001}),
    ],
)
def test_goodput_bounds(text, seconds):
    assert parse_goodput(text) == seconds
    assert parse_goodput(text.replace(",", " ").split()) == seconds


@pytest.mark.parametrize(
    "text", ["ttft", "ttft:", "ttft:fast", "jct:500", "ttft:-1", "ttft:nan", "ttft:1 ttft:2"]
)
def test_goodput_bounds_that_are_none(text):
    with pytest.raises(InputError, match="name:milliseconds"):
        parse_goodput(text)


def test_a_bound_that_is_just_met_is_met():
    done = RECORDS.head(3)
    assert meets(done, {"e2el": 2.5}).tolist() == [True, False, True]
    assert meets(done, {}).all()


# What `vllm bench serve --save-result` writes for text generation (vllm/benchmarks/serve.py).
VLLM_KEYS = {
    *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate"),
    *("burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens"),
    *("total_output_tokens", "request_throughput", "request_goodput", "output_throughput"),
    *("total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx"),
    *(f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")),
}


def test_the_file_that_vllm_writes():
    result = vllm_result(RECORDS, measure(RECORDS, TOTALS), [(0.5, 4), (1.0, 2)], request_rate=4.0)
    assert result.keys() == VLLM_KEYS
    assert result["mean_e2el_ms"] == pytest.approx(2500)
    assert result["median_ttft_ms"] == pytest.approx(1000)
    assert result["std_tpot_ms"] == pytest.approx(250)
    assert result["mean_itl_ms"] == pytest.approx(4000 / 6)
    assert (result["completed"], result["failed"]) == (3, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (60, 9)
    assert result["total_token_throughput"] == 69 / 5
    # In the system: [1, 3.5), [2, 6), [4, 5).
    assert result["max_concurrent_requests"] == 2


def test_the_file_that_vllm_writes_is_json_from_a_run():
    trace = Trace(np.arange(3), np.array([0.0, 0, 1]), np.array([4, 2, 8]), np.array([3, 5, 2]))
    run = simulate(trace, "fcfs", StaticBatching(2), Affine(1.0), goodput="e2el:6000")
    written = json.loads(json.dumps(run.vllm(model_id="m", detailed=True), allow_nan=False))
    assert written["request_goodput"] == run.metrics["goodput"]
    assert written["ttfts"] == [1.0, 1.0, 5.0]
    assert written["mean_itl_ms"] is None
