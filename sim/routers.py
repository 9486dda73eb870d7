"""Which replica gets a request.

A router that looks at no replica's state says so by `Plan`: the whole assignment is then known before
time starts, and no arrival needs an event. All others are asked at each arrival (`sim.replica.Router`).
Requests that arrive at the instant at which others complete are routed first.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from simpy.events import URGENT, Event

from sim.closed import ClosedLoop
from sim.plugins import raised_at
from sim.replica import INFINITY, Clock, Load, Replica, Router, Run
from sim.request import Request, Requests
from traces.errors import InputError


@runtime_checkable
class Plan(Protocol):
    """A router that needs no replica's state."""

    def plan(
        self, requests: Requests, order: NDArray[np.int64], replicas: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """The replica (n,) of each request; ``order`` (n,) are the request numbers by ready time."""
        ...


@dataclass(frozen=True)
class RoundRobin:
    """Each replica in turn."""

    def plan(
        self, requests: Requests, order: NDArray[np.int64], replicas: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        chosen = np.empty(len(order), np.int64)
        chosen[order] = np.arange(len(order)) % replicas
        return chosen


@dataclass(frozen=True)
class RandomReplica:
    """A replica at random."""

    def plan(
        self, requests: Requests, order: NDArray[np.int64], replicas: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        return rng.integers(replicas, size=len(order))


@dataclass(frozen=True)
class SessionAffinity:
    """All requests of a session to one replica, chosen by a hash of the session; the others in turn.

    Raises:
        InputError: the trace has no sessions.
    """

    def plan(
        self, requests: Requests, order: NDArray[np.int64], replicas: int, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        session = np.asarray(requests.session_id, np.int64)
        hashed = np.array([zlib.crc32(value.tobytes()) for value in np.unique(session)], np.int64)
        chosen = hashed[np.unique(session, return_inverse=True)[1]] % replicas
        alone = order[session[order] < 0]
        chosen[alone] = np.arange(len(alone)) % replicas
        return chosen


@dataclass(frozen=True)
class JoinShortestQueue:
    """The replica with the fewest requests, waiting and running."""

    def __call__(
        self, request: Request, loads: Sequence[Load], now_s: float, rng: np.random.Generator
    ) -> int:
        return min(loads, key=lambda load: (load.unfinished, load.number)).number


@dataclass(frozen=True)
class LeastPredictedWork:
    """The replica whose unfinished requests are expected to write the fewest tokens in all.

    Attributes:
        predictor: whose estimates are summed.
    """

    predictor: str

    def __call__(
        self, request: Request, loads: Sequence[Load], now_s: float, rng: np.random.Generator
    ) -> int:
        return min(loads, key=lambda load: (load.predicted_tokens(self.predictor), load.number)).number


@dataclass(frozen=True)
class PowerOfTwo:
    """Of two replicas drawn at random, the one with fewer requests (Mitzenmacher, TPDS 2001)."""

    def __call__(
        self, request: Request, loads: Sequence[Load], now_s: float, rng: np.random.Generator
    ) -> int:
        first = int(rng.integers(len(loads)))
        second = (first + 1 + int(rng.integers(len(loads) - 1))) % len(loads)
        return min((loads[first], loads[second]), key=lambda load: (load.unfinished, load.number)).number


@dataclass(frozen=True)
class PrefixAffinity:
    """The replica whose prefix cache holds most of the prompt, among those that are not much busier.

    Cache-aware routing as SGLang's router does it in principle: affinity while the load is balanced.
    Ties go to the replica with fewer requests.

    Attributes:
        slack: a replica may have so many requests more than the one with the fewest.

    Raises:
        InputError: ``slack`` is negative.
    """

    slack: int = 8
    reads_cache: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.slack < 0:
            raise InputError(f"router prefix_affinity: slack = {self.slack} must be at least 0 requests")

    def __call__(
        self, request: Request, loads: Sequence[Load], now_s: float, rng: np.random.Generator
    ) -> int:
        most = min(load.unfinished for load in loads) + self.slack
        open_to_it = [load for load in loads if load.unfinished <= most]
        return min(
            open_to_it, key=lambda load: (-load.cached_tokens(request), load.unfinished, load.number)
        ).number


ROUTERS: dict[str, type] = {
    "round_robin": RoundRobin,
    "random": RandomReplica,
    "session_affinity": SessionAffinity,
    "join_shortest_queue": JoinShortestQueue,
    "least_predicted_work": LeastPredictedWork,
    "power_of_two": PowerOfTwo,
    "prefix_affinity": PrefixAffinity,
}


def start(
    clock: Clock, run: Run, router: Plan | Router, name: str, replicas: int, rng: np.random.Generator
) -> list[Replica]:
    """Replicas with their requests: assigned already if the router plans, else by an arrival process."""
    order = np.argsort(run.ready_s, kind="stable")
    if run.closed is not None:
        return _start_closed(clock, run, run.closed, order, router, name, replicas, rng)
    planned = replicas == 1 or isinstance(router, Plan)
    servers = [Replica(number, clock, run, planned) for number in range(replicas)]
    if replicas == 1:
        servers[0].assigned = order.tolist()
    elif isinstance(router, Plan):
        chosen = router.plan(run.requests, order, replicas, rng)[order]
        for server in servers:
            server.assigned = order[chosen == server.number].tolist()
    else:
        run.next_dispatch_s = run.ready_s[order[0]]
        clock.process(_arrivals(clock, run, order.tolist(), servers, router, name, rng))
    return servers


def _start_closed(
    clock: Clock,
    run: Run,
    loop: ClosedLoop,
    order: NDArray[np.int64],
    router: Plan | Router,
    name: str,
    replicas: int,
    rng: np.random.Generator,
) -> list[Replica]:
    """Replicas whose requests are sent as others leave."""
    servers = [Replica(number, clock, run, planned=False) for number in range(replicas)]
    loads = [Load(server) for server in servers]
    planned = router.plan(run.requests, order, replicas, rng) if isinstance(router, Plan) else None

    def send(number: int) -> None:
        if isinstance(router, Plan):
            assert planned is not None
            chosen = int(planned[number])
        else:
            chosen = _choose(router, name, run.requests[number], loads, clock.now, rng)
        servers[chosen].deliver(number)

    clock.process(loop.process(clock, run, order.tolist(), send))
    return servers


def _arrivals(
    clock: Clock,
    run: Run,
    order: list[int],
    servers: list[Replica],
    router: Router,
    name: str,
    rng: np.random.Generator,
) -> Generator[Event, None, None]:
    loads = [Load(server) for server in servers]
    upcoming = [run.ready_s[number] for number in order[1:]] + [INFINITY]
    for number, next_s in zip(order, upcoming, strict=True):
        if run.ready_s[number] > clock.now:
            # Before any step that starts or ends at this instant.
            yield clock.at(run.ready_s[number], URGENT)
        run.next_dispatch_s = next_s
        request = run.requests[number]
        chosen = _choose(router, name, request, loads, clock.now, rng)
        servers[chosen].deliver(number)


def _choose(
    router: Router, name: str, request: Request, loads: list[Load], now_s: float, rng: np.random.Generator
) -> int:
    try:
        chosen: Any = router(request, loads, now_s, rng)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"router {name} raised {type(error).__name__} at {raised_at(error, router)} "
            f"for request {request.id!r}: {error}"
        ) from error
    if not isinstance(chosen, int | np.integer) or not 0 <= chosen < len(loads):
        raise InputError(
            f"router {name} returned {chosen!r} for request {request.id!r}; "
            f"it must return a replica's number, 0 to {len(loads) - 1}"
        )
    return int(chosen)
