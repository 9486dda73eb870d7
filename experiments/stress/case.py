"""What a question is asked of: requests, estimates, a server and a load; and the runs that answer it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.compare import Comparison, Setup, compare, default_policies
from experiments.options import Server
from traces import Estimates, Trace, read_estimates, read_trace
from traces.arrivals import Arrivals
from traces.errors import InputError

Floats = NDArray[np.float64]
HELD_OUT = Path(__file__).parent / "held_out.parquet"
MAIN_PREDICTORS = ("egtp", "estp")
# A replication draws its requests without replacement from a trace so many times as long.
POOL = 4
NOISY, NOISE = "noisy", 0.5


@dataclass(frozen=True, eq=False)
class Job:
    """One comparison to run: arguments of `experiments.compare.compare`."""

    trace: Trace
    estimates: Mapping[str, Estimates]
    setup: Setup


@dataclass(frozen=True, eq=False)
class Case:
    """What a question is asked of.

    Attributes:
        source: the trace as it was given, with its shared prefixes.
        trace: its requests, each so often that a replication can draw ``num_requests`` of them.
        estimates: by predictor, in the order of the trace.
        policies: who is compared where the question does not say; the first is the baseline.
        server: its options; a question that is about one kind of batching sets that kind.
        seeds: one replication a seed.
        num_requests: requests of a replication.
        load: the request rate as a share of what FCFS can serve, unless ``request_rate`` is given.
        request_rate: requests per second, or None.
        workers: processes; no result depends on it.
        progress: show a bar on standard error.
    """

    source: Trace
    trace: Trace
    estimates: Mapping[str, Estimates]
    policies: tuple[str, ...]
    server: Server = field(default_factory=Server)
    seeds: tuple[int, ...] = tuple(range(10))
    num_requests: int = 2000
    load: float = 0.9
    request_rate: float | None = None
    workers: int = 1
    progress: bool = False

    def served_by(self, batching: str | None = None, **options: Any) -> Case:
        """The same with another kind of batching, or other server options."""
        if batching is not None:
            options["batching"] = batching
        return dataclasses.replace(self, server=dataclasses.replace(self.server, **options))

    def rate(self) -> float:
        """Requests per second."""
        return self.load * capacity(self) if self.request_rate is None else self.request_rate

    def job(
        self,
        policies: Sequence[str],
        arrivals: Arrivals,
        trace: Trace | None = None,
        estimates: Mapping[str, Estimates] | None = None,
    ) -> Job:
        """A comparison of these policies under these arrivals; the case's requests unless others are given."""
        setup = Setup(tuple(policies), self.seeds, arrivals, self.num_requests, self.server.arguments())
        return Job(
            self.trace if trace is None else trace,
            self.estimates if estimates is None else estimates,
            setup,
        )


def make_case(
    trace: Trace, estimates: Mapping[str, Estimates], policies: Sequence[str] = (), **settings: Any
) -> Case:
    """A case on any trace; without estimates, the true lengths with log-normal noise stand in for a predictor.

    Raises:
        InputError: estimates that do not fit the trace, or a setting out of range.
    """
    if not len(trace):
        raise InputError("the trace has no requests")
    aligned = {name: one.take(one.align(trace)) for name, one in estimates.items()}
    if not aligned:
        factor = np.random.default_rng(0).lognormal(0, NOISE, len(trace))
        aligned = {NOISY: Estimates(NOISY, trace.request_id, trace.output_tokens * factor)}
    main = [name for name in MAIN_PREDICTORS if name in aligned] or list(aligned)[:2]
    case = Case(trace, trace, aligned, tuple(policies) or default_policies(main), **settings)
    if len(case.seeds) < 2:
        raise InputError("one replication tells nothing about noise; ask for 2 at least")
    for name, value in (
        ("--horizon-s", case.server.horizon_s),
        ("--max-concurrency", case.server.max_concurrency),
    ):
        if value is not None:
            raise InputError(
                f"{name} {value} cuts into the load that a stress question is about; leave it out"
            )
    for name, value in (("--load", case.load), ("--num-prompts", case.num_requests)):
        if not value > 0:
            raise InputError(f"{name} is {value}; it must be above 0")
    pool, many = repeat(trace, aligned, -(-POOL * case.num_requests // len(trace)))
    return dataclasses.replace(case, trace=pool, estimates=many)


def embedded() -> tuple[Trace, dict[str, Estimates]]:
    """The embedded LLM's answers to prompts that no embedded predictor was trained on, and what each says."""
    from predictor.embedded import ROLLOUT

    estimates = read_estimates(HELD_OUT)
    answers = read_trace(ROLLOUT)
    known = set(next(iter(estimates.values())).request_id.tolist())
    return answers.take([i for i, name in enumerate(answers.request_id.tolist()) if name in known]), estimates


def repeat(
    trace: Trace, estimates: Mapping[str, Estimates], times: int
) -> tuple[Trace, dict[str, Estimates]]:
    """Each request so many times, numbered anew, without texts or shared prefixes (copies would share all)."""
    rows = np.tile(np.arange(len(trace)), times)
    ids = np.arange(len(rows))
    kept: Any = {
        name: column[rows]
        for name in ("prompt_tokens", "output_tokens", "scenario", "priority")
        if (column := getattr(trace, name)) is not None
    }
    many = {
        name: dataclasses.replace(
            one,
            request_id=ids,
            mean=one.mean[rows],
            quantiles={level: values[rows] for level, values in one.quantiles.items()},
            probabilities=None if one.probabilities is None else one.probabilities[rows],
        )
        for name, one in estimates.items()
    }
    return Trace(ids, np.zeros(len(rows)), **kept), many


def run(case: Case, jobs: Sequence[Job]) -> list[Comparison]:
    """The comparisons, in order; where they are fewer than the processes, each is split by its seeds."""
    from joblib import Parallel, delayed
    from tqdm import tqdm

    pieces = -(-case.workers // len(jobs))
    split = [np.array_split(job.setup.seeds, min(pieces, len(job.setup.seeds))) for job in jobs]
    tasks = [
        delayed(compare)(
            job.trace, dataclasses.replace(job.setup, seeds=tuple(seeds.tolist())), job.estimates
        )
        for job, groups in zip(jobs, split, strict=True)
        for seeds in groups
    ]
    pool = Parallel(n_jobs=min(case.workers, len(tasks)), return_as="generator")
    bar = tqdm(pool(tasks), total=len(tasks), desc="simulating", leave=False, disable=not case.progress)
    found: Iterator[Comparison] = iter(bar)
    return [
        _joined(job.setup, [next(found) for _ in groups]) for job, groups in zip(jobs, split, strict=True)
    ]


def _joined(setup: Setup, parts: list[Comparison]) -> Comparison:
    """One comparison of those of its seeds."""
    results = {key: result for part in parts for key, result in part.results.items()}
    workloads = {seed: workload for part in parts for seed, workload in part.workloads.items()}
    return Comparison(setup, results, workloads)


def capacity(case: Case, trace: Trace | None = None) -> float:
    """Requests per second that FCFS serves of a queue that never empties: all come at once.

    Between the first quarter of the completions and the third, where neither the start nor the
    last stragglers count; over all replications.
    """
    (found,) = run(case, [case.job(("fcfs",), Arrivals("burst"), trace, {})])
    spans = []
    for result in found.of_policy("fcfs"):
        done = np.sort(result.records["completion_s"].drop_nans().to_numpy())
        first, last = len(done) // 4, 3 * len(done) // 4
        span = done[last - 1] - done[first - 1] if first else 0.0
        if not span > 0:
            raise InputError(
                f"{len(done)} requests end in so few batches that they do not tell what the server can do; "
                "raise --num-prompts"
            )
        spans.append(span / (last - first))
    return float(1 / np.mean(spans))


def samples(comparison: Comparison, policy: str, metric: str) -> Floats:
    """The metric of each replication, (seeds,)."""
    return np.array([float(result.metrics[metric]) for result in comparison.of_policy(policy)])
