"""The one entry point: a trace, a policy, a batching and a latency model in; records and metrics out."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim import routers
from sim.closed import ClosedLoop
from sim.continuous import ContinuousBatching
from sim.forming import FORMS
from sim.latency import LATENCIES, Latency, load_latency
from sim.metrics import measure, parse_goodput, vllm_result
from sim.plugins import load, spec_of
from sim.policies import ALIASES, POLICIES, Order, Policy, reads_truth
from sim.records import table, total
from sim.replica import INFINITY, Batching, Clock, Records, Router, Run
from sim.request import ORACLE, Requests
from sim.static import StaticBatching
from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

BATCHINGS: dict[str, type[Any]] = {"static": StaticBatching, "continuous": ContinuousBatching}


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of a run.

    Attributes:
        records: one row a request, in the order of the trace: request_id, replica (null: routed
            nowhere yet), status (completed, rejected, unfinished), arrival_s, first_scheduled_s,
            first_token_s, completion_s (nan until it happens), prompt_tokens, output_tokens,
            preemptions, recomputed_tokens, prefix_hit_tokens, alone_s (JCT alone on an idle server).
        metrics: by the keys and formulas of `sim.metrics`.
        settings: JSON-able; `from_settings` turns them into arguments that run it again.
        gaps: (seconds, count) of gaps between tokens, if ``itl``.
        steps: the step log of each replica, if ``record_steps``.
    """

    records: pl.DataFrame
    metrics: dict[str, float | int]
    settings: dict[str, Any]
    gaps: list[tuple[Any, Any]] | None = None
    steps: list[list[Any]] | None = None

    def vllm(self, **facts: Any) -> dict[str, Any]:
        """The dict that ``vllm bench serve --save-result`` writes (`sim.metrics.vllm_result`)."""
        bounds = self.settings["goodput"]
        goodput = parse_goodput(bounds) if bounds else None
        return vllm_result(self.records, self.metrics, self.gaps, goodput=goodput, **facts)


def simulate(
    trace: Trace,
    policy: Policy | str = "fcfs",
    batching: Batching | None = None,
    latency: Latency | str | None = None,
    replicas: int = 1,
    *,
    estimates: Mapping[str, Estimates] | None = None,
    router: Router | routers.Plan | str = "round_robin",
    seed: int = 0,
    max_concurrency: int | None = None,
    think_s: float = 0.0,
    goodput: str | None = None,
    horizon_s: float | None = None,
    partial: bool = False,
    estimate_available: str = "arrival",
    estimate_cost_s: float = 0.0,
    estimate_cost_per_token_s: float = 0.0,
    starvation_s: float = 60.0,
    itl: bool = False,
    record_steps: bool = False,
) -> Result:
    """Serve a trace on simulated replicas.

    Args:
        trace: the requests.
        policy: "fcfs", "sjf", "egtp", "estp", ... (`sim.policies`), ``name,key=value``, a person's
            own ``file.py:Class,key=value``, or a callable.
        batching: how a replica forms batches; static batching of 8 if None.
        latency: how long a step takes; also as text, such as "roofline,model=llama-3.1-8b,device=h100".
        replicas: servers, each with its own queue.
        estimates: predicted output lengths by predictor name.
        router: which replica gets a request (`sim.routers`); named as a policy is.
        seed: of every draw: the random policy and router, noise on an oracle.
        max_concurrency: a closed loop (`sim.closed`): a request is sent at its arrival, or later, when fewer
            than so many are under way; its arrival in the records is when it was sent.
        think_s: seconds that a user of the closed loop waits between an answer and the next request.
        goodput: bounds such as "ttft:500 tpot:50" (milliseconds, vLLM's syntax).
        horizon_s: stop there; what happens at or after it has not happened.
        partial: give means even if the horizon left requests unfinished (they favour the short).
        estimate_available: "arrival", or "prefill" for a predictor that reads prefill activations
            (`sim.parking` says how that is modelled; continuous batching only).
        estimate_cost_s, estimate_cost_per_token_s: seconds (a request, and a prompt token) between a
            request's arrival and its estimate; until then it cannot be ranked or routed. After the
            prefill they lengthen the step that ends it. Paid in a run whose policy, router or batch
            form reads a predictor's estimates: FCFS needs none, and the oracle is a bound without a
            predictor.
        starvation_s: a request that waits longer counts as starved.
        itl: record the gaps between tokens, for the itl metrics.
        record_steps: keep each replica's step log (a batching may have none).

    Raises:
        InputError: something in the above is wrong; the message says what and what to do.
    """
    batching = StaticBatching() if batching is None else batching
    priced: Any = load_latency(latency) if isinstance(latency, str) else latency
    ranks, policy_spec = _resolve(policy, "policy", POLICIES, ALIASES)
    routes, router_spec = _resolve(router, "router", routers.ROUTERS)
    settings: dict[str, Any] = {
        "policy": policy_spec,
        "batching": _described(batching, BATCHINGS),
        "latency": _described(priced, LATENCIES),
        "replicas": replicas,
        "router": router_spec,
        "seed": seed,
        "max_concurrency": max_concurrency,
        "think_s": think_s,
        "goodput": goodput,
        "horizon_s": horizon_s,
        "partial": partial,
        "estimate_available": estimate_available,
        "estimate_cost_s": estimate_cost_s,
        "estimate_cost_per_token_s": estimate_cost_per_token_s,
        "starvation_s": starvation_s,
        "itl": itl,
        "record_steps": record_steps,
    }
    _check(trace, priced, settings)
    bounds = parse_goodput(goodput) if goodput else None
    number_to_row = _by_arrival_and_id(trace)
    run = _prepare(trace, number_to_row, ranks, routes, batching, priced, estimates, settings)
    clock, rng = Clock(), np.random.default_rng([seed, 3])
    servers = routers.start(clock, run, routes, router_spec, replicas, rng)
    for server in servers:
        clock.process(batching.serve(server, run))
    clock.run(until=horizon_s)
    left = len(trace) - sum(len(server.finished) for server in servers)
    assert horizon_s is not None or not left, f"{left} requests neither left nor can be waited for"

    records = table(trace, number_to_row, run, servers, batching)
    totals, gaps = total(servers, batching, run), run.records.gaps
    metrics = measure(records, totals, goodput=bounds, starvation_s=starvation_s, partial=partial, gaps=gaps)
    facts = {
        "predictors_read": sorted(run.requests.predictors_read),
        "trace": {"requests": len(trace), "sha256": _digest(trace)},
    }
    steps = [server.steps for server in servers] if record_steps else None
    return Result(records, metrics, settings | facts, gaps, steps)


def from_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments for `simulate` from the settings of a result, so that it can be run again.

    The trace and the estimates have to be given beside them.
    """
    arguments = {key: value for key, value in settings.items() if key not in ("predictors_read", "trace")}
    for key, classes in (("batching", BATCHINGS), ("latency", LATENCIES)):
        fields = dict(settings[key])
        name = fields.pop("name")
        if name not in classes:
            raise InputError(f"{key} {name!r} in the settings is not one of {', '.join(classes)}")
        arguments[key] = classes[name](**fields)
    return arguments


def _resolve(
    given: Any, kind: str, classes: Mapping[str, type], aliases: Mapping[str, str] | None = None
) -> tuple[Any, str]:
    """The object, and the text that names it."""
    if not isinstance(given, str):
        return given, spec_of(given, classes)
    return load(given, kind, classes, aliases), given


def _described(thing: Any, classes: Mapping[str, type]) -> dict[str, Any]:
    names = {cls: name for name, cls in classes.items()}
    described: dict[str, Any] = {"name": names.get(type(thing), type(thing).__name__)}
    for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        value = getattr(thing, field.name)
        described[field.name] = spec_of(value, FORMS) if field.name == "form" else _plain(value)
    return described


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _check(trace: Trace, latency: Any, settings: dict[str, Any]) -> None:
    if not len(trace):
        raise InputError("the trace has no requests")
    if latency is None:
        raise InputError(
            "no latency model is given: pass latency=Affine(a=..., b=..., c=..., d=...) in seconds, "
            "or latency=Roofline(model='llama-3.1-8b', device='h100')"
        )
    replicas, horizon_s, seed = settings["replicas"], settings["horizon_s"], settings["seed"]
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed = {seed!r} must be a whole number, at least 0")
    if not isinstance(replicas, int) or replicas < 1:
        raise InputError(f"replicas = {replicas!r} must be a whole number, at least 1")
    if horizon_s is not None and not (math.isfinite(horizon_s) and horizon_s > 0):
        raise InputError(f"horizon_s = {horizon_s} must be a number of seconds above 0")
    if settings["estimate_available"] not in ("arrival", "prefill"):
        raise InputError(
            f"estimate_available = {settings['estimate_available']!r} must be 'arrival' or 'prefill'"
        )
    users = settings["max_concurrency"]
    if users is not None and (isinstance(users, bool) or not isinstance(users, int) or users < 1):
        raise InputError(f"max_concurrency = {users!r} must be a whole number, at least 1")
    if users is None and settings["think_s"]:
        raise InputError("think_s is for a closed loop: give max_concurrency too")
    for name in ("estimate_cost_s", "estimate_cost_per_token_s", "starvation_s", "think_s"):
        if not (math.isfinite(settings[name]) and settings[name] >= 0):
            raise InputError(f"{name} = {settings[name]} must be a number of seconds, at least 0")


def _by_arrival_and_id(trace: Trace) -> NDArray[np.int64]:
    """Row of each request number: text ids compare as text, numbers as numbers."""
    if (np.diff(trace.arrival_s) > 0).all():
        return np.arange(len(trace))
    ids = trace.request_id
    return np.lexsort((ids if ids.dtype != object else ids.astype(str), trace.arrival_s))


def _prepare(
    trace: Trace,
    number_to_row: NDArray[np.int64],
    policy: Any,
    router: Any,
    batching: Batching,
    latency: Latency,
    estimates: Mapping[str, Estimates] | None,
    settings: dict[str, Any],
) -> Run:
    requests = Requests(trace, number_to_row, estimates, settings["seed"])
    if any(map(reads_truth, (policy, router, getattr(batching, "form", None)))):
        requests.reveal(trace.output_tokens[number_to_row])
    users = settings["max_concurrency"]
    closed = None if users is None else ClosedLoop(users, settings["think_s"], settings["replicas"])
    run = Run(
        requests=requests,
        order=Order(policy, settings["policy"], requests),
        latency=latency,
        ready_s=[],
        prompt_tokens=trace.prompt_tokens[number_to_row].tolist(),
        output_tokens=trace.output_tokens[number_to_row].tolist(),
        records=Records.empty(len(trace), gaps=settings["itl"]),
        horizon_s=INFINITY if settings["horizon_s"] is None else settings["horizon_s"],
        estimate_available=settings["estimate_available"],
        record_steps=settings["record_steps"],
        closed=closed,
        cache_is_read=bool(getattr(router, "reads_cache", False)),
        trace=trace,
        rows=number_to_row.tolist(),
    )
    if hasattr(router, "predictor"):
        requests.estimate(router.predictor)
        if run.estimate_available == "prefill" and router.predictor != ORACLE:
            raise InputError(
                f"router {settings['router']} chooses a replica before the prefill, so it cannot use estimates "
                "that exist only after it: set estimate_available to 'arrival', or take another router"
            )
    batching.check(run)
    ready_s = requests.arrival_s
    if requests.predictors_read:
        per_token_s = settings["estimate_cost_per_token_s"]
        cost_s = settings["estimate_cost_s"] + per_token_s * requests.prompt_tokens
        if run.closed is not None and run.estimate_available == "arrival" and cost_s.any():
            raise InputError(
                "in a closed loop the cost of an estimate at arrival is not modelled: leave out max_concurrency, or "
                "the cost, or set estimate_available to 'prefill'"
            )
        if run.estimate_available == "prefill":
            run.estimate_s = cost_s.tolist()
        else:
            ready_s = ready_s + cost_s
    run.ready_s = ready_s.tolist()
    return run


def _digest(trace: Trace) -> str:
    digest = hashlib.sha256()
    for column in (trace.arrival_s, trace.prompt_tokens, trace.output_tokens):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()
