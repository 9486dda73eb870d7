"""Routers choose as their definitions say, and the arrival process hands over what a plan would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Affine, ContinuousBatching, StaticBatching, simulate
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

ONE = StaticBatching(batch_size=1)


def made(arrival_s, output_tokens, **columns):
    n = len(arrival_s)
    return Trace(
        np.arange(n), np.array(arrival_s, float), np.ones(n, int), np.array(output_tokens), **columns
    )


def routed(trace, router, replicas=2, **options):
    run = simulate(trace, "fcfs", ONE, Affine(1.0), replicas, router=router, **options)
    return run.records["replica"].to_list()


def test_round_robin():
    assert routed(made([0] * 5, [1] * 5), "round_robin", 3) == [0, 1, 2, 0, 1]


def test_join_shortest_queue_by_hand():
    # Replica 0 works on request 0 until 9; replica 1 is empty again at 1 and at 3.
    trace = made([0, 0, 2, 2.5, 10.5], [9, 1, 1, 1, 1])
    assert routed(trace, "join_shortest_queue") == [0, 1, 1, 0, 0]


def test_least_predicted_work_by_hand():
    # 10 | 2, then 2 + 3 and 5 + 4 stay below 10; the next goes where 9 < 10, and then 10 < 12.
    trace = made([0] * 6, [1] * 6)
    estimates = {"estp": Estimates("estp", np.arange(6), np.array([10.0, 2, 3, 4, 3, 1]))}
    router = "least_predicted_work,predictor=estp"
    assert routed(trace, router, estimates=estimates) == [0, 1, 1, 1, 1, 0]
    assert routed(trace, "least_predicted_work,predictor=oracle") == [0, 1, 0, 1, 0, 1]


def test_finished_work_counts_no_more():
    trace = made([0, 0, 8], [6, 3, 5])
    # At 8 both are idle, so the first replica is taken.
    assert routed(trace, "least_predicted_work,predictor=oracle") == [0, 1, 0]


def test_sessions_stay_together():
    session = np.random.default_rng(0).integers(-1, 40, 400)
    trace = made(np.arange(400), [1] * 400, session_id=session)
    chosen = np.array(routed(trace, "session_affinity", 4))
    for one in range(40):
        assert len(set(chosen[session == one])) == 1
    assert set(chosen) == {0, 1, 2, 3}
    alone = chosen[session == -1]
    assert alone.tolist() == [i % 4 for i in range(len(alone))]
    with pytest.raises(InputError, match="no column 'session_id'"):
        routed(made([0], [1]), "session_affinity")


def test_power_of_two_takes_the_shorter_of_two():
    # Of two replicas both are drawn, so it is join-shortest-queue up to ties.
    trace = made([0, 0.5, 1, 1.5, 2], [1] * 5)
    rng = np.random.default_rng(0)
    many = made(np.cumsum(rng.exponential(1 / 7, 4000)), rng.geometric(1.0, 4000))
    waits = {
        router: simulate(many, "fcfs", ONE, Affine(1.0), 8, router=router).metrics["mean_queueing_s"]
        for router in ("random", "power_of_two", "join_shortest_queue")
    }
    assert waits["join_shortest_queue"] < waits["power_of_two"] < 0.6 * waits["random"]
    assert set(routed(trace, "power_of_two")) == {0, 1}


def test_a_router_that_returns_no_replica():
    for value in (2, -1, 0.5, None):
        with pytest.raises(InputError, match="for request 0; it must return a replica's number, 0 to 1"):
            routed(made([0], [1]), lambda request, loads, now_s, rng, value=value: value)


def test_a_router_that_raises():
    with pytest.raises(InputError, match=r"ZeroDivisionError at .*test_routers\.py:\d+ for request 0"):
        routed(made([0], [1]), lambda request, loads, now_s, rng: 1 // loads[0].unfinished)


def test_a_router_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "class Long:\n"
        "    def __call__(self, request, loads, now_s, rng):\n"
        "        return int(request.prompt_tokens > 5) and loads[-1].number\n"
    )
    trace = Trace(np.arange(3), np.zeros(3), np.array([9, 1, 6]), np.array([1, 1, 1]))
    run = simulate(trace, "fcfs", ONE, Affine(1.0), 3, router=f"{path}:Long")
    assert run.records["replica"].to_list() == [2, 0, 2]


def test_who_arrives_as_a_batch_ends_can_join_the_next():
    # Request 0 runs until 2; request 1 waits from 1 on; request 2 comes at 2, when the next batch forms.
    trace = made([0, 1, 2], [2, 1, 1])
    run = simulate(
        trace, "fcfs", StaticBatching(2), Affine(1.0), 2, router=lambda request, loads, now_s, rng: 0
    )
    assert run.records["first_scheduled_s"].to_list() == [0, 2, 2]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=15).map(sorted),
    st.integers(2, 3),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.sampled_from(["fcfs", "sjf"]),
    st.sampled_from([None, 7.0]),
)
def test_handing_over_at_arrival_equals_a_plan(rows, replicas, timeout, policy, horizon_s):
    trace = made(*zip(*rows, strict=True))
    batching = StaticBatching(2, timeout)

    def in_turn(request, loads, now_s, rng):
        return request.number % len(loads)

    runs = [
        simulate(
            trace, policy, batching, Affine(0.5, 0, 0.25), replicas, router=router, horizon_s=horizon_s
        ).records
        for router in ("round_robin", in_turn)
    ]
    times = ["status", "first_scheduled_s", "first_token_s", "completion_s"]
    assert runs[0].select(times).equals(runs[1].select(times))


def test_prefix_affinity_goes_where_the_prompt_is_cached() -> None:
    # Two replicas; prompts of 16 share prefix 0 or 1 (12 tokens, 3 blocks of 4). The first two fill one cache
    # each (ties go to the replica with fewer requests); later ones follow their prefix, whatever the turn.
    prefix = [0, 1, 1, 0, 1, 0]
    arrivals = [0.0, 0.0, 5.0, 10.0, 15.0, 20.0]
    trace = Trace(np.arange(6), arrivals, [16] * 6, [1] * 6, prefix_id=prefix, prefix_tokens=[12] * 6)
    batching = ContinuousBatching(num_blocks=65, block_size=4)
    result = simulate(trace, "fcfs", batching, Affine(1.0), 2, router="prefix_affinity")
    assert result.records["replica"].to_list() == prefix
    assert result.records["prefix_hit_tokens"].to_list() == [0, 0, 12, 12, 12, 12]
    assert result.metrics["prefix_hit_rate"] == 48 / 96
    turns = simulate(trace, "fcfs", batching, Affine(1.0), 2)
    assert turns.records["prefix_hit_tokens"].to_list() == [0, 0, 0, 0, 12, 12]


def test_prefix_affinity_gives_way_to_the_load() -> None:
    # Request 0 leaves prefix 0 in replica 0, and 1 (long) is with replica 1. Of five that share the prefix and
    # come at once, replica 0 takes 3: with slack 1 it may have 2 more than the one that replica 1 has.
    trace = Trace(
        np.arange(7),
        [0.0, 0.0, *[3.0] * 5],
        [16] * 7,
        [1, 50, *[9] * 5],
        prefix_id=[0, -1, *[0] * 5],
        prefix_tokens=[12, 0, *[12] * 5],
    )
    batching = ContinuousBatching(num_blocks=65, block_size=4)
    result = simulate(trace, "fcfs", batching, Affine(1.0), 2, router="prefix_affinity,slack=1")
    assert result.records["replica"].to_list() == [0, 1, 0, 0, 0, 1, 0]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_who_looks_into_the_caches_sees_the_same_with_and_without_leaps(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 14))
    draw = lambda values: [data.draw(values) for _ in range(n)]  # noqa: E731
    arrivals = np.cumsum(draw(st.sampled_from([0.0, 0.01, 0.3, 1.7])))
    prompts, outputs = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    prefix = draw(st.integers(0, 2))
    trace = Trace(
        np.arange(n),
        arrivals - arrivals[0],
        prompts,
        outputs,
        prefix_id=prefix,
        prefix_tokens=np.minimum(prompts, 32),
    )
    limits = {"num_blocks": data.draw(st.integers(22, 60)), "block_size": 4, "max_num_seqs": 3}
    runs = [
        simulate(
            trace,
            "fcfs",
            ContinuousBatching(leap=leap, max_num_batched_tokens=64, **limits),
            Affine(0.01, 1e-3),
            3,
            router="prefix_affinity,slack=2",
        ).records
        for leap in (True, False)
    ]
    assert runs[0]["replica"].equals(runs[1]["replica"])
    np.testing.assert_allclose(
        runs[0]["completion_s"].to_numpy(), runs[1]["completion_s"].to_numpy(), rtol=1e-9
    )
