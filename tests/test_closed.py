"""A closed loop sends a request when another is answered: hand-worked cycles, and the interactive response time law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Affine, ContinuousBatching, Result, StaticBatching, simulate
from traces.errors import InputError
from traces.schema import Trace

SECOND = Affine(1.0)
ROOMY = {"num_blocks": 1000, "block_size": 4, "max_num_batched_tokens": 64}


def burst(outputs: list[int], arrivals: list[float] | None = None) -> Trace:
    n = len(outputs)
    return Trace(np.arange(n), arrivals or [0.0] * n, [4] * n, outputs)


def column(result: Result, name: str) -> list[float]:
    return result.records[name].to_list()


def test_users_think_between_requests() -> None:
    # Three users, 4 s a request (all three at once), 2 s of thought: a cycle of 6 s.
    batching = ContinuousBatching(max_num_seqs=3, **ROOMY)
    result = simulate(burst([4] * 9), "fcfs", batching, SECOND, max_concurrency=3, think_s=2.0)
    assert column(result, "arrival_s") == [0, 0, 0, 6, 6, 6, 12, 12, 12]
    assert result.metrics["mean_jct_s"] == 4


def test_the_next_is_sent_when_one_leaves_and_runs_in_the_next_step() -> None:
    # Two users, two slots. Request 0 ends at 2 s, so 2 is sent then and is in the step from 2 s on: done at 5 s, when
    # 3 is sent. Request 1 ends at 6 s: 4 is sent.
    batching = ContinuousBatching(max_num_seqs=2, **ROOMY)
    result = simulate(burst([2, 6, 3, 4, 1]), "fcfs", batching, SECOND, max_concurrency=2)
    assert column(result, "arrival_s") == [0, 0, 2, 5, 6]
    assert column(result, "completion_s") == [2, 6, 5, 9, 7]
    # A single user has the server alone: nobody ever waits.
    alone = simulate(burst([2, 6, 3]), "fcfs", batching, SECOND, max_concurrency=1)
    assert column(alone, "arrival_s") == [0, 2, 8]
    assert alone.metrics["mean_queueing_s"] == 0


def test_nobody_is_sent_before_its_time() -> None:
    batching = ContinuousBatching(max_num_seqs=4, **ROOMY)
    trace = burst([5, 2, 2], [0.0, 1.0, 20.0])
    result = simulate(trace, "fcfs", batching, SECOND, max_concurrency=1)
    assert column(result, "arrival_s") == [0, 5, 20]


def test_as_many_users_as_requests_are_no_limit() -> None:
    rng = np.random.default_rng(0)
    trace = burst(rng.integers(1, 20, 30).tolist(), np.sort(rng.uniform(0, 40, 30)).round(2).tolist())
    trace = trace.replace(arrival_s=trace.arrival_s - trace.arrival_s[0])
    batching = ContinuousBatching(max_num_seqs=4, **ROOMY)
    for policy in ("fcfs", "sjf", "srpt"):
        for replicas, router in ((1, "round_robin"), (3, "round_robin"), (3, "join_shortest_queue")):
            plain, closed = (
                simulate(
                    trace, policy, batching, SECOND, replicas, router=router, max_concurrency=users
                ).records
                for users in (None, 30)
            )
            assert plain.equals(closed), (policy, replicas, router)


def test_static_batches_in_a_closed_loop() -> None:
    # Batches of 2 end at 3 s, when both users send the next two, and so on; 1 s a step.
    result = simulate(burst([3, 1, 2, 2, 5]), "fcfs", StaticBatching(2), SECOND, max_concurrency=2)
    assert column(result, "arrival_s") == [0, 0, 3, 3, 5]
    assert column(result, "completion_s") == [3, 3, 5, 5, 10]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_interactive_response_time_law(replicas: int) -> None:
    # Denning and Buzen 1978: users = throughput * (response + thought), in a steady state.
    rng = np.random.default_rng(1)
    trace = burst(rng.geometric(0.1, 3000).tolist())
    batching = ContinuousBatching(max_num_seqs=2, **ROOMY)
    metrics = simulate(trace, "fcfs", batching, Affine(0.1), replicas, max_concurrency=8, think_s=1.5).metrics
    users = metrics["request_throughput"] * (metrics["mean_jct_s"] + 1.5)
    # Only the start and the end, some 8 of 3,000 requests, are not steady.
    assert users == pytest.approx(8, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_leaps_change_nothing_and_nobody_is_over_the_limit(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 15))
    outputs = [data.draw(st.integers(1, 30)) for _ in range(n)]
    arrivals = np.cumsum([data.draw(st.sampled_from([0.0, 0.01, 0.4])) for _ in range(n)])
    trace = burst(outputs, (arrivals - arrivals[0]).tolist())
    users, replicas = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 2))
    policy = data.draw(st.sampled_from(["fcfs", "sjf", "srpt", "aging,rate=3"]))
    options: dict[str, Any] = {"max_concurrency": users, "think_s": data.draw(st.sampled_from([0.0, 0.07]))}
    runs = [
        simulate(
            trace,
            policy,
            ContinuousBatching(
                leap=leap, num_blocks=20, block_size=4, max_num_batched_tokens=16, max_num_seqs=3
            ),
            Affine(0.01, 1e-3),
            replicas,
            **options,
        ).records
        for leap in (True, False)
    ]
    for name in ("arrival_s", "first_token_s", "completion_s"):
        np.testing.assert_allclose(runs[0][name].to_numpy(), runs[1][name].to_numpy(), rtol=1e-9, atol=1e-12)
    sent, gone = runs[0]["arrival_s"].to_numpy(), runs[0]["completion_s"].to_numpy()
    assert (runs[0]["status"] == "completed").all()
    for at in sent:
        assert ((sent <= at) & (gone > at)).sum() <= users


def test_what_a_closed_loop_cannot_do_is_said() -> None:
    batching = ContinuousBatching(max_num_seqs=4, **ROOMY)
    with pytest.raises(InputError, match="max_concurrency = 0"):
        simulate(burst([1]), "fcfs", batching, SECOND, max_concurrency=0)
    with pytest.raises(InputError, match="think_s"):
        simulate(burst([1]), "fcfs", batching, SECOND, think_s=1.0)
    with pytest.raises(InputError, match="release"):
        simulate(burst([1]), "fcfs", StaticBatching(2, release="token"), SECOND, max_concurrency=1)
