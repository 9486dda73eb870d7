"""Static batches last what StaticBatching says: hand-worked cases, a brute-force twin, and invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import Affine, StaticBatching, from_settings, simulate
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

# Coefficients are powers of two, so that every sum below is exact.
LATENCY = Affine(a=1.0, b=0.5, c=0.25, d=1 / 64)


def made(arrival_s, prompt_tokens, output_tokens, request_id=None):
    ids = np.arange(len(arrival_s)) if request_id is None else np.array(request_id)
    return Trace(ids, np.array(arrival_s, float), np.array(prompt_tokens), np.array(output_tokens))


THREE = made([0, 0, 1], [4, 2, 8], [3, 5, 2])


def test_two_batches_of_three_requests_by_hand():
    # Batch {0, 1}: prefill 1 + 0.5 * 2 * 4 = 5; four decode steps of 1 + 0.25 * 2 = 1.5 and
    # contexts 2 * (5 + 6 + 7 + 8) = 52 tokens, 52 / 64 s: ends at 11.8125.
    # Batch {2}: prefill 1 + 0.5 * 8 = 5; one step of 1.25 and 9 / 64 s: ends at 18.203125.
    result = simulate(THREE, "fcfs", StaticBatching(batch_size=2), LATENCY)
    records, metrics = result.records, result.metrics
    assert records["first_scheduled_s"].to_list() == [0, 0, 11.8125]
    assert records["first_token_s"].to_list() == [5, 5, 16.8125]
    assert records["completion_s"].to_list() == [11.8125, 11.8125, 18.203125]
    assert metrics["mean_jct_s"] == pytest.approx((11.8125 + 11.8125 + 17.203125) / 3, rel=1e-15)
    # Request 0 is padded by 2 tokens, out of 3 + 5 + 2 that were asked for.
    assert metrics["padding_ratio"] == 2 / 10
    assert metrics["effective_share"] == 10 / 12
    assert metrics["output_throughput"] == 10 / 18.203125
    assert metrics["request_throughput"] == 3 / 18.203125
    assert metrics["duration_s"] == 18.203125
    assert metrics["busy_share"] == 1
    assert metrics["occupancy"] == (2 * 11.8125 + 6.390625) / (2 * 18.203125)


def test_a_request_released_at_its_own_last_token():
    result = simulate(THREE, "fcfs", StaticBatching(batch_size=2, release="token"), LATENCY)
    # Request 0 has its third token after two steps: 5 + 2 * 1.5 + 2 * (5 + 6) / 64.
    assert result.records["completion_s"].to_list() == [8.34375, 11.8125, 18.203125]
    assert result.metrics["padding_ratio"] == 0.2


def test_slowdown_is_against_the_request_alone():
    alone = simulate(THREE, "fcfs", StaticBatching(batch_size=2), LATENCY).records["alone_s"].to_list()
    # 1 + 0.5 P, then o - 1 steps of 1.25 with contexts P + 1, P + 2, ...
    by_hand = [3 + 2.5 + (5 + 6) / 64, 2 + 5 + (3 + 4 + 5 + 6) / 64, 5 + 1.25 + 9 / 64]
    assert alone == by_hand


def test_gaps_between_tokens_are_the_steps_in_which_they_came():
    result = simulate(THREE, "fcfs", StaticBatching(batch_size=2), LATENCY, itl=True)
    steps = [1.5 + 2 * (4 + j) / 64 for j in (1, 2, 3, 4)]
    # Steps 1 and 2 give a token to both requests, 3 and 4 to request 1 alone.
    pooled = [steps[0]] * 2 + [steps[1]] * 2 + steps[2:] + [1.25 + 9 / 64]
    assert result.metrics["mean_itl_s"] == pytest.approx(np.mean(pooled), rel=1e-14)
    for level in (50, 90, 95, 99):
        assert result.metrics[f"p{level}_itl_s"] == pytest.approx(np.percentile(pooled, level), rel=1e-14)


def test_shortest_first_by_the_oracle_and_by_estimates():
    trace = made([0, 0, 0, 0], [1, 1, 1, 1], [8, 2, 4, 6])
    one_by_one = StaticBatching(batch_size=1)
    order = simulate(trace, "sjf", one_by_one, LATENCY).records["first_scheduled_s"].arg_sort()
    assert order.to_list() == [1, 2, 3, 0]
    estimates = {"estp": Estimates("estp", np.arange(4)[::-1].copy(), np.array([1.0, 3.0, 3.0, 2.0]))}
    records = simulate(trace, "estp", one_by_one, LATENCY, estimates=estimates).records
    # Estimates are joined by id: request 3 -> 1, 2 -> 3, 1 -> 3, 0 -> 2; the tie goes to the smaller id.
    assert records["first_scheduled_s"].arg_sort().to_list() == [3, 0, 1, 2]


def test_an_idle_replica_waits_for_a_full_batch_until_its_timeout():
    trace = made([0, 1, 9], [4, 4, 4], [1, 1, 1])
    started = {
        timeout: simulate(trace, "fcfs", StaticBatching(2, timeout), Affine(1))
        .records["first_scheduled_s"]
        .to_list()
        for timeout in (0.0, 0.5, 3.0)
    }
    # With 0.5, request 1 comes during a batch: its replica is idle at 1.5 and waits from then on.
    assert started == {0.0: [0, 1, 9], 0.5: [0.5, 2.0, 9.5], 3.0: [1, 1, 12]}


def test_a_horizon_cuts_the_run_and_its_means():
    batching = StaticBatching(batch_size=2)
    cut = simulate(THREE, "fcfs", batching, LATENCY, horizon_s=16.8125)
    assert cut.records["status"].to_list() == ["completed", "completed", "unfinished"]
    # What happens at the horizon has not happened.
    assert np.isnan(cut.records["first_token_s"][2])
    assert cut.metrics["unfinished"] == 1
    assert cut.metrics["duration_s"] == 16.8125
    assert cut.metrics["busy_share"] == 1
    assert np.isnan(cut.metrics["mean_jct_s"])
    assert np.isnan(cut.metrics["mean_slowdown"])
    # Padding counts batches that ended.
    assert cut.metrics["padding_ratio"] == 2 / 8
    assert simulate(THREE, "fcfs", batching, LATENCY, horizon_s=11.0).metrics["padding_ratio"] == 0
    partial = simulate(THREE, "fcfs", batching, LATENCY, horizon_s=16.8125, partial=True)
    assert partial.metrics["mean_jct_s"] == 11.8125


def test_an_estimate_costs_time_before_its_request_can_be_ranked():
    trace = made([0, 0, 0], [2, 4, 6], [1, 1, 1])
    estimates = {"estp": Estimates("estp", np.arange(3), np.array([3.0, 2.0, 1.0]))}
    costs = {"estimate_cost_s": 1.0, "estimate_cost_per_token_s": 0.25}

    def started(policy):
        run = simulate(trace, policy, StaticBatching(1), Affine(0.125), estimates=estimates, **costs)
        return run.records["first_scheduled_s"].to_list()

    assert started("estp") == [1.5, 2.0, 2.5]
    # Who reads no estimate does not pay for one; the oracle is a bound without a predictor.
    assert started("fcfs") == [0, 0.125, 0.25]
    assert started("sjf") == [0, 0.125, 0.25]


def test_static_batching_cannot_wait_for_estimates_from_prefill():
    estimates = {"estp": Estimates("estp", np.arange(3), np.ones(3))}
    late = {"estimates": estimates, "estimate_available": "prefill"}
    with pytest.raises(InputError, match="before its prefill"):
        simulate(THREE, "estp", StaticBatching(), LATENCY, **late)
    assert simulate(THREE, "fcfs", StaticBatching(), LATENCY, **late).metrics["completed"] == 3


@pytest.mark.parametrize(
    ("form", "batches"),
    [
        ("policy", [[0, 1], [2, 3], [4, 5]]),
        # A window of four by length: 8, 2, 6, 4 -> {2, 4}, {6, 8}; then the rest.
        ("window,batches=2,predictor=oracle", [[1, 3], [0, 2], [4, 5]]),
        # Two bins cut at the median 5: {8, 6, 9} and {2, 4, 3}; request 0 decides for the long one.
        ("bins,bins=2,predictor=oracle", [[0, 2], [1, 3], [4], [5]]),
    ],
)
def test_forms_of_batches(form, batches):
    trace = made([0] * 6, [1] * 6, [8, 2, 6, 4, 9, 3])
    records = simulate(trace, "fcfs", StaticBatching(2, form=form), Affine(1)).records
    together = records.group_by("first_scheduled_s").agg("request_id").sort("first_scheduled_s")
    assert [sorted(batch) for batch in together["request_id"].to_list()] == batches


def test_settings_run_again_to_the_same_records():
    batching = StaticBatching(2, 0.5, "token", "window,batches=3,predictor=oracle")
    first = simulate(THREE, "sjf-noise,sigma=0.3", batching, LATENCY, 2, seed=7, goodput="ttft:6000")
    again = simulate(THREE, **from_settings(first.settings))
    assert again.records.equals(first.records)
    assert again.settings == first.settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size = 0"),
        ({"batch_size": 2.5}, "batch_size = 2.5"),
        ({"batch_timeout_s": -1.0}, "batch_timeout_s"),
        ({"release": "never"}, "'batch' or 'token'"),
        ({"form": "windows"}, "did you mean window"),
    ],
)
def test_settings_out_of_range(change, message):
    with pytest.raises(InputError, match=message):
        replace(StaticBatching(), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latency": None}, "no latency model"),
        ({"replicas": 0}, "replicas = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"horizon_s": 0.0}, "horizon_s"),
        ({"estimate_available": "later"}, "estimate_available"),
        ({"estimate_cost_s": -1.0}, "estimate_cost_s"),
        ({"goodput": "jct:5"}, "goodput bound 'jct:5'"),
        ({"router": "round_robbin"}, "did you mean round_robin"),
    ],
)
def test_arguments_out_of_range(change, message):
    with pytest.raises(InputError, match=message):
        simulate(THREE, **{"batching": StaticBatching(), "latency": LATENCY, **change})


# Arrivals on a coarse grid, so that ties are common.
requests = st.lists(
    st.tuples(st.integers(0, 12), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=14
).map(lambda rows: made(*zip(*sorted(rows), strict=True)))
batchings = st.builds(
    StaticBatching,
    batch_size=st.integers(1, 4),
    batch_timeout_s=st.sampled_from([0.0, 0.5, 4.0]),
    release=st.sampled_from(["batch", "token"]),
    form=st.sampled_from(["policy", "window,batches=2,predictor=oracle", "bins,bins=3,predictor=oracle"]),
)
policies = st.sampled_from(["fcfs", "sjf", "ljf", "random", "sjf-noise"])
routers = st.sampled_from(["round_robin", "random", "join_shortest_queue", "power_of_two"])


def twin(trace, batch_size, key):
    """Completion of each request (n,), restated: one replica, no timeout, step by step."""
    waiting, done = set(range(len(trace))), {}
    now = 0.0
    while waiting:
        ready = [i for i in waiting if trace.arrival_s[i] <= now]
        if not ready:
            now = min(trace.arrival_s[i] for i in waiting)
            continue
        batch = sorted(ready, key=lambda i: (key[i], trace.arrival_s[i], trace.request_id[i]))[:batch_size]
        waiting -= set(batch)
        prompt, b = max(trace.prompt_tokens[batch]), len(batch)
        now += LATENCY.step_time(b * prompt, 0, 0)
        for j in range(1, max(trace.output_tokens[batch])):
            now += LATENCY.step_time(0, b, b * (prompt + j))
        done |= dict.fromkeys(batch, now)
    return [done[i] for i in range(len(trace))]


@given(requests, st.integers(1, 4), st.booleans())
def test_a_twin_that_steps_through_the_batches_agrees(trace, batch_size, shortest):
    key = trace.output_tokens if shortest else trace.arrival_s
    records = simulate(trace, "sjf" if shortest else "fcfs", StaticBatching(batch_size), LATENCY).records
    assert records["completion_s"].to_list() == pytest.approx(twin(trace, batch_size, key), rel=1e-12)


@given(requests, batchings, policies, routers, st.integers(1, 3))
def test_every_request_is_served_once_in_a_batch_that_fits(trace, batching, policy, router, replicas):
    result = simulate(trace, policy, batching, LATENCY, replicas, router=router)
    records, metrics = result.records, result.metrics
    assert metrics["completed"] == metrics["arrivals"] == len(trace)
    assert (records["first_scheduled_s"] >= records["arrival_s"]).all()
    assert (records["first_token_s"] > records["first_scheduled_s"]).all()
    assert (records["completion_s"] >= records["first_token_s"]).all()
    assert metrics["mean_slowdown"] >= 1 - 1e-12
    batches = records.group_by("replica", "first_scheduled_s").agg(
        pl.len(), pl.col("completion_s").max().alias("end_s")
    )
    assert batches["len"].max() <= batching.batch_size
    for _, one in batches.sort("first_scheduled_s").group_by("replica"):
        assert (one["first_scheduled_s"][1:] >= one["end_s"][:-1]).all()


@given(requests, batchings, policies)
def test_release_at_the_last_token_is_never_later(trace, batching, policy):
    by_token, by_batch = (
        simulate(trace, policy, replace(batching, release=release), LATENCY).records["completion_s"]
        for release in ("token", "batch")
    )
    assert (by_token <= by_batch).all()


@given(requests, batchings, policies, routers)
def test_names_and_units_do_not_matter(trace, batching, policy, router):
    columns = ["replica", "first_scheduled_s", "first_token_s", "completion_s"]
    run = simulate(trace, policy, batching, LATENCY, 2, router=router).records.select(columns)
    renamed = trace.replace(request_id=np.array([f"r{i:03}" for i in range(len(trace))], object))
    assert simulate(renamed, policy, batching, LATENCY, 2, router=router).records.select(columns).equals(run)
    doubled = simulate(
        trace.replace(arrival_s=2 * trace.arrival_s),
        policy,
        replace(batching, batch_timeout_s=2 * batching.batch_timeout_s),
        Affine(2.0, 1.0, 0.5, 1 / 32),
        2,
        router=router,
    ).records.select(columns)
    assert doubled.equals(run.with_columns(pl.col(columns[1:]) * 2))
