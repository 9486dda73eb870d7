"""Policies rank as their definitions say, see no true length, and their mistakes are named."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from sim import Affine, StaticBatching, simulate
from sim.plugins import load, spec_of
from sim.policies import ALIASES, POLICIES, Order
from sim.request import Requests
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

TRACE = Trace(
    request_id=np.array(["a", "b", "c", "d"], object),
    arrival_s=np.array([0.0, 0.0, 1.0, 2.0]),
    prompt_tokens=np.array([10, 20, 30, 40]),
    output_tokens=np.array([7, 3, 9, 3]),
    scenario=np.array(["x", "x", "y", "y"], object),
    response=np.array(["w", "w", "w", "w"], object),
)
ESTP = Estimates(
    predictor="estp",
    request_id=np.array(["d", "c", "b", "a"], object),
    mean=np.array([4.0, 3.0, 2.0, 1.0]),
    quantiles={0.9: np.array([40.0, 30.0, 20.0, 10.0])},
    probabilities=np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0], [0.0, 1.0]]),
    bin_edges=np.array([0.0, 4.0, 8.0]),
)


def keys(spec, estimates=None, reveal=False, seed=0):
    requests = Requests(TRACE, np.arange(4), estimates, seed)
    if reveal:
        requests.reveal(TRACE.output_tokens)
    policy = load(spec, "policy", POLICIES, ALIASES) if isinstance(spec, str) else spec
    return Order(policy, str(spec), requests).keys


def order_of_service(policy, **options):
    run = simulate(TRACE, policy, StaticBatching(1), Affine(10.0), **options)
    return run.records.sort("first_scheduled_s")["request_id"].to_list()


def test_keys_of_the_built_in_policies():
    assert keys("fcfs") == [0, 0, 1, 2]
    assert keys("sjf", reveal=True) == [7, 3, 9, 3]
    assert keys("ljf", reveal=True) == [-7, -3, -9, -3]
    assert keys("estp", {"estp": ESTP}) == [1, 2, 3, 4]
    assert keys("shortest,predictor=estp", {"estp": ESTP}) == [1, 2, 3, 4]
    assert keys("longest,predictor=estp", {"estp": ESTP}) == [-1, -2, -3, -4]
    with pytest.raises(InputError, match=r"'egtp'.*4 requests.*'a'.*estp"):
        keys("egtp", {"estp": ESTP})


def test_random_and_noise_depend_on_the_seed_alone():
    assert keys("random", seed=5) == keys("random", seed=5) != keys("random", seed=6)
    noisy = keys("sjf-noise,sigma=0.5", reveal=True, seed=5)
    assert noisy == keys("sjf,sigma=0.5", reveal=True, seed=5) != keys("sjf-noise", reveal=True, seed=6)
    assert keys("sjf-noise,sigma=0", reveal=True) == keys("sjf", reveal=True)


def test_noise_on_the_oracle_is_lognormal_of_the_given_size():
    n = 20_000
    trace = Trace(np.arange(n), np.arange(n) * 1.0, np.full(n, 1), np.full(n, 100))
    requests = Requests(trace, np.arange(n), None, seed=1)
    requests.reveal(trace.output_tokens)
    policy = load("sjf-noise,sigma=0.4", "policy", POLICIES, ALIASES)
    logs = np.log(np.array(Order(policy, "sjf-noise", requests).keys) / 100)
    # Standard errors 0.4 / sqrt(n) and 0.4 / sqrt(2 n); four of them.
    assert abs(logs.mean()) < 4 * 0.4 / np.sqrt(n)
    assert abs(logs.std() - 0.4) < 4 * 0.4 / np.sqrt(2 * n)


def test_ties_go_to_the_earlier_arrival_and_then_to_the_smaller_id():
    # Constant keys: a and b arrive together; d is as short as b, but later.
    assert order_of_service(lambda request, now_s: 0.0) == ["a", "b", "c", "d"]
    reversed_ids = TRACE.replace(request_id=np.array(["b", "a", "c", "d"], object))
    run = simulate(reversed_ids, lambda request, now_s: 0, StaticBatching(1), Affine(10.0))
    # Ten seconds an output token: 3 for a, then 7 for b, 9 for c.
    assert run.records["first_scheduled_s"].to_list() == [30, 0, 100, 190]
    assert order_of_service("sjf") == ["b", "d", "a", "c"]


def test_one_call_for_all_equals_a_call_a_request():
    @dataclass(frozen=True)
    class Mine:
        vectorised = True

        def __call__(self, request, now_s):
            return (
                request.estimate("estp").mean
                + 0.5 * request.prompt_tokens
                - now_s
                + request.estimate("estp").quantile(0.9)
            )

    class OneByOne(Mine):
        vectorised = False

    assert keys(Mine(), {"estp": ESTP}) == keys(OneByOne(), {"estp": ESTP}) == [16.0, 32.0, 47.0, 62.0]


def test_what_a_policy_sees():
    seen = {}

    def policy(request, now_s):
        estimate = request.estimate("estp")
        seen[request.id] = (
            *(request.arrival_s, request.prompt_tokens, request.generated_tokens, request.scenario),
            *(
                estimate.mean,
                estimate.quantile(0.9),
                estimate.probabilities.tolist(),
                estimate.bin_edges.tolist(),
            ),
            request.waiting_s(now_s + 3),
        )
        return 0.0

    order_of_service(policy, estimates={"estp": ESTP})
    assert seen["c"] == (1.0, 30, 0, "y", 3.0, 30.0, [0.25, 0.75], [0.0, 4.0, 8.0], 3.0)


@pytest.mark.parametrize("name", ["output_tokens", "response", "extra", "trace"])
def test_the_truth_is_not_there_to_be_seen(name):
    def policy(request, now_s):
        assert not hasattr(request, name)
        return getattr(request, name)

    with pytest.raises(InputError, match=f"AttributeError.*'a'.*no '{name}'"):
        order_of_service(policy)
    requests = Requests(TRACE, np.arange(4), {"estp": ESTP})
    requests.estimate("estp")
    assert not any(np.array_equal(value, TRACE.output_tokens) for value in vars(requests).values())


def test_a_policy_of_ones_own_is_not_given_the_oracle():
    @dataclass(frozen=True)
    class Cheat:
        predictor: str = "oracle"

        def __call__(self, request, now_s):
            return request.estimate(self.predictor).mean

    with pytest.raises(InputError, match="built-in policies only"):
        order_of_service(Cheat())


@pytest.mark.parametrize("value", [float("nan"), None, "3", [1.0], 1j])
def test_a_policy_that_returns_no_number(value):
    with pytest.raises(InputError, match=r"for request 'a'.*test_policies\.py:\d+"):
        order_of_service(lambda request, now_s: value)


def test_a_vectorised_policy_that_returns_nan():
    class Mine:
        vectorised = True

        def __call__(self, request, now_s):
            return np.where(request.prompt_tokens > 25, np.nan, 1.0)

    with pytest.raises(InputError, match="nan for request 'c'"):
        order_of_service(Mine())


def test_a_policy_that_raises_is_named_with_its_line(tmp_path):
    path = tmp_path / "mine.py"
    head = "class Mine:\n    def __call__(self, request, now_s):\n"
    path.write_text(head + "        return 1 / (request.prompt_tokens - 30)\n")
    with pytest.raises(
        InputError, match=rf"{path}:Mine raised ZeroDivisionError at {path}:3 for request 'c'"
    ):
        order_of_service(f"{path}:Mine")


def test_missing_estimates_are_counted():
    some = {"estp": ESTP.take([0, 2])}
    with pytest.raises(InputError, match=r"'estp' has no estimate for .*'a'"):
        order_of_service("estp", estimates=some)
    with pytest.raises(InputError, match=r"no quantile 0\.5; it gives: 0\.9"):
        order_of_service(
            lambda request, now_s: request.estimate("estp").quantile(0.5), estimates={"estp": ESTP}
        )
    with pytest.raises(InputError, match="no column 'session_id'"):
        order_of_service(lambda request, now_s: request.session_id)


def test_a_policy_that_moves_with_time_is_asked_whenever_a_batch_forms():
    class Aging:
        refresh = "event"

        def __call__(self, request, now_s):
            return request.prompt_tokens - 8 * request.waiting_s(now_s)

    class AtArrival(Aging):
        refresh = None

    trace = Trace(np.arange(3), np.array([0.0, 0, 1]), np.array([1, 20, 15]), np.array([1, 1, 1]))
    # One second a batch: at 1, request 1 has aged to 20 - 8 = 12, before the newcomer's 15.
    started = [
        simulate(trace, policy, StaticBatching(1), Affine(1.0)).records["first_scheduled_s"].to_list()
        for policy in (Aging(), AtArrival())
    ]
    assert started == [[0, 1, 2], [0, 2, 1]]


def test_the_name_of_a_policy_makes_it_again():
    for spec in ("shortest,predictor=estp,sigma=0.25", "fcfs", "longest,predictor=oracle"):
        assert spec_of(load(spec, "policy", POLICIES, ALIASES), POLICIES) == spec
    with pytest.raises(InputError, match="sigma = -1"):
        load("shortest,predictor=estp,sigma=-1", "policy", POLICIES)
