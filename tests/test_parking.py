"""Estimates after the prefill: worked by hand with steps of one second, and against the same order at arrival."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim import Affine, ContinuousBatching, Result, StaticBatching, simulate
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

ROUTER = "least_predicted_work,predictor=estp"


def serve(
    arrivals: list[float],
    prompts: list[int],
    outputs: list[int],
    policy: str = "estp",
    latency: Affine | None = None,
    cost_s: float = 0.0,
    **limits: Any,
) -> Result:
    """The estimates are the true lengths, so only their time is at issue."""
    trace = Trace(np.arange(len(arrivals)), arrivals, prompts, outputs)
    estimates = {"estp": Estimates("estp", trace.request_id, np.array(outputs, np.float64))}
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": 64, "num_blocks": 65, "block_size": 4} | limits
    return simulate(
        trace,
        policy,
        ContinuousBatching(**limits),
        latency or Affine(1.0),
        estimates=estimates,
        estimate_available="prefill",
        estimate_cost_s=cost_s,
        record_steps=True,
    )


def test_all_are_prefilled_and_then_the_shortest_decodes() -> None:
    # One place. Step 1 prefills all three (12 tokens) and yields their first tokens, which is all that request
    # 1 wants. Of the others request 2 (3 tokens, 2 to go) decodes first: done at 3 s, then request 0: 4 to go.
    result = serve([0.0, 0.0, 0.0], [4, 4, 4], [5, 1, 3])
    assert result.records["first_token_s"].to_list() == [1, 1, 1]
    assert result.records["completion_s"].to_list() == [7, 1, 3]


def test_a_newcomer_is_prefilled_beside_the_decode_but_displaces_nobody() -> None:
    # Request 0 decodes from 1 s on, to 6 s. Request 1 comes at 2 s, has its first token at 3 s and waits: 6 to 7 s.
    result = serve([0.0, 2.0], [4, 4], [6, 2])
    assert result.records["first_token_s"].to_list() == [1, 3]
    assert result.records["completion_s"].to_list() == [6, 7]


def test_the_parked_hold_blocks_and_lose_them_by_their_rank() -> None:
    # 8 usable blocks of 4, two places. Four prompts of 4 fill a block each; 0 and 1 (the shortest) decode, 2
    # and 3 are parked. 0 and 1 grow to 12 + 4 tokens: 4 blocks each at their 13th token, when 8 are wanted and
    # 2 are parked: the last in order, request 3, loses its block first, then request 2.
    result = serve([0.0] * 4, [4] * 4, [12, 12, 20, 21], max_num_seqs=2, num_blocks=9)
    log = result.steps[0]
    assert next(step.preempted for step in log if step.preempted)[0] == 3
    assert result.records["preemptions"].to_list()[:2] == [0, 0]
    assert result.metrics["completed"] == 4
    assert log[-1].kv_blocks == 0


def test_the_cost_of_an_estimate_lengthens_the_step_that_ends_the_prefill() -> None:
    # Two prefills end in step 1: 1 s and twice 0.25 s. Decodes cost nothing more.
    result = serve([0.0, 0.0], [4, 4], [2, 2], cost_s=0.25, max_num_seqs=2)
    assert result.records["first_token_s"].to_list() == [1.5, 1.5]
    assert result.records["completion_s"].to_list() == [2.5, 2.5]


def test_fcfs_and_the_oracle_do_not_need_the_estimate() -> None:
    for policy in ("fcfs", "sjf"):
        result = serve([0.0, 0.0], [4, 4], [3, 2], policy, cost_s=0.25)
        assert min(result.records["first_token_s"]) == 1
        assert sorted(result.records["completion_s"].to_list())[-1] == 5


def test_with_room_for_all_it_is_the_order_at_arrival_but_for_the_first_token() -> None:
    # All come at once, decodes are free of their number: who has been prefilled is served shortest first.
    rng = np.random.default_rng(3)
    outputs = (1 + rng.integers(1, 30, 12)).tolist()
    result = serve([0.0] * 12, [4] * 12, outputs, num_blocks=1000)
    done = result.records.sort("completion_s")["output_tokens"].to_list()
    assert done == sorted(outputs)
    # One decodes at a time, after the step of the prefills: each takes its output less one.
    assert result.metrics["duration_s"] == 1 + sum(output - 1 for output in outputs)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(InputError, match=r"refresh.*not modelled.*prefill"):
        serve([0.0], [4], [2], "sprpt")
    trace = Trace([0], [0.0], [1], [1])
    estimates = {"estp": Estimates("estp", trace.request_id, np.ones(1))}
    options: dict[str, Any] = {"estimates": estimates, "estimate_available": "prefill"}
    with pytest.raises(InputError, match="prefill"):
        simulate(trace, "estp", StaticBatching(1), Affine(1.0), **options)
    batching = ContinuousBatching(num_blocks=9)
    with pytest.raises(InputError, match=r"router.*before the prefill"):
        simulate(trace, "fcfs", batching, Affine(1.0), 2, router=ROUTER, **options)
