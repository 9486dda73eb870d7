"""Policies side by side on the same requests: every run, and what differs beyond noise."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.stats import Interval, batch_means_interval, batch_values, paired_interval, t_interval
from sim import Result, simulate
from sim.metrics import latencies
from traces.arrivals import Arrivals
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Array, Trace

# Of these, smaller is better or larger is; every other metric is reported and not judged.
LOWER = re.compile(r"(mean|p\d+)_(jct|ttft|tpot|queueing|itl)_s|mean_slowdown|padding_ratio|max_queueing_s")
HIGHER = re.compile(r"output_throughput|request_throughput|goodput|goodput_share|effective_share")
PER_REQUEST = re.compile(r"(mean|p\d+)_(jct|ttft|tpot|queueing)_s")


@dataclass(frozen=True)
class Setup:
    """Everything of a comparison but its trace and estimates.

    Attributes:
        policies: as `sim.simulate` takes them by name; each once.
        seeds: one replication a seed; a seed fixes the arrivals, the order of the requests and
            every draw in the simulation, the same for all policies (common random numbers).
        arrivals: the process that the requests are put on.
        num_requests: how many of the trace's requests; all if None.
        server: the other arguments of `sim.simulate` (batching, latency, replicas, ...).

    Raises:
        InputError: no policy, one twice, or replications that would all be the same run.
    """

    policies: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    arrivals: Arrivals = field(default_factory=Arrivals)
    num_requests: int | None = None
    server: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.policies:
            raise InputError("there is no policy to compare; name one with --policy")
        for names, what in ((self.policies, "policy"), (self.seeds, "seed")):
            twice = [name for name in names if list(names).count(name) > 1]
            if twice:
                raise InputError(f"{what} {twice[0]} is given twice")
        if not self.seeds:
            raise InputError("there is no replication to run; ask for 1 at least")
        if len(self.seeds) > 1 and self.arrivals.repeats_itself:
            raise InputError(
                f"{len(self.seeds)} replications of recorded arrivals would all be one run; "
                "draw arrivals (--arrivals poisson, gamma or burst), or ask for 1 replication"
            )


@dataclass(frozen=True, eq=False)
class Workload:
    """The requests of one replication.

    Attributes:
        trace: on their arrivals.
        estimates: predictor -> estimates, in the order of the trace.
        source_id: (n,) ids in the trace that was read; the workload's own differ in a burst only.
    """

    trace: Trace
    estimates: Mapping[str, Estimates]
    source_id: Array


@dataclass(frozen=True, eq=False)
class Comparison:
    """All runs of a comparison.

    Attributes:
        setup: what was asked for.
        results: (policy, seed) -> result; records are in the order of the workload.
        workloads: seed -> workload.
    """

    setup: Setup
    results: Mapping[tuple[str, int], Result]
    workloads: Mapping[int, Workload]

    def of_policy(self, policy: str) -> list[Result]:
        """The policy's results, by seed."""
        return [self.results[policy, seed] for seed in self.setup.seeds]

    def logged(self, policy: str) -> Result:
        """The policy's first replication run again, with its steps."""
        seed = self.setup.seeds[0]
        run = _Runner(self.workloads, {**self.setup.server, "record_steps": True})
        return run((policy, seed))

    def metric_names(self) -> list[str]:
        """The metrics that every run has."""
        return list(next(iter(self.results.values())).metrics)

    def interval(self, policy: str, metric: str) -> Interval:
        """The metric's mean over replications; or one run's value with a batch means half width."""
        values = self._samples(policy, metric)
        if len(self.setup.seeds) > 1:
            return t_interval(values)
        overall = float(self.of_policy(policy)[0].metrics[metric])
        return batch_means_interval(overall, values)

    def difference(self, policy: str, baseline: str, metric: str) -> Interval:
        """The paired interval of ``policy - baseline``."""
        values, base = self._samples(policy, metric), self._samples(baseline, metric)
        if len(self.setup.seeds) > 1:
            return paired_interval(values, base)
        spread = paired_interval(values, base, "batch means")
        first, second = (self.of_policy(name)[0].metrics[metric] for name in (policy, baseline))
        return replace(spread, mean=float(first) - float(second))

    def best(self, metric: str) -> str | None:
        """The policy with the best mean; None if the metric has no better side or all are alike."""
        means = {policy: self.interval(policy, metric).mean for policy in self.setup.policies}
        known = {policy: mean for policy, mean in means.items() if not np.isnan(mean)}
        lower, higher = LOWER.fullmatch(metric), HIGHER.fullmatch(metric)
        if not (lower or higher) or len(set(known.values())) < 2:
            return None
        return (min if lower else max)(known, key=lambda policy: known[policy])

    def _samples(self, policy: str, metric: str) -> NDArray[np.float64]:
        """Independent values: one a replication, or of one run with recorded arrivals one a batch."""
        results = self.of_policy(policy)
        if len(results) > 1:
            return np.array([float(result.metrics[metric]) for result in results])
        match = PER_REQUEST.fullmatch(metric)
        # A burst is one long transient: its stretches are no samples of the same thing.
        if match is None or not self.workloads[self.setup.seeds[0]].trace.arrival_s.any():
            return np.empty(0)
        values = latencies(results[0].records)[match[2]]
        return batch_values(values[~np.isnan(values)], _statistic(match[1]))


def compare(
    trace: Trace,
    setup: Setup,
    estimates: Mapping[str, Estimates] | None = None,
    *,
    workers: int = 1,
    progress: bool = False,
) -> Comparison:
    """Run every policy on every replication; the same input gives the same output for any ``workers``.

    Args:
        trace: the requests.
        setup: what to run.
        estimates: by predictor name; each must cover the trace exactly.
        workers: processes.
        progress: show a bar on standard error.

    Raises:
        InputError: estimates that do not fit the trace, or what `sim.simulate` finds wrong.
    """
    if workers < 1:
        raise InputError(f"{workers} workers cannot work; ask for 1 at least")
    aligned = {name: one.take(one.align(trace)) for name, one in (estimates or {}).items()}
    workloads = {seed: make_workload(trace, aligned, setup, seed) for seed in setup.seeds}
    tasks = [(policy, seed) for seed in setup.seeds for policy in setup.policies]
    run = _Runner(workloads, setup.server)
    run.try_policies(setup)
    results = dict(zip(tasks, _bar(_map(run, tasks, workers), len(tasks), progress), strict=True))
    return Comparison(setup, results, workloads)


def make_workload(trace: Trace, estimates: Mapping[str, Estimates], setup: Setup, seed: int) -> Workload:
    """The requests of one replication; ``estimates`` are in the order of ``trace``."""
    rng = np.random.default_rng([seed, 1])
    numbered = trace.replace(extra={"row": np.arange(len(trace))}, prompt=None, response=None)
    drawn = setup.arrivals.apply(numbered, rng, setup.num_requests)
    rows = drawn.extra["row"]
    ids = drawn.request_id
    if setup.arrivals.kind == "burst":
        # Equal arrivals are served by id. Numbered anew, they come in the order that was drawn.
        drawn = drawn.replace(request_id=np.arange(len(drawn)))
    chosen = {name: replace(one.take(rows), request_id=drawn.request_id) for name, one in estimates.items()}
    return Workload(drawn.replace(extra={}), chosen, ids)


def default_policies(predictors: Sequence[str]) -> tuple[str, ...]:
    """FCFS, the oracle, and the shortest first by each predictor."""
    from sim.policies import ALIASES

    by_estimate = [name if name in ALIASES else f"shortest,predictor={name}" for name in predictors]
    return ("fcfs", "sjf", *by_estimate)


@dataclass(frozen=True, eq=False)
class _Runner:
    workloads: Mapping[int, Workload]
    server: Mapping[str, Any]

    def __call__(self, task: tuple[str, int]) -> Result:
        policy, seed = task
        workload = self.workloads[seed]
        return simulate(workload.trace, policy, estimates=workload.estimates, seed=seed, **self.server)

    def try_policies(self, setup: Setup) -> None:
        """Serve one request under each policy, so that what the last one lacks is said before the first runs.

        Raises:
            InputError: a policy that is not there, lacks its estimates, or does not fit the server.
        """
        seed = setup.seeds[0]
        workload = self.workloads[seed]
        tables = {name: one.take([0]) for name, one in workload.estimates.items()}
        first = Workload(workload.trace.take([0]), tables, workload.source_id[:1])
        alone = _Runner({seed: first}, self.server)
        for policy in setup.policies:
            try:
                alone((policy, seed))
            except InputError:
                # The whole run says it of all requests; what only one request cannot do is no fault.
                self((policy, seed))


_runner: _Runner | None = None


def _start_worker(runner: _Runner) -> None:
    global _runner
    _runner = runner


def _run_in_worker(task: tuple[str, int]) -> Result:
    assert _runner is not None
    return _runner(task)


def _map(run: _Runner, tasks: list[tuple[str, int]], workers: int) -> Iterator[Result]:
    if workers == 1:
        yield from map(run, tasks)
        return
    # Not forked: a fork of a process with threads (polars has some) may hang.
    context = multiprocessing.get_context("spawn")
    count = min(workers, len(tasks))
    with ProcessPoolExecutor(count, context, initializer=_start_worker, initargs=(run,)) as pool:
        yield from pool.map(_run_in_worker, tasks)


def _bar(results: Iterator[Result], total: int, progress: bool) -> Iterator[Result]:
    from tqdm import tqdm

    return iter(tqdm(results, total=total, desc="simulating", unit="run", leave=False, disable=not progress))


def _statistic(name: str) -> Callable[[NDArray[np.float64]], Any]:
    if name == "mean":
        return np.mean
    level = float(name[1:])
    return lambda values: np.percentile(values, level)
