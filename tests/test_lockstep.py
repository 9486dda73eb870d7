"""Replicas in lockstep: steps end together, when the longest does. Truth: a case worked by hand, and the rule."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import ContinuousBatching, simulate
from sim.latency import Affine
from traces import Trace

TOGETHER = ContinuousBatching(num_blocks=1000, max_num_batched_tokens=512, lockstep=True)


def requests(arrival_s: list[float], prompt: list[int], output: list[int]) -> Trace:
    return Trace(
        request_id=np.arange(len(prompt)),
        arrival_s=np.array(arrival_s),
        prompt_tokens=np.array(prompt, np.int32),
        output_tokens=np.array(output, np.int32),
    )


def test_a_step_lasts_as_long_as_the_longest_of_all_replicas() -> None:
    # A second a step and 10 ms a prompt token. The first steps would take 2 and 4 s: both take 4. The third
    # request reaches the idle replica at 4.5, in a step that ends at 5; its prefill then holds the other up to 7.
    trace = requests([0.0, 0.0, 4.5], [100, 300, 100], [3, 1, 1])
    result = simulate(
        trace, batching=TOGETHER, latency=Affine(1.0, 0.01), replicas=2, router="join_shortest_queue"
    )
    assert result.records["replica"].to_list() == [0, 1, 1]
    assert result.records["first_token_s"].to_list() == pytest.approx([4.0, 4.0, 7.0])
    assert result.records["completion_s"].to_list() == pytest.approx([7.0, 4.0, 7.0])
    apart = simulate(
        trace,
        batching=ContinuousBatching(num_blocks=1000, max_num_batched_tokens=512),
        latency=Affine(1.0, 0.01),
        replicas=2,
        router="join_shortest_queue",
    )
    assert apart.records["completion_s"].to_list() == pytest.approx([4.0, 4.0, 6.5])


workload = st.lists(
    st.tuples(st.floats(0, 20), st.integers(1, 700), st.integers(1, 12)), min_size=1, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(workload, st.integers(1, 3), st.booleans())
def test_all_steps_that_overlap_have_the_same_bounds(
    rows: list[tuple[float, int, int]], replicas: int, ahead: bool
) -> None:
    trace = requests(*map(list, zip(*sorted(rows), strict=True)))  # type: ignore[arg-type]
    batching = ContinuousBatching(
        num_blocks=200, max_num_seqs=4, max_num_batched_tokens=512, async_scheduling=ahead, lockstep=True
    )
    result = simulate(
        trace,
        batching=batching,
        latency=Affine(0.5, 0.003, 0.01),
        replicas=replicas,
        router="join_shortest_queue",
        record_steps=True,
    )
    assert result.steps is not None
    assert result.records["completion_s"].is_not_nan().all()
    bounds = sorted({(step.start_s, step.end_s) for log in result.steps for step in log})
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(bounds))
    if replicas == 1:
        plain = ContinuousBatching(
            num_blocks=200, max_num_seqs=4, max_num_batched_tokens=512, async_scheduling=ahead
        )
        alone = simulate(trace, batching=plain, latency=Affine(0.5, 0.003, 0.01))
        for name in ("first_token_s", "completion_s"):
            assert result.records[name].to_numpy() == pytest.approx(alone.records[name].to_numpy(), rel=1e-9)
