"""Stress questions give what can be worked out by hand: no noise is SJF, the oracle's share is 1, small padded
batches, a server of constant service time, a scan for the bisection, and scipy for Kendall's tau.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from experiments.options import Server
from experiments.stats import Interval, paired_interval
from experiments.stress import (
    batch_size,
    case,
    estimate_cost,
    load,
    misprediction,
    oracle_gain,
    predictor,
    prefix,
    replicas,
    tails,
)
from experiments.stress.answer import (
    Answer,
    crossing,
    kendall_tau,
    plus_minus,
    ranking,
    ratio,
    share_of_gain,
)
from experiments.stress.case import Case, make_case
from traces import Estimates, InputError, Trace
from traces.arrivals import Arrivals

SECOND_A_TOKEN = Server(latency="affine,a=1", batch_size=1)


def trace_of(lengths: Any) -> Trace:
    lengths = np.asarray(lengths, np.int64)
    return Trace(np.arange(len(lengths)), np.zeros(len(lengths)), np.ones(len(lengths), np.int64), lengths)


def exact(trace: Trace, server: Server = SECOND_A_TOKEN, **settings: Any) -> Case:
    """A case whose replications hold exactly the trace's requests."""
    truth = trace.output_tokens.astype(float)
    estimates = {
        "estp": Estimates(
            "estp", trace.request_id, truth * np.random.default_rng(1).lognormal(0, 0.7, len(trace))
        ),
        "same": Estimates("same", trace.request_id, truth),
        "none": Estimates("none", trace.request_id, np.zeros(len(trace))),
    }
    given: dict[str, Any] = {"policies": ("fcfs", "sjf", "estp"), "seeds": (0, 1, 2)} | settings
    return Case(trace, trace, estimates, server=server, num_requests=len(trace), **given)


def mixed(n: int = 300) -> Trace:
    return trace_of(np.maximum(np.random.default_rng(0).lognormal(3, 1, n).astype(int), 1))


def test_no_noise_is_the_oracle_and_much_noise_is_no_order() -> None:
    found = predictor.answer(exact(mixed(), Server(latency="affine,a=0.01", batch_size=4)))
    for panel in found.panels:
        curve = panel.lines[predictor.CURVE]
        assert curve[0] == panel.levels["sjf"]
        assert panel.points["same"][1] == panel.levels["sjf"]
        assert panel.points["none"][1] == panel.levels["fcfs"]
        assert curve[0].mean < curve[-1].mean
    assert [panel.x[0] for panel in found.panels] == [0.0, 1.0, 0.0, 1.0]
    assert found.facts["predictors"]["same"] == {"sigma": 0.0, "kendall_tau": 1.0}
    assert found.facts["predictors"]["estp"]["sigma"] == pytest.approx(0.7, rel=0.15)


def test_the_oracle_captures_all_of_its_gain_and_fcfs_none() -> None:
    found = oracle_gain.answer(exact(mixed(), Server(latency="affine,a=0.01", batch_size=4), load=1.5))
    for panel in found.panels:
        assert panel.values["same"].mean == pytest.approx(100)
        assert panel.values["same"].half_width == pytest.approx(0, abs=1e-9)
        assert panel.values["none"].mean == pytest.approx(0, abs=1e-9)
        assert 0 < panel.values["estp"].mean < 100


def test_shares_of_a_gain_by_hand() -> None:
    worst, best = np.array([10.0, 12.0, 14.0]), np.array([6.0, 7.0, 8.0])
    assert share_of_gain(worst, best, best).mean == 1
    assert share_of_gain(worst, best, worst).mean == 0
    # 1 of 4, 2 of 5 and 3 of 6 saved: 6 of 15 in all.
    third = share_of_gain(worst, best, np.array([9.0, 10.0, 11.0]))
    assert third.mean == pytest.approx(6 / 15)
    residual = np.array([1, 2, 3]) - 6 / 15 * np.array([4, 5, 6])
    assert third.half_width == pytest.approx(4.302653 * residual.std(ddof=1) / math.sqrt(3) / 5, rel=1e-6)
    assert math.isnan(share_of_gain(worst, np.add(worst, [-1.0, 1.0, 0.0]), worst).mean)
    assert ratio(np.array([2.0, 6.0]), np.array([1.0, 3.0])) == Interval(2.0, 0.0, "replications", 2)


def test_padding_of_batches_of_equals_and_of_all() -> None:
    # 32 answers of one token and 32 of nine, at batch sizes 1, 2, ..., 64.
    found = batch_size.answer(exact(trace_of([1] * 32 + [9] * 32)))
    padding = {policy: [value.mean for value in values] for policy, values in found.panels[0].lines.items()}
    assert padding["sjf"] == pytest.approx([0, 0, 0, 0, 0, 0, 0.8])
    assert padding["fcfs"][0] == 0
    assert padding["fcfs"][-1] == pytest.approx(64 * 9 / (32 * 10) - 1)
    assert all(low < high for low, high in zip(padding["fcfs"][:3], padding["fcfs"][1:4], strict=True))
    speed = [value.mean for value in found.panels[1].lines["sjf"]]
    # Batches of equals run at a token a second and slot; the whole lot takes nine seconds.
    assert speed[0] == pytest.approx(1)
    assert speed[5] == pytest.approx(320 / 10)
    assert speed[6] == pytest.approx(320 / 9)


def test_a_server_of_constant_service_saturates_at_utilisation_one() -> None:
    for seconds in (1, 4):
        server = exact(trace_of([seconds] * 2000), policies=("fcfs",))
        assert case.capacity(server) == pytest.approx(1 / seconds)
        found = load.answer(server)
        assert np.array(found.facts["knee_requests_per_s"]["fcfs"]) * seconds == pytest.approx(1, rel=0.02)
        assert set(found.panels[0].marks) == {"fcfs"}


def test_a_policy_that_never_saturates_has_no_knee() -> None:
    light = exact(trace_of([1] * 400), policies=("fcfs",))
    rates = [0.1, 0.2, 0.4]
    found = case.run(light, [light.job(("fcfs",), Arrivals("poisson", rate)) for rate in rates])
    assert np.isnan(load.knee(found, "fcfs")).all()


def test_a_server_that_takes_everybody_at_once_has_no_capacity() -> None:
    with pytest.raises(InputError, match="raise --num-prompts"):
        case.capacity(exact(trace_of([1] * 40), Server(latency="affine,a=1", batch_size=40)))


def test_replicas_for_a_bound_by_hand() -> None:
    # Twelve requests of two seconds at once; three of them fit into six seconds, so it takes four servers.
    server = Server(latency="affine,a=1", batch_size=1, goodput=("e2el:6000",))
    found = replicas.answer(exact(trace_of([2] * 12), server, policies=("fcfs",), request_rate=1e9))
    assert found.facts["replicas"] == {"fcfs": 4}
    # With three servers there are four to each, and one in four is late.
    met = dict(zip(found.panels[0].x, found.panels[0].lines["fcfs"], strict=True))
    assert met[3].mean == pytest.approx(75)
    assert met[4].mean == 100


@given(st.integers(1, 200), st.integers(1, 200))
def test_bisection_finds_what_a_scan_finds(need: int, most: int) -> None:
    asked: list[int] = []

    def holds(k: int) -> bool:
        asked.append(k)
        return k >= need

    if need > most:
        with pytest.raises(InputError, match=f"even {most} replicas"):
            replicas.fewest(holds, most)
    else:
        assert replicas.fewest(holds, most) == next(k for k in range(1, most + 1) if k >= need)
    assert len(asked) <= 2 * math.ceil(math.log2(need + 1)) + 1


@pytest.mark.parametrize("alpha", [1.2, 2.0, 5.0])
def test_tails_are_paretos_and_predictors_order_as_before(alpha: float) -> None:
    trace = trace_of(np.random.default_rng(0).permutation(np.arange(1, 4001)))
    truth = trace.output_tokens.astype(float)
    noisy = truth * np.random.default_rng(1).lognormal(0, 0.5, len(truth))
    estimates = {name: Estimates(name, trace.request_id, mean) for name, mean in (("o", truth), ("n", noisy))}
    heavy, told = tails.with_tail(trace, estimates, alpha)
    assert heavy.output_tokens.mean() == pytest.approx(truth.mean(), rel=1e-3)
    assert (np.diff(heavy.output_tokens[np.argsort(truth)]) >= 0).all()
    assert np.abs(told["o"].mean - heavy.output_tokens).max() <= 0.5
    before, after = (
        kendall_tau(e.mean, t) for e, t in ((estimates["n"], truth), (told["n"], told["o"].mean))
    )
    assert after == pytest.approx(before, abs=0.01)
    # The share above x falls as x^-alpha: doubling x divides it by 2^alpha, up to the cut.
    quantiles = tails.pareto(100_000, alpha, 100.0)
    x = 2 * quantiles[0]
    assert (quantiles > 2 * x).sum() / (quantiles > x).sum() == pytest.approx(2**-alpha, rel=0.01)


def test_fooled_are_the_longest_and_stay_fooled() -> None:
    truth = Estimates("sjf", np.arange(1000), np.random.default_rng(0).permutation(1000) + 2.0)
    assert (misprediction.fooled(truth, truth, 0.0).mean == truth.mean).all()
    before = np.zeros(1000, bool)
    for share in misprediction.SHARES:
        now = misprediction.fooled(truth, truth, share).mean == 1
        assert (truth.mean[now] >= 900).all()
        assert not (before & ~now).any()
        assert now.sum() == pytest.approx(100 * share, abs=20)
        before = now
    assert before.sum() == 100
    # Bins and quantiles say the same as the mean.
    bins = Estimates("b", np.arange(4), [1, 2, 3, 4], {0.5: np.full(4, 9.0)}, np.full((4, 2), 0.5), [0, 4, 8])
    told = misprediction.fooled(bins, Estimates("sjf", np.arange(4), [1, 1, 1, 9]), 1.0)
    assert told.probabilities is not None
    assert told.probabilities.tolist() == [[0.5, 0.5]] * 3 + [[1, 0]]
    assert told.quantiles[0.5].tolist() == [9, 9, 9, 1]
    assert told.mean.tolist() == [1, 2, 3, 1]


def test_break_even_by_hand() -> None:
    # At a cost of c the policy takes 1 + c, or 5 from the start, or 0.5; FCFS takes 3.
    mine = {cost: np.array([1 + cost, 5.0, 0.5]) for cost in (0.0, 1.0, 3.0, 10.0)}
    even = estimate_cost.break_even(np.array([3.0, 3.0, 3.0]), mine)
    assert even[:2] == pytest.approx([2.0, 0.0])
    assert math.isnan(even[2])


def test_costs_are_paid_by_those_who_estimate() -> None:
    server = Server(latency="affine,a=1", num_blocks=100)
    found = estimate_cost.answer(exact(trace_of([1] * 200), server, request_rate=1e-3))
    (panel,) = found.panels
    # Hardly anyone meets another here, so each request takes its second and what its estimate costs.
    for cost_ms, beside, after in zip(
        panel.x, panel.lines["estp"], panel.lines["estp after prefill"], strict=True
    ):
        assert beside.mean == pytest.approx(1 + cost_ms / 1000, abs=0.01)
        if cost_ms <= estimate_cost.MOST_MS["prefill"]:
            assert after.mean == pytest.approx(1 + cost_ms / 1000, abs=0.01)
        else:
            assert math.isnan(after.mean)
    assert panel.levels["fcfs"].mean == pytest.approx(1, abs=0.01)


def test_prefix_cache_by_hand() -> None:
    # One prefix of 160 tokens for all, prompts of 200, a second a prompt token: the first to come computes 200
    # tokens, the others 40 (ten blocks of 16 are shared), unless there is no cache.
    n = 50
    trace = trace_of([1] * n).replace(
        prompt_tokens=[200] * n, prefix_id=np.zeros(n, np.int64), prefix_tokens=[160] * n
    )
    server = Server(latency="affine,a=0.001,b=1", num_blocks=1000)
    found = prefix.answer(exact(trace, server, request_rate=1e-5))
    (panel,) = found.panels
    assert list(panel.x_ticks.values()) == ["0", "75–90"]
    cached, bare = panel.lines[prefix.WITH], panel.lines[prefix.WITHOUT]
    assert [value.mean for value in cached] == pytest.approx([200, 40], rel=0.01)
    assert [value.mean for value in bare] == pytest.approx([200, 200], rel=0.01)
    assert found.facts["prefixes"] == "as in the trace"
    assert "The cache holds 78.4% of the prompt tokens" in found.sentence  # 49 times 160 of 50 times 200


def test_system_prompts_are_shared_by_rank() -> None:
    made = prefix.with_system_prompts(trace_of([1] * 20_000))
    assert made.prefix_id is not None
    assert made.prefix_tokens is not None
    count = np.bincount(made.prefix_id)
    assert count[0] / count[3] == pytest.approx(4, rel=0.1)
    assert (made.prefix_tokens < made.prompt_tokens).all()
    assert len(set(zip(made.prefix_id, made.prefix_tokens, strict=True))) == prefix.PROMPTS


def test_kendalls_tau_is_scipys() -> None:
    rng = np.random.default_rng(0)
    first = rng.integers(0, 20, 300).astype(float)
    second = first + rng.normal(0, 8, 300).round()
    assert kendall_tau(first, second) == pytest.approx(kendalltau(first, second).statistic)
    assert kendall_tau(first, np.zeros(300)) == 0


def test_ranking_never_ranks_within_noise() -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(10, 1, 8)
    values = {"a": base, "b": base + [0.1, -0.2] * 4, "c": base + 1 + rng.normal(0, 0.1, 8)}
    best, near, rest = ranking(values)
    for name in near:
        assert paired_interval(values[name], values[best]).includes_zero
    for name in rest:
        assert not paired_interval(values[name], values[best]).includes_zero
    assert rest == ["c"]
    assert ranking({"a": base, "b": base}) == ("a", ["b"], [])


def test_crossings() -> None:
    assert crossing([0, 1, 3], [0, 10, 30], 20) == 2
    assert crossing([0, 1, 3], [30, 10, 0], 20) == 0.5
    assert math.isnan(crossing([0, 1], [0, 1], 2))


@pytest.mark.parametrize(
    ("mean", "half", "text"),
    [
        (2.272, 0.073, "2.27 ±0.07"),
        (86.2, 11.3, "86 ±11"),
        (0.0051, 0.00021, "0.00510 ±0.00021"),
        (1234, 450, "1200 ±400"),
    ],
)
def test_numbers_in_sentences(mean: float, half: float, text: str) -> None:
    assert plus_minus(Interval(mean, half, "replications", 5)) == text


def test_a_case_draws_from_a_pool_with_each_estimate_beside_its_request() -> None:
    trace = trace_of(np.arange(1, 11))
    made = make_case(trace, {}, num_requests=100, seeds=(0, 1))
    assert len(made.trace) == 400
    assert made.policies == ("fcfs", "sjf", "shortest,predictor=noisy")
    error = made.estimates["noisy"].mean / made.trace.output_tokens
    assert (error.reshape(40, 10) == error[:10]).all()
    for fault, settings in (("one replication", {"seeds": (0,)}), ("--load", {"load": 0.0})):
        with pytest.raises(InputError, match=fault):
            make_case(trace, {}, **({"seeds": (0, 1)} | settings))


def test_a_table_holds_all_that_is_drawn() -> None:
    found = batch_size.answer(exact(trace_of([1] * 32 + [9] * 32)))
    assert isinstance(found, Answer)
    table = found.table()
    assert table.shape == (2 * 3 * 7, 6)
    picked = table.filter(policy="fcfs", x=64.0, measure="padding ratio")
    assert picked["mean"].to_list() == pytest.approx([0.8])


def test_the_embedded_case_is_what_no_head_was_trained_on() -> None:
    from experiments.demo import held_out

    trace, estimates = case.embedded()
    assert trace.request_id.tolist() == held_out().request_id.tolist()
    for one in estimates.values():
        assert len(one) == len(trace)
        one.align(trace)
    assert {"estp", "egtp"} <= set(estimates)
