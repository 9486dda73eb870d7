"""Leaping is an optimisation, never a model: with it off, every record is the same; and no request goes missing.

The truth is the engine's own step-by-step run, which recorded vLLM steps hold to vLLM's decisions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Affine, simulate
from sim.continuous import ContinuousBatching
from sim.simulate import Result
from traces import Trace

TOKENS = st.one_of(st.integers(1, 4), st.integers(1, 60), st.integers(1, 300))
GAPS_S = st.one_of(st.just(0.0), st.sampled_from([0.01, 0.02, 0.5]), st.floats(0, 20))
POLICIES = ("fcfs", "sjf", "ljf", "random", "sjf-noise,sigma=0.5")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, dict[str, Any], str, Affine]:
    """A workload, limits, policy and latency: ties, bursts, one-token outputs and tight memory among them."""
    rows = draw(st.lists(st.tuples(GAPS_S, TOKENS, TOKENS), min_size=1, max_size=30))
    gaps, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    arrivals = np.cumsum(gaps) - gaps[0]
    trace = Trace(np.arange(len(rows)), arrivals, prompts, outputs)
    block_size = draw(st.sampled_from([1, 4, 16]))
    need = int((-(-(prompts + outputs) // block_size)).max())
    seqs = draw(st.sampled_from([1, 3, 16]))
    limits = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(seqs, draw(st.sampled_from([16, 64, 512]))),
        "max_model_len": 700,
        "block_size": block_size,
        "num_blocks": 1 + need + draw(st.sampled_from([0, need // 2, 3 * need])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 20])),
        "enable_prefix_caching": draw(st.booleans()),
    }
    latency = Affine(
        a=draw(st.sampled_from([0.001, 0.01])), b=1e-4, c=1e-3, d=draw(st.sampled_from([0.0, 1e-5]))
    )
    return trace, limits, draw(st.sampled_from(POLICIES)), latency


def run(case: tuple[Trace, dict[str, Any], str, Affine], leap: bool) -> Result:
    trace, limits, policy, latency = case
    return simulate(trace, policy=policy, batching=ContinuousBatching(leap=leap, **limits), latency=latency)


@settings(max_examples=150)
@given(cases())
def test_records_are_the_same_with_and_without_leaps(case: tuple[Trace, dict[str, Any], str, Affine]) -> None:
    leaping, stepping = run(case, leap=True), run(case, leap=False)
    assert leaping.records.columns == stepping.records.columns
    for one, other in zip(leaping.records, stepping.records, strict=True):
        if one.dtype.is_float():
            np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=1e-9, atol=1e-12)
        else:
            assert one.equals(other), one.name
    for key in ("completed", "rejected", "preemptions", "recomputed_tokens", "peak_kv_blocks"):
        assert leaping.metrics[key] == stepping.metrics[key]


@given(cases())
def test_every_request_completes_or_is_rejected_once(case: tuple[Trace, dict[str, Any], str, Affine]) -> None:
    trace, limits, _, _ = case
    result = run(case, leap=True)
    m = result.metrics
    assert m["completed"] + m["rejected"] + m["unfinished"] == len(trace)
    assert m["unfinished"] == m["rejected"] == 0  # the cache holds the largest request, and so does the model
    assert m["peak_kv_blocks"] <= limits["num_blocks"] - 1
    records = result.records
    assert (records["first_scheduled_s"] >= records["arrival_s"]).all()
    assert (records["first_token_s"] > records["first_scheduled_s"]).all()
    assert (records["completion_s"] >= records["first_token_s"]).all()


@given(cases())
def test_fcfs_schedules_no_later_arrival_first(case: tuple[Trace, dict[str, Any], str, Affine]) -> None:
    trace, limits, _, latency = case
    records = run((trace, limits, "fcfs", latency), leap=True).records
    assert (np.diff(records["first_scheduled_s"].to_numpy()) >= 0).all()


def test_what_can_never_fit_is_rejected_and_counted() -> None:
    trace = Trace([1, 2, 3], [0.0, 0.0, 0.0], [100, 10, 10], [10, 100, 10])
    batching = ContinuousBatching(max_model_len=64, num_blocks=64, max_num_seqs=4, max_num_batched_tokens=64)
    m = simulate(trace, batching=batching, latency=Affine(0.01, 0, 0, 0)).metrics
    assert (m["completed"], m["rejected"], m["unfinished"]) == (1, 2, 0)


def test_two_requests_by_hand() -> None:
    # Constant steps of 1 s. Step 1 prefills both (4 + 4 tokens) and yields their first tokens; then one
    # token a step: A (3 tokens) ends after step 3, B (2 tokens) after step 2.
    trace = Trace([1, 2], [0.0, 0.0], [4, 4], [3, 2])
    batching = ContinuousBatching(max_num_seqs=2, max_num_batched_tokens=8, num_blocks=32, block_size=4)
    records = simulate(trace, batching=batching, latency=Affine(1.0, 0, 0, 0)).records
    assert records["first_token_s"].to_list() == pytest.approx([1, 1])
    assert records["completion_s"].to_list() == pytest.approx([3, 2])
