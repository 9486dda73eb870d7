"""Policies that need the clock, the progress or the running batch: worked by hand, one token a second.

Steps last one second; a prefill yields the first token, so an output of n tokens takes n steps. One
request runs at a time (max_num_seqs=1) unless said otherwise, and a displaced one recomputes its prompt
and tokens in one step, which also yields its next token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sim import Affine, ContinuousBatching, Result, StaticBatching, simulate
from sim.plugins import load, spec_of
from sim.policies import ALIASES, POLICIES
from sim.policies.attained import MLFQ
from sim.policies.distribution import cvar, gittins_rank
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

EDGES = np.array([0.0, 2.0, 6.0, 14.0])  # centres 1, 4, 10


def serve(policy: Any, arrivals: list[float], outputs: list[int], slots: int = 1, **options: Any) -> Result:
    n = len(arrivals)
    trace = Trace(np.arange(n), arrivals, options.pop("prompts", [1] * n), outputs)
    limits = {"max_num_seqs": slots, "max_num_batched_tokens": 64, "num_blocks": 65, "block_size": 4}
    batching = ContinuousBatching(**(limits | options.pop("limits", {})))
    return simulate(trace, policy, batching, Affine(1.0), **options)


def completions(result: Result) -> list[float]:
    return result.records["completion_s"].to_list()


def expecting(mean: list[float], probabilities: Any = None) -> dict[str, Estimates]:
    edges = None if probabilities is None else EDGES
    rows = None if probabilities is None else np.array(probabilities, np.float64)
    return {"estp": Estimates("estp", np.arange(len(mean)), np.array(mean, np.float64), {}, rows, edges)}


def test_srpt_gives_way_to_who_has_less_left() -> None:
    # At 3 s request 0 has got 3 of 10 tokens; the newcomer needs 2 (done at 5); then 7 are left.
    result = serve("srpt", [0.0, 3.0], [10, 2])
    assert completions(result) == [12, 5]
    assert result.records["preemptions"].to_list() == [1, 0]
    # The newcomer that needs 7 has no less left than who runs: ties go to the earlier arrival.
    assert completions(serve("srpt", [0.0, 3.0], [10, 7])) == [10, 17]


def test_trail_stops_preempting_after_its_share() -> None:
    # limit 0.3 of 10: from 3 tokens on nobody takes its place; at 2 s they still could.
    assert completions(serve("srpt,limit=0.3", [0.0, 3.0], [10, 2])) == [10, 12]
    assert completions(serve("srpt,limit=0.3", [0.0, 2.0], [10, 2])) == [12, 4]
    # With limit 0 nobody is ever displaced: shortest first, as SJF.
    spread = ([0.0, 1.0, 1.0, 2.0], [6, 5, 2, 3])
    assert completions(serve("srpt,limit=0", *spread)) == completions(serve("sjf", *spread))


def test_srpt_by_estimates_counts_what_was_expected() -> None:
    # Expected 4, really 9: after 4 tokens nothing is left by the estimate, and a newcomer of 1 must wait.
    assert completions(serve("sprpt", [0.0, 5.0], [9, 1], estimates=expecting([4, 1]))) == [9, 10]
    assert completions(serve("sprpt", [0.0, 2.0], [9, 1], estimates=expecting([4, 1]))) == [10, 3]


def test_las_serves_who_has_got_least() -> None:
    # Lead 2: request 1 comes at 4 s, when request 0 has 4 tokens, 2 more than the lead allows: it gives way,
    # and takes the place back when request 1 is more than 2 ahead of its 4: at 7 tokens. That has 5 only.
    assert completions(serve("las,lead=2", [0.0, 4.0], [8, 5])) == [13, 9]
    # With 9 tokens to go: from 4 to 10 s it gets 6; 6 - 2 = 4 is a tie, and ties go to the earlier arrival.
    assert completions(serve("las,lead=2", [0.0, 4.0], [8, 9])) == [14, 17]


def test_mlfq_levels_by_tokens_used_and_skips_by_the_prompt() -> None:
    policy = MLFQ(quantum=2, ratio=2, levels=3, prefill_tokens=8)

    @dataclass
    class Asked:
        generated_tokens: Any
        prompt_tokens: Any

    # Quanta 2, 4, 8: tokens 0-1 on level 0, 2-5 on level 1, then level 2, which is the last.
    tokens = np.arange(9)
    assert policy(Asked(tokens, np.full(9, 8)), 0.0).tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    # A prompt of 17 costs 17/8 > 2 tokens: it enters at level 1 and has all of its quantum there.
    assert policy(Asked(tokens, np.full(9, 17)), 0.0).tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert policy(Asked(np.array([0]), np.array([1000])), 0.0).tolist() == [2]


def test_mlfq_in_a_server() -> None:
    # Quantum 2 and then 4. Request 0 runs 2 s and falls to level 1; request 1 (come at 1 s) takes its place,
    # falls at 4 s, and within a level the earlier arrival goes first: request 0 ends at 7, then request 1.
    spec = "mlfq,quantum=2,levels=2"
    assert completions(serve(spec, [0.0, 1.0], [5, 4])) == [7, 9]


def test_aging_turns_a_long_wait_into_urgency() -> None:
    # Request 0 runs to 10 s. The long one has waited since 1 s, the short one since 9 s: 8 s at rate 1 outweigh
    # 6 - 1 = 5 tokens, at rate 0.5 they do not.
    arrivals, outputs = [0.0, 1.0, 9.0], [10, 6, 1]
    assert completions(serve("aging,rate=1", arrivals, outputs)) == [10, 16, 17]
    assert completions(serve("aging,rate=0.5", arrivals, outputs)) == [10, 17, 11]
    assert completions(serve("aging,inner=srpt,rate=0", [0.0, 3.0], [10, 2])) == [12, 5]


def test_the_starvation_cap_promotes_after_so_many_steps() -> None:
    # Short ones keep coming, each a second before the server is free; the long one waits under SJF.
    arrivals = [0.0, 0.0, 1.0, 3.0, 5.0, 7.0]
    outputs = [2, 9, 2, 2, 2, 2]
    assert completions(serve("sjf", arrivals, outputs)) == [2, 19, 4, 6, 8, 10]
    # Cap 5: at 5 s it has been left out of 5 steps and takes the place of request 3 at once. Promoted for 3
    # steps (to 8 s), then no short one may displace it, as sjf does not preempt, until at 10 s requests 3 (since
    # 5 s) and 4 have starved in their turn: 3 needs one more step, 4 two; 5 has starved at 12 s: 13 to 15 s.
    capped = serve("starvation-cap,inner=sjf,steps=5,quantum=3", arrivals, outputs)
    assert capped.records["first_scheduled_s"][1] == 5
    assert completions(capped) == [2, 19, 4, 11, 13, 15]
    assert capped.records["preemptions"].to_list() == [0, 1, 0, 1, 0, 0]


def test_a_quantum_ends_a_promotion() -> None:
    # Around srpt: promoted at 4 s for 2 steps, then who has less left takes the place again.
    spec = "starvation-cap,inner=srpt,steps=4,quantum=2"
    result = serve(spec, [0.0, 0.0], [6, 20])
    # 0-4 s: request 0 (4 of 6). 4-6 s: request 1. From 6 s request 0: done at 8 s. The rest: 18 more.
    assert completions(result) == [8, 26]


def brute_force_gittins(probabilities: list[float], centres: list[float], age: float) -> float:
    """The definition, by trying each centre as the point to stop at."""
    alive = [(p, c) for p, c in zip(probabilities, centres, strict=True) if c > age]
    total = sum(p for p, _ in alive)
    ranks = []
    for _, stop in alive:
        spent = sum(p * min(c - age, stop - age) for p, c in alive) / total
        done = sum(p for p, c in alive if c <= stop) / total
        if done:
            ranks.append(spent / done)
    return min(ranks)


def test_gittins_rank_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    centres = np.sort(rng.uniform(1, 100, 7))
    for _ in range(50):
        probabilities = rng.dirichlet(np.full(7, 0.4))
        age = rng.uniform(0, centres[-1] - 1e-6)
        ours = gittins_rank(probabilities, centres, np.array(age))
        assert ours == pytest.approx(brute_force_gittins(probabilities.tolist(), centres.tolist(), age))
    # By hand: 1 token with probability 0.5, else 10. At first stopping at 1 is best: 1 / 0.5 = 2. After
    # that token 9 are sure. Nothing is known of who outlives the last bin: it may end at the next token.
    rows = gittins_rank(np.array([0.5, 0.0, 0.5]), np.array([1.0, 4.0, 10.0]), np.array([0.0, 1.0, 10.0]))
    assert rows.tolist() == [2.0, 9.0, 1.0]


def test_gittins_prefers_who_may_end_at_once() -> None:
    # Request 0 is surely about 4; request 1 is 1 or 10 with equal chance (mean 5.5), rank 2 against 4. It
    # has not ended after its first token and ranks 9: request 0 takes its place.
    estimates = expecting([4, 5.5], [[0, 1, 0], [0.5, 0, 0.5]])
    assert completions(serve("gittins", [0.0, 0.0], [4, 10], estimates=estimates)) == [5, 14]
    assert completions(serve("gittins,preempts=False", [0.0, 0.0], [4, 10], estimates=estimates)) == [14, 10]
    assert completions(serve("estp", [0.0, 0.0], [4, 10], estimates=estimates)) == [4, 14]


def test_cvar_is_the_mean_of_the_tail() -> None:
    # The longest 20% of (1: 0.7, 4: 0.2, 10: 0.1): all of the 10 and half of the 4.
    probabilities, centres = np.array([0.7, 0.2, 0.1]), np.array([1.0, 4.0, 10.0])
    assert cvar(probabilities, centres, 0.8) == pytest.approx((0.1 * 10 + 0.1 * 4) / 0.2)
    assert cvar(probabilities, centres, 0.0) == pytest.approx(probabilities @ centres)
    # TIE at beta 1: 4 + 4 for who is surely 4; 3.25 + 10 for who may be long.
    estimates = expecting([4, 3.25], [[0, 1, 0], [0.75, 0, 0.25]])
    assert completions(serve("cvar", [0.0, 0.0], [4, 4], estimates=estimates)) == [4, 8]
    assert completions(serve("cvar,beta=0", [0.0, 0.0], [4, 4], estimates=estimates)) == [8, 4]


def test_nobody_is_displaced_in_vain() -> None:
    # 2 slots, 8 usable blocks of 4. Two long ones hold 2 blocks each at 4 s; the newcomer (prompt 21, 6 blocks)
    # has least left, and displacing one of them makes room: 2 + 6. With 29 tokens (8 blocks) it would take both.
    limits = {"num_blocks": 9}
    one = serve("srpt", [0.0, 0.0, 4.0], [12, 12, 1], slots=2, prompts=[2, 2, 21], limits=limits)
    assert one.records["preemptions"].to_list() == [0, 1, 0]
    both = serve("srpt", [0.0, 0.0, 4.0], [12, 12, 1], slots=2, prompts=[2, 2, 29], limits=limits)
    assert both.records["preemptions"].to_list() == [1, 1, 0]
    # If one of them is protected, taking the other's place would not help: nothing happens.
    kept = serve("srpt,limit=0.3", [0.0, 0.0, 4.0], [12, 14, 1], slots=2, prompts=[2, 2, 29], limits=limits)
    assert kept.records["preemptions"].to_list() == [0, 0, 0]


def test_a_policy_of_ones_own_may_move_and_preempt() -> None:
    class Impatient:
        refresh = "step"
        preemptive = True

        def __call__(self, request: Any, now_s: float) -> float:
            return -request.idle_steps if not request.running else -2.0

    # Who has waited more than 2 steps takes the place of who runs.
    result = serve(Impatient(), [0.0, 0.0], [6, 6])
    assert result.records["first_scheduled_s"].to_list() == [0, 3]
    # Request 0 comes back at 5 s: with 2 steps of waiting it ties with who runs, and it came earlier.
    assert completions(result) == [8, 12]
    assert result.records["preemptions"].to_list() == [1, 1]


def test_cached_tokens_make_short_work_of_a_long_prompt() -> None:
    # Request 0 leaves its prompt of 32 in the cache. Of the two that come at 1 s, request 2 repeats it: 28 of
    # its 32 tokens are there (the last block is always computed), so it goes first though it is longer.
    shared = {"prefix_id": [0, -1, 0], "prefix_tokens": [32, 0, 32]}
    trace = Trace(np.arange(3), [0.0, 0.5, 0.5], [32, 16, 32], [1, 1, 1], **shared)
    batching = ContinuousBatching(max_num_seqs=1, max_num_batched_tokens=64, num_blocks=65, block_size=4)
    for policy, order in (("shortest-work,prefill_tokens=4", [0, 2, 1]), ("sjf", [0, 1, 2])):
        records = simulate(trace, policy, batching, Affine(1.0)).records
        assert records["first_scheduled_s"].to_list() == order


def test_what_moves_is_not_known_to_static_batching() -> None:
    trace = Trace([0, 1], [0.0, 0.0], [1, 1], [1, 1])
    with pytest.raises(InputError, match=r"'idle_steps'.*continuous"):
        simulate(trace, "starvation-cap", StaticBatching(1), Affine(1.0))
    simulate(trace, "aging", StaticBatching(1), Affine(1.0))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("srpt,limit=2", "limit = 2"),
        ("las,lead=0", "lead = 0"),
        ("mlfq,levels=0", "levels = 0"),
        ("cvar,level=1", "level = 1"),
        ("aging,rate=-1", "rate = -1"),
        ("aging,inner=nobody", "nobody"),
        ("starvation-cap,steps=0", "steps = 0"),
        ("shortest-work,prefill_tokens=0", "prefill_tokens = 0"),
    ],
)
def test_settings_out_of_range_are_named(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(spec, "policy", POLICIES, ALIASES)


def test_a_wrong_refresh_is_named() -> None:
    for refresh, preemptive in (("often", False), (-1.0, False), (None, True)):
        policy = type("Mine", (), {"__call__": lambda *_: 0.0, "refresh": refresh, "preemptive": preemptive})
        with pytest.raises(InputError, match="refresh"):
            serve(policy(), [0.0], [1])


def test_without_bins_gittins_says_what_it_needs() -> None:
    with pytest.raises(InputError, match="'estp' gives no probabilities"):
        serve("gittins", [0.0], [1], estimates=expecting([1]))


def test_the_name_of_a_wrapped_policy_makes_it_again() -> None:
    spec = "starvation-cap,inner=mlfq+quantum=4,steps=20"
    again = spec_of(load(spec, "policy", POLICIES, ALIASES), POLICIES)
    assert load(again, "policy", POLICIES, ALIASES) == load(spec, "policy", POLICIES, ALIASES)
