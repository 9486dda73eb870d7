"""A comparison runs every policy on the same requests, and its numbers are those of `simulate`, paired and judged."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from experiments.compare import Comparison, Setup, compare, default_policies, make_workload
from experiments.stats import Interval, t_interval
from experiments.table import cell, judge, render
from sim import Affine, StaticBatching, simulate
from traces import Estimates, InputError, Trace
from traces.arrivals import Arrivals

SERVER: dict[str, Any] = {"batching": StaticBatching(batch_size=4), "latency": Affine(a=0.01, c=0.002)}


def trace(n: int = 300, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    lengths = np.maximum(rng.lognormal(3, 1, n).astype(int), 1)
    ids = np.array([f"r{i:03}" for i in range(n)], dtype=object)
    return Trace(ids, np.cumsum(rng.exponential(0.2, n)), lengths, lengths[::-1].copy())


def noisy(source: Trace, name: str, sigma: float) -> Estimates:
    factor = np.random.default_rng(3).lognormal(0, sigma, len(source))
    return Estimates(name, source.request_id, source.output_tokens * factor)


def run(policies: tuple[str, ...] = ("fcfs", "sjf"), **fields: Any) -> Comparison:
    estimates = {name: noisy(trace(), name, 0.5) for name in ("estp", "egtp")}
    return compare(trace(), Setup(policies, server=SERVER, **fields), estimates)


def test_a_recorded_run_is_simulates() -> None:
    found = run()
    for policy in ("fcfs", "sjf"):
        alone = simulate(trace(), policy, **SERVER)
        assert found.results[policy, 0].metrics == pytest.approx(alone.metrics, nan_ok=True)
        assert found.interval(policy, "mean_jct_s").mean == alone.metrics["mean_jct_s"]


def test_policies_share_their_random_numbers_and_replications_differ() -> None:
    found = run(seeds=(0, 1, 2), arrivals=Arrivals("poisson", rate=4.0))
    for seed in (0, 1, 2):
        first, second = (found.results[policy, seed].records for policy in ("fcfs", "sjf"))
        assert first["arrival_s"].to_list() == second["arrival_s"].to_list()
        assert first["request_id"].to_list() == second["request_id"].to_list()
    arrivals = [found.workloads[seed].trace.arrival_s for seed in (0, 1, 2)]
    assert not np.array_equal(arrivals[0], arrivals[1])
    means = [found.results["fcfs", seed].metrics["mean_jct_s"] for seed in (0, 1, 2)]
    assert found.interval("fcfs", "mean_jct_s") == t_interval(means)
    gaps = [found.results["sjf", s].metrics["mean_jct_s"] - means[s] for s in (0, 1, 2)]
    assert found.difference("sjf", "fcfs", "mean_jct_s").mean == pytest.approx(np.mean(gaps))


def test_estimates_follow_their_requests() -> None:
    source = trace()
    shuffled = noisy(source, "estp", 0.5).take(np.random.default_rng(0).permutation(len(source)))
    setup = Setup(("estp",), arrivals=Arrivals("burst"), num_requests=100)
    aligned = {"estp": shuffled.take(shuffled.align(source))}
    workload = make_workload(source, aligned, setup, seed=4)
    length_of = dict(zip(source.request_id, source.output_tokens, strict=True))
    estimate_of = dict(zip(shuffled.request_id, shuffled.mean, strict=True))
    assert len(set(workload.source_id)) == 100
    assert workload.trace.output_tokens.tolist() == [length_of[i] for i in workload.source_id]
    assert workload.estimates["estp"].mean.tolist() == [estimate_of[i] for i in workload.source_id]
    assert workload.estimates["estp"].align(workload.trace).tolist() == list(range(100))


def test_burst_serves_fcfs_in_the_drawn_order() -> None:
    found = run(("fcfs",), seeds=(0, 1), arrivals=Arrivals("burst"))
    for seed in (0, 1):
        records = found.results["fcfs", seed].records
        assert (np.diff(records["first_scheduled_s"].to_numpy()) >= 0).all()
    orders = [found.workloads[seed].source_id.tolist() for seed in (0, 1)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_batch_means_of_one_recorded_run() -> None:
    found = run()
    records = found.results["fcfs", 0].records
    jct = records["completion_s"].to_numpy() - records["arrival_s"].to_numpy()
    expected = t_interval([part.mean() for part in np.array_split(jct, 10)])
    assert found.interval("fcfs", "mean_jct_s").half_width == pytest.approx(expected.half_width)
    assert found.interval("fcfs", "mean_jct_s").method == "batch means"
    # Nothing in one run says how much its throughput is worth.
    assert math.isnan(found.interval("fcfs", "output_throughput").half_width)


def test_judging() -> None:
    found = run(("fcfs", "sjf", "estp", "ljf"), seeds=(0, 1, 2, 3), arrivals=Arrivals("poisson", rate=8.0))
    assert found.best("mean_jct_s") == "sjf"
    assert found.best("completed") is None
    best, within, known = judge(found, "mean_jct_s")
    assert (best, known) == ("sjf", True)
    for policy in ("fcfs", "estp", "ljf"):
        assert (policy in within) == found.difference(policy, "sjf", "mean_jct_s").includes_zero
    assert "ljf" not in within


def test_table_marks_best_and_noise() -> None:
    # The same order under two names: they can never be told apart.
    found = run(
        ("fcfs", "estp", "shortest,predictor=estp,sigma=0.0"),
        seeds=(0, 1, 2),
        arrivals=Arrivals("poisson", rate=8.0),
    )
    lines = render(found).split("\n")
    fcfs, first, second = (re.split(" {2,}", line)[1] for line in lines[2:5])
    assert first.endswith(" *")
    assert second.endswith(" ~")
    assert fcfs[-1].isdigit()
    assert any("within noise of the best" in line for line in lines)
    assert any("t interval over 3 replications" in line for line in lines)


def test_one_run_never_ranks_within_its_noise() -> None:
    at_once = trace().replace(arrival_s=np.zeros(len(trace())))
    recorded = compare(at_once, Setup(("fcfs", "sjf"), server=SERVER))
    for found in (run(seeds=(0,), arrivals=Arrivals("burst")), recorded):
        text = render(found)
        assert "One run tells nothing about noise" in text
        assert "~" not in text


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (12.3456, 0.4321, "12.35 ±0.43"),
        (1234.5, 87.0, "1234 ±87"),
        (0.5, math.nan, "0.5"),
        (61234.5, math.nan, "61234"),
        (math.nan, math.nan, "-"),
        (2.0, 0.0, "2"),
    ],
)
def test_cells(mean: float, half_width: float, text: str) -> None:
    assert cell(Interval(mean, half_width, "replications", 3)) == text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"policies": ()}, "no policy to compare"),
        ({"policies": ("fcfs", "fcfs")}, "policy fcfs is given twice"),
        ({"seeds": ()}, "no replication"),
        ({"seeds": (0, 1)}, "2 replications of recorded arrivals would all be one run"),
    ],
)
def test_bad_setups(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Setup(**({"policies": ("fcfs",)} | fields))


def test_default_policies() -> None:
    assert default_policies(["estp", "last"]) == ("fcfs", "sjf", "estp", "shortest,predictor=last")


def test_what_the_last_policy_lacks_is_found_before_the_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[str, int]] = []

    def noted(trace: Trace, policy: str, **options: Any) -> Any:
        served.append((policy, len(trace)))
        return simulate(trace, policy, **options)

    monkeypatch.setattr("experiments.compare.simulate", noted)
    with pytest.raises(InputError, match="no estimates by predictor 'absent' for any of the 300 requests"):
        run(("fcfs", "sjf", "shortest,predictor=absent"))
    assert ("fcfs", 300) not in served
    assert ("sjf", 300) not in served
