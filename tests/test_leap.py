"""Leaping is an optimisation, never a model: with it off, every record is the same; and no request goes missing.

The truth is the engine's own step-by-step run, which recorded vLLM steps hold to vLLM's decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Affine, simulate
from sim.continuous import ContinuousBatching
from sim.simulate import Result
from traces import Estimates, Trace

TOKENS = st.one_of(st.integers(1, 4), st.integers(1, 60), st.integers(1, 300))
GAPS_S = st.one_of(st.just(0.0), st.sampled_from([0.01, 0.02, 0.5]), st.floats(0, 20))
PLAIN = ("fcfs", "sjf", "ljf", "random", "sjf-noise,sigma=0.5")
MOVING = (
    "srpt",
    "srpt,limit=0.5",
    "srpt,predictor=estp,limit=0.8",
    "las,lead=2",
    "mlfq,quantum=2,levels=4,prefill_tokens=8",
    "gittins",
    "gittins,preempts=False",
    "aging,inner=srpt,rate=5",
    "aging,inner=las+lead=3,rate=100",
    "starvation-cap,inner=sjf,steps=5,quantum=20",
    "starvation-cap,inner=mlfq+quantum=4,steps=20,quantum=8",
    "shortest-work,prefill_tokens=4",
)


@dataclass(frozen=True)
class Hurry:
    """Who waits becomes urgent the sooner the longer its prompt: an order that time turns over."""

    refresh: Any
    preemptive: bool
    vectorised: bool

    def __call__(self, request: Any, now_s: Any) -> Any:
        return request.prompt_tokens - 9 * request.waiting_s(now_s) * (1 + request.prompt_tokens % 7)


HURRIES = [
    Hurry(refresh, preemptive, vectorised)
    for refresh in ("step", "event", 0.07)
    for preemptive in (False, True)
    for vectorised in (False, True)
]


@st.composite
def cases(draw: st.DrawFn, most: int = 30, tokens: Any = TOKENS) -> tuple[Trace, dict[str, Any], str, Affine]:
    """A workload, limits, policy and latency: ties, bursts, one-token outputs and tight memory among them."""
    rows = draw(st.lists(st.tuples(GAPS_S, tokens, tokens), min_size=1, max_size=most))
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
    return trace, limits, draw(st.sampled_from(PLAIN)), latency


def run(case: tuple[Trace, dict[str, Any], Any, Affine], leap: bool, **options: Any) -> Result:
    trace, limits, policy, latency = case
    batching = ContinuousBatching(leap=leap, **limits)
    return simulate(trace, policy=policy, batching=batching, latency=latency, **options)


def with_prefixes(trace: Trace) -> Trace:
    """Three prefixes of up to 200 tokens, in turn."""
    prefix_tokens = np.minimum(trace.prompt_tokens, 200)
    return trace.replace(prefix_id=np.arange(len(trace)) % 3, prefix_tokens=prefix_tokens)


def distributions(trace: Trace, seed: int) -> dict[str, Estimates]:
    """Random bin probabilities, with their means."""
    probabilities = np.random.default_rng(seed).dirichlet(np.full(5, 0.5), len(trace))
    edges = np.array([0.0, 4.0, 10.0, 40.0, 120.0, 300.0])
    mean = probabilities @ ((edges[:-1] + edges[1:]) / 2)
    return {"estp": Estimates("estp", trace.request_id, mean, {}, probabilities, edges)}


def same(leaping: Result, stepping: Result) -> None:
    assert leaping.records.columns == stepping.records.columns
    for one, other in zip(leaping.records, stepping.records, strict=True):
        if one.dtype.is_float():
            np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=1e-9, atol=1e-12)
        else:
            assert one.equals(other), one.name
    for key in ("completed", "rejected", "preemptions", "recomputed_tokens", "peak_kv_blocks"):
        assert leaping.metrics[key] == stepping.metrics[key]


@settings(max_examples=150)
@given(cases(), st.booleans())
def test_records_are_the_same_with_and_without_leaps(
    case: tuple[Trace, dict[str, Any], str, Affine], shared: bool
) -> None:
    trace, *rest = case
    sharing = (with_prefixes(trace) if shared else trace, *rest)
    same(run(sharing, leap=True), run(sharing, leap=False))


@settings(max_examples=100)
@given(cases(10, st.integers(1, 40)), st.sampled_from((*MOVING, *HURRIES)), st.integers(0, 9), st.booleans())
def test_orders_that_move_are_the_same_with_and_without_leaps(
    case: tuple[Trace, dict[str, Any], Any, Affine], policy: Any, seed: int, shared: bool
) -> None:
    trace, limits, _, latency = case
    moving = (with_prefixes(trace) if shared else trace, limits, policy, latency)
    options = {"estimates": distributions(trace, seed)}
    leaping = run(moving, leap=True, **options)
    same(leaping, run(moving, leap=False, **options))
    assert leaping.metrics["completed"] == len(trace)


@settings(max_examples=100)
@given(cases(14, st.integers(1, 60)), st.integers(0, 9), st.sampled_from([0.0, 0.004]))
def test_orders_after_the_prefill_are_the_same_with_and_without_leaps(
    case: tuple[Trace, dict[str, Any], Any, Affine], seed: int, cost_s: float
) -> None:
    trace, limits, _, latency = case
    after = (trace, limits, "estp", latency)
    options = {
        "estimates": distributions(trace, seed),
        "estimate_available": "prefill",
        "estimate_cost_s": cost_s,
    }
    leaping = run(after, leap=True, **options)
    same(leaping, run(after, leap=False, **options))
    assert leaping.metrics["completed"] == len(trace)
    assert leaping.metrics["peak_kv_blocks"] <= limits["num_blocks"] - 1


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


@settings(max_examples=80)
@given(cases(12, st.integers(1, 60)), st.sampled_from((*PLAIN, *MOVING)), st.integers(0, 9), st.booleans())
def test_the_step_log_conserves_requests_tokens_and_blocks(
    case: tuple[Trace, dict[str, Any], Any, Affine], policy: Any, seed: int, shared: bool
) -> None:
    trace, limits, _, latency = case
    result = run(
        (with_prefixes(trace) if shared else trace, limits, policy, latency),
        leap=True,
        estimates=distributions(trace, seed),
        record_steps=True,
    )
    assert result.steps is not None
    log = result.steps[0]
    computed = np.zeros(len(trace), np.int64)
    done: list[int] = []
    for step in log:
        chunked = [number for number, _ in step.chunks]
        places = [*chunked, *step.decoding]
        assert len(set(places)) == len(places) <= limits["max_num_seqs"]
        assert not set(places) & set(done)
        assert (
            sum(tokens for _, tokens in step.chunks) + len(step.decoding) <= limits["max_num_batched_tokens"]
        )
        assert 0 <= step.kv_blocks <= limits["num_blocks"] - 1
        for number, tokens in step.chunks:
            computed[number] += tokens
        computed[step.decoding] += step.steps
        done += step.finished
    assert sorted(done) == list(range(len(trace)))
    assert log[-1].kv_blocks == log[-1].waiting == 0
    # The last token of an output is never fed in; what the cache gave need not be computed.
    records = result.records
    asked = trace.prompt_tokens + trace.output_tokens - 1
    again = records["recomputed_tokens"].to_numpy() - records["prefix_hit_tokens"].to_numpy()
    np.testing.assert_array_equal(computed, asked + again)
