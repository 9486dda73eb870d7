"""Continuous batching decides as vLLM's rule says, one block and one step at a time, and loses nothing.

Truth: a plain restatement of the rule (`plain_rule`, itself held to vLLM's recorded steps here), cases
worked by hand, and the M/M/c queue's known mean wait where the engine becomes that queue.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import plain_rule
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sim import Affine, ContinuousBatching, Memory, simulate
from sim.conformance import read_cases, replay
from sim.prefixes import chains
from traces.errors import InputError
from traces.schema import Trace

DATA = Path(__file__).parent / "data"
SECOND = Affine(a=1.0)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Limits and requests with shared prefixes, tight memory and priorities, in the recorded format."""
    block_size = draw(st.sampled_from([1, 2, 4]))
    lengths = st.integers(1, 24)
    requests = []
    step = 0
    for number in range(draw(st.integers(1, 14))):
        step += draw(st.sampled_from([0, 0, 1, 5]))
        prompt, output = draw(lengths), draw(lengths)
        requests.append(
            {
                "id": number,
                "arrival_step": step,
                "prompt_tokens": prompt,
                "output_tokens": output,
                "priority": draw(st.integers(0, 3)),
                "prefix_id": draw(st.integers(0, 1)),
                "prefix_tokens": min(prompt, draw(st.sampled_from([0, 8, 16, 24]))),
            }
        )
    largest = max(-(-(r["prompt_tokens"] + r["output_tokens"]) // block_size) for r in requests)
    seqs = draw(st.sampled_from([1, 2, 8]))
    chunked = draw(st.booleans())
    limits = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(seqs, draw(st.sampled_from([8, 16, 64]))) if chunked else 64,
        "max_model_len": 64,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 5])),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "block_size": block_size,
        "num_blocks": 1 + largest + draw(st.sampled_from([0, 1, largest // 2, 4 * largest])),
        "enable_prefix_caching": draw(st.booleans()),
    }
    return {"limits": limits, "requests": requests}


def test_the_plain_rule_is_vllms():
    """Short recorded cases (the plain rule is slow): else a twin proves nothing."""
    for name in ("vllm_steps.json.gz", "vllm_steps_prefix.json.gz"):
        short = sorted(read_cases(DATA / name), key=lambda case: len(case["steps"]))[:6]
        for case in short:
            ours = list(plain_rule.replay(case))
            for mine, recorded in zip(ours, case["steps"], strict=True):
                tokens = {int(number): count for number, count in recorded["tokens"].items()}
                assert mine == recorded | {"tokens": tokens}, case["name"]


@settings(max_examples=400)
@given(cases(), st.booleans())
def test_every_step_is_the_plain_rules(case: dict[str, Any], leap: bool) -> None:
    ours, plain = list(replay(case, leap)), list(plain_rule.replay(case))
    for mine, theirs in zip(ours, plain, strict=False):
        assert mine == theirs
    assert len(ours) == len(plain)


@settings(max_examples=150)
@given(cases(), st.booleans())
def test_simulated_times_are_the_plain_rules_steps(case: dict[str, Any], leap: bool) -> None:
    """A step of one second: times are step numbers, so shortcuts of the simulator would show."""
    requests, limits = case["requests"], dict(case["limits"])
    policy = limits.pop("policy")
    done, first = {}, {}
    for step in plain_rule.replay(case):
        done |= dict.fromkeys(step["finished"], step["step"] + 1.0)
        for number in step["tokens"]:
            first.setdefault(number, float(step["step"]))
    trace = Trace(
        np.array([request["id"] for request in requests]),
        np.array([float(request["arrival_step"]) for request in requests]),
        np.array([request["prompt_tokens"] for request in requests]),
        np.array([request["output_tokens"] for request in requests]),
        prefix_id=np.array([request["prefix_id"] for request in requests]),
        prefix_tokens=np.array([request["prefix_tokens"] for request in requests]),
        priority=np.array([float(request["priority"]) for request in requests]),
    )
    by = "fcfs" if policy == "fcfs" else lambda request, now_s: request.priority
    records = simulate(trace, by, ContinuousBatching(leap=leap, **limits), SECOND).records
    empty = any(not step["tokens"] for step in plain_rule.replay(case))  # a step without tokens takes no time
    if not empty:
        assert records["completion_s"].to_list() == [done[request["id"]] for request in requests]
        assert records["first_scheduled_s"].to_list() == [first[request["id"]] for request in requests]


def steps(trace: Trace, **limits: Any) -> Any:
    limits = {"block_size": 4, "num_blocks": 33, "max_num_seqs": 8, "max_num_batched_tokens": 64} | limits
    return simulate(trace, batching=ContinuousBatching(**limits), latency=SECOND, record_steps=True)


def sharing(prompts: list[int], outputs: list[int], shared: list[int], arrivals: list[float]) -> Trace:
    n = len(prompts)
    return Trace(
        np.arange(n), np.array(arrivals), prompts, outputs, prefix_id=np.zeros(n), prefix_tokens=shared
    )


def test_a_prefix_is_hit_in_the_step_that_computes_it():
    # Both wait for step 0. The first fills 12 tokens = 3 blocks, all of the prefix; the second, admitted
    # after it, finds 8 tokens = 2 blocks: its own last token is always computed.
    result = steps(sharing([12, 12], [2, 2], [12, 12], [0.0, 0.0]))
    assert result.steps[0][0].chunks == [(0, 12), (1, 4)]
    assert result.metrics["prefix_hit_tokens"] == 8
    assert result.metrics["prefix_hit_rate"] == 8 / 24


def test_without_caching_nothing_is_hit():
    result = steps(sharing([12, 12], [2, 2], [12, 12], [0.0, 0.0]), enable_prefix_caching=False)
    assert result.steps[0][0].chunks == [(0, 12), (1, 12)]
    assert result.metrics["prefix_hit_tokens"] == 0


def test_the_tail_of_a_prefix_is_evicted_before_its_head():
    # 8 usable blocks. Request 0 leaves the prefix's 5 blocks cached, and 3 free ones beside them.
    # Request 1 (its own 16 tokens, then 1) needs 4: the 3, and the prefix's last. So request 2 finds 4 blocks.
    trace = sharing([20, 16, 21], [1, 1, 1], [20, 0, 20], [0.0, 2.0, 4.0])
    result = steps(trace, num_blocks=9)
    assert [step.chunks for step in result.steps[0]] == [[(0, 20)], [(1, 16)], [(2, 5)]]


def test_hit_blocks_in_the_free_list_count_against_the_room():
    # 6 usable blocks: request 0 leaves 4 named ones and 2 others. Request 1 takes one block a token step
    # (4 tokens, then a long answer). Request 2's 21 tokens need 6 blocks, 4 of them hit but lying in the
    # free list, of which request 1 holds 1: 6 - 4 + 4 > 5, so it waits until request 1 is done.
    trace = sharing([16, 3, 21], [1, 2, 1], [16, 0, 16], [0.0, 2.0, 2.0])
    result = steps(trace, num_blocks=7)
    chunks = [(step.start_s, step.chunks) for step in result.steps[0]]
    assert chunks == [(0.0, [(0, 16)]), (2.0, [(1, 3)]), (3.0, []), (4.0, [(2, 5)])]


def test_a_preempted_request_finds_its_own_blocks():
    # 6 usable blocks of 4 and two requests of 8 + 12: both grow from 3 blocks (from their first decode) until
    # the last that came is preempted at 12 tokens, when the other needs a fourth block. Its 3 full blocks
    # are named by then and lie at the end of the free list; the other takes one: the tail.
    trace = Trace([0, 1], [0.0, 0.0], [8, 8], [12, 12])
    result = steps(trace, num_blocks=7)
    plain = steps(trace, num_blocks=7, enable_prefix_caching=False)
    log = result.steps[0]
    preempting = next(step for step in log if step.preempted)
    assert preempting.preempted == [1]
    resumed = next(step for step in log if step.admitted == [1])
    assert resumed.chunks[0][1] < 12 < result.metrics["recomputed_tokens"] + 12
    assert result.metrics["recomputed_tokens"] < plain.metrics["recomputed_tokens"]


def test_hash_ids_share_the_blocks_they_cover():
    # Ids of 8 tokens, blocks of 4: id 7 is 2 blocks. The third prompt repeats the first, 17 tokens.
    ids = np.array([None, None, None], object)
    ids[:] = [np.array([7, 8, 9]), np.array([7, 5]), np.array([7, 8, 9])]
    trace = Trace(np.arange(3), [0.0, 2.0, 4.0], [17, 16, 17], [1, 1, 1], hash_ids=ids)
    assert [step.chunks for step in steps(trace).steps[0]] == [[(0, 17)], [(1, 8)], [(2, 1)]]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=6), st.data())
def test_blocks_share_a_name_if_all_ids_up_to_them_agree(rows: list[list[int]], data: st.DataObject) -> None:
    """Whether or not an id tells what was before it, and whatever the sizes of ids and blocks."""
    tokens, block_size = data.draw(st.sampled_from([2, 4])), data.draw(st.sampled_from([1, 2, 3, 4, 8]))
    prompts = [len(row) * tokens - data.draw(st.integers(0, tokens - 1)) for row in rows]
    ids = np.empty(len(rows), object)
    ids[:] = [np.array(row) for row in rows]
    n = len(rows)
    trace = Trace(
        np.arange(n), np.zeros(n), prompts, np.ones(n), hash_ids=ids, metadata={"hash_block_tokens": tokens}
    )
    chain_of = chains(trace, block_size)
    assert chain_of is not None
    names: dict[Any, set[Any]] = {}
    for row, (prompt, path) in enumerate(zip(prompts, rows, strict=True)):
        mine = [(name, i) for name, size in chain_of(row) for i in range(size)]
        assert len(mine) == prompt // block_size
        for index, name in enumerate(mine):
            known = ((index + 1) * block_size - 1) // tokens
            names.setdefault(name, set()).add((index, tuple(path[: known + 1])))
    assert all(len(meanings) == 1 for meanings in names.values())
    assert len(set.union(set(), *names.values())) == len(names)


def test_hash_ids_that_no_size_explains_are_an_error():
    ids = np.array([None, None], object)
    ids[:] = [np.array([7, 8, 9]), np.array([7])]
    with pytest.raises(InputError, match="hash_block_tokens"):
        steps(Trace([0, 1], [0.0, 0.0], [17, 17], [1, 1], hash_ids=ids))


def test_a_turn_finds_the_prompt_and_the_answer_before_it():
    # Turn 1: 8 + 8 tokens, of which the last is never computed: 3 full blocks. Turn 2 begins with all 16.
    trace = Trace([0, 1], [0.0, 20.0], [8, 20], [8, 1], session_id=[3, 3])
    assert [step.chunks for step in steps(trace).steps[0] if step.chunks] == [[(0, 8)], [(1, 8)]]
    # A shorter turn cannot begin with it: nothing is shared.
    trace = Trace([0, 1], [0.0, 20.0], [8, 12], [8, 1], session_id=[3, 3])
    assert [step.chunks for step in steps(trace).steps[0] if step.chunks] == [[(0, 8)], [(1, 12)]]


@given(cases())
def test_gaps_between_tokens_are_all_there(case: dict[str, Any]) -> None:
    requests, limits = case["requests"], dict(case["limits"])
    limits.pop("policy")
    trace = Trace(
        np.arange(len(requests)),
        np.array([request["arrival_step"] / 8 for request in requests]),
        np.array([request["prompt_tokens"] for request in requests]),
        np.array([request["output_tokens"] for request in requests]),
    )
    result = simulate(trace, batching=ContinuousBatching(**limits), latency=Affine(0.1, d=0.001), itl=True)
    records = result.records
    assert result.gaps is not None
    pooled = sum(float(np.sum(np.asarray(seconds) * count)) for seconds, count in result.gaps)
    assert sum(int(np.sum(count)) for _, count in result.gaps) == trace.output_tokens.sum() - len(trace)
    assert pooled == pytest.approx((records["completion_s"] - records["first_token_s"]).sum(), abs=1e-9)


def test_it_is_the_queue_mmc_where_it_becomes_one():
    """Steps of equal length, c slots, prompts of one token, geometric outputs: a discrete M/Geo/c.

    With the step short against a service it tends to M/M/c, whose mean wait is C(c, a) / (c mu - lambda)
    by Erlang's C formula. On top of that an arrival waits half a step, on average, for a step to end.
    """
    servers, mean_output, step_s, load = 4, 400.0, 0.01, 0.7
    service_s = mean_output * step_s
    rate = load * servers / service_s
    offered = load * servers
    tail = offered**servers / math.factorial(servers) / (1 - load)
    erlang = tail / (sum(offered**k / math.factorial(k) for k in range(servers)) + tail)
    expected = erlang * service_s / (servers * (1 - load)) + step_s / 2 * load
    waits = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n = 6000
        trace = Trace(
            np.arange(n),
            np.cumsum(rng.exponential(1 / rate, n)),
            np.ones(n),
            rng.geometric(1 / mean_output, n),
        )
        batching = ContinuousBatching(max_num_seqs=servers, max_num_batched_tokens=64, num_blocks=10_000)
        records = simulate(trace, batching=batching, latency=Affine(a=step_s)).records
        queueing = records["first_scheduled_s"] - records["arrival_s"]
        waits.append(queueing[n // 10 :].mean())
    half = stats.t.ppf(0.995, len(waits) - 1) * np.std(waits, ddof=1) / math.sqrt(len(waits))
    assert abs(np.mean(waits) - expected) < half
    assert half < 0.2 * expected


def test_the_time_alone_is_the_time_alone():
    trace = Trace([0, 1], [0.0, 1000.0], [100, 7], [5, 1])
    batching = ContinuousBatching(max_num_batched_tokens=32, max_num_seqs=4, num_blocks=100)
    records = simulate(trace, batching=batching, latency=Affine(0.1, 0.01, 0.02, 0.003)).records
    jct = records["completion_s"] - records["arrival_s"]
    assert jct.to_list() == pytest.approx(records["alone_s"].to_list())
    # 100 tokens in chunks of 32: 3 full ones and 4 tokens; then 4 decodes over 101 ... 104 tokens.
    assert jct[0] == pytest.approx(4 * 0.1 + 100 * 0.01 + 4 * 0.12 + 0.003 * (101 + 102 + 103 + 104))


def test_load_aware_routers_share_the_work():
    rng = np.random.default_rng(1)
    n = 400
    lengths = np.ceil(rng.lognormal(3, 1, n)).astype(int)
    trace = Trace(np.arange(n), np.cumsum(rng.exponential(0.05, n)), lengths, lengths)
    batching = ContinuousBatching(max_num_seqs=4, num_blocks=2000)
    latency = Affine(0.01, 1e-4, 1e-3)
    jct = {
        router: simulate(trace, batching=batching, latency=latency, replicas=3, router=router).metrics
        for router in ("round_robin", "join_shortest_queue")
    }
    assert all(metrics["completed"] == n for metrics in jct.values())
    assert jct["join_shortest_queue"]["mean_jct_s"] < jct["round_robin"]["mean_jct_s"]


def test_a_horizon_cuts_busy_time_and_records():
    trace = Trace([0, 1], [0.0, 50.0], [4, 4], [100, 1])
    batching = ContinuousBatching(max_num_batched_tokens=128, num_blocks=100)
    result = simulate(trace, batching=batching, latency=SECOND, horizon_s=10.5)
    assert result.metrics["unfinished"] == 2
    assert result.metrics["busy_share"] == 1.0
    assert result.records["first_token_s"].to_list()[0] == 1.0


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs = 0 must be a whole number, at least 1"),
        ({"num_blocks": 1}, "num_blocks = 1 must be a whole number, at least 2"),
        ({"max_num_seqs": 4096}, "max_num_batched_tokens = 2048 is less than max_num_seqs = 4096"),
        ({"order": "lifo"}, "order = 'lifo' must be one of auto, fcfs, priority"),
        ({"enable_chunked_prefill": False}, "without chunked prefill a prompt must fit into one step"),
    ],
)
def test_settings_out_of_range_are_a_users_error(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ContinuousBatching(**settings_)


def test_what_a_run_cannot_do_is_a_users_error():
    trace = Trace([0], [0.0], [4], [4])
    with pytest.raises(InputError, match="needs the size of the KV cache"):
        simulate(trace, batching=ContinuousBatching(), latency=SECOND)
    with pytest.raises(InputError, match="would ignore policy sjf"):
        simulate(trace, "sjf", ContinuousBatching(num_blocks=9, order="fcfs"), SECOND)


def test_blocks_follow_from_memory():
    # Llama-3.1-8B in bf16 on an 80 GB card: 2 x 32 layers x 8 heads x 128 x 2 bytes = 131,072 bytes a token.
    memory = Memory(80e9, 16.06e9, 131_072, gpu_memory_utilization=0.9)
    assert memory.blocks(16) == int((72e9 - 16.06e9) // (131_072 * 16))
    with pytest.raises(InputError, match="hold 0 KV blocks"):
        Memory(10e9, 16e9, 131_072).blocks(16)
