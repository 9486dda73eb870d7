"""A replica: what the process of one server is given, and where it writes what happened.

A request's life: row -> number (rank by arrival, id) -> ready (its estimate is there) -> router ->
replica (`take`) -> plan -> one event at the end of the step or leap (`clock.at`) -> records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from heapq import heappush
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import simpy
from numpy.typing import NDArray
from simpy.events import NORMAL, Event, EventPriority

from sim.request import Request, Requests

if TYPE_CHECKING:
    from sim.closed import ClosedLoop
    from sim.kv import Chain
    from sim.latency import Latency
    from sim.lockstep import Lockstep
    from sim.policies import Order
    from traces.schema import Trace

NAN = float("nan")
INFINITY = float("inf")


class Clock(simpy.Environment):
    """SimPy's environment with events at an absolute time: ``now + delay`` would lose the last bit of it."""

    def at(self, time_s: float, priority: EventPriority = NORMAL) -> Event:
        """The event that happens at ``time_s``."""
        event = Event(self)
        event._ok = True
        event._value = None
        heappush(self._queue, (time_s, priority, next(self._eid), event))
        return event


@dataclass(eq=False)
class Records:
    """What happened to each request; lists indexed by request number, nan or 0 until it happens.

    A process may stamp a time that lies ahead of the clock: what a horizon cuts off is removed at
    the end.

    Attributes:
        first_scheduled_s, first_token_s, completion_s: seconds.
        preemptions: how often it lost its place. recomputed_tokens: tokens computed again for that.
        prefix_hit_tokens: tokens found in the prefix cache when it was first admitted.
        rejected: numbers of the requests that could never be served.
        gaps: (seconds, count) of gaps between tokens, scalars or equal arrays; None: not asked for.
    """

    first_scheduled_s: list[float]
    first_token_s: list[float]
    completion_s: list[float]
    preemptions: list[int]
    recomputed_tokens: list[int]
    prefix_hit_tokens: list[int]
    rejected: list[int] = field(default_factory=list)
    gaps: list[tuple[Any, Any]] | None = None

    @classmethod
    def empty(cls, n: int, gaps: bool = False) -> Records:
        """Records of ``n`` requests to which nothing has happened."""
        return cls([NAN] * n, [NAN] * n, [NAN] * n, [0] * n, [0] * n, [0] * n, gaps=[] if gaps else None)


@dataclass(eq=False)
class Run:
    """What all replicas of a run share; lists are indexed by request number.

    Attributes:
        requests: what a scheduler may know (for policies, never the lengths).
        order: the policy's keys, and the way to ask it again.
        latency: how long a step takes.
        ready_s: when the request can be ranked: its arrival, plus what its estimate costs.
        prompt_tokens, output_tokens: tokens; the second is the truth, for the engine alone.
        horizon_s: the time at which the run stops; infinite if it runs to the end.
        record_steps: whether replicas keep a log of their steps in ``Replica.steps``.
        cache_is_read: a router looks into the prefix caches when a request arrives.
        closed: requests are sent as others leave (`sim.closed`), so their times are not known beforehand.
        next_dispatch_s: when the arrival process will next hand a request to some replica.
        estimate_s: what each request's estimate costs, where it is made after the prefill.
        trace, rows: the trace, and the row of each request number: for what only some batchings read.
        lockstep: what replicas that step together share (`sim.lockstep`).
        chains: from a row to the names of the blocks that the request may share (`sim.prefixes`).
    """

    requests: Requests
    order: Order
    latency: Latency
    ready_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    records: Records
    horizon_s: float = INFINITY
    estimate_available: str = "arrival"
    estimate_s: list[float] = field(default_factory=list)
    record_steps: bool = False
    cache_is_read: bool = False
    closed: ClosedLoop | None = None
    next_dispatch_s: float = INFINITY
    trace: Trace | None = None
    rows: Sequence[int] = ()
    chains: Callable[[int], Chain] | None = None
    lockstep: Lockstep | None = None


class Batching(Protocol):
    """How one replica forms its batches: a frozen dataclass of settings."""

    name: ClassVar[str]
    """The short name that settings carry."""

    @property
    def slots(self) -> int:
        """Most requests in a batch."""
        ...

    def check(self, run: Run) -> None:
        """Raise InputError for a run that this batching cannot do. Called before time starts."""
        ...

    def serve(self, replica: Replica, run: Run) -> Generator[Event, None, None]:
        """The SimPy process of one replica; it ends when it will get no more requests."""
        ...

    def alone_s(self, prompt_tokens: Any, output_tokens: Any, latency: Latency) -> NDArray[np.float64]:
        """JCT (n,) in seconds of each request alone on an idle server: the unit of slowdown."""
        ...


@dataclass(eq=False)
class Replica:
    """One server: the requests that it was given, and what it counts.

    The process calls `take` for newcomers, writes ``run.records``, adds to the counters, and appends
    each request that leaves (completed or rejected) to ``finished``, which is how routers see its load.

    Attributes:
        number: from 0.
        assigned: request numbers in the order of their ready times, past and (if ``planned``) future.
        planned: the router looks at no replica's state, so all of ``assigned`` is known beforehand.
        finished: request numbers in the order in which they left.
        busy_s: seconds in which steps ran.
        slot_s: seconds of slots held by requests in those steps (a batch of b for t seconds: b * t).
        padded_tokens, batched_tokens: tokens of padding, and tokens asked for, over all batches.
        peak_kv_blocks: most blocks in use at once; 0 where there are none.
        cached_tokens: from a request's number to how many of its prompt tokens are in the prefix cache
            now; None where there is no such cache.
        steps: the step log, if asked for; its entries are the batching's own.
    """

    number: int
    clock: Clock
    run: Run
    planned: bool
    assigned: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    busy_s: float = 0.0
    slot_s: float = 0.0
    padded_tokens: int = 0
    batched_tokens: int = 0
    peak_kv_blocks: int = 0
    cached_tokens: Callable[[int], int] | None = None
    steps: list[Any] = field(default_factory=list)
    _taken: int = 0
    _asleep: Event | None = None

    @property
    def next_arrival_s(self) -> float:
        """No request that is not yet taken will reach this replica before; inf if none will come.

        Exact if ``planned``; otherwise the next arrival anywhere.
        """
        if self._taken < len(self.assigned):
            return self.run.ready_s[self.assigned[self._taken]]
        return INFINITY if self.planned else self.run.next_dispatch_s

    def take(self) -> list[int]:
        """Numbers of the requests that have come since the last call, ready at or before now."""
        ready_s, assigned, now_s = self.run.ready_s, self.assigned, self.clock.now
        start = end = self._taken
        while end < len(assigned) and ready_s[assigned[end]] <= now_s:
            end += 1
        self._taken = end
        return assigned[start:end]

    def wait(self, until_s: float = INFINITY) -> Event | None:
        """The event at which a request comes or ``until_s`` is reached; None: neither ever will be."""
        next_s = self.next_arrival_s
        if self.planned or self._taken < len(self.assigned):
            next_s = min(next_s, until_s)
            return None if next_s == INFINITY else self.clock.at(next_s)
        if next_s == INFINITY == until_s and (self.run.closed is None or self.run.closed.over):
            return None
        self._asleep = self.clock.event()
        return self._asleep if until_s == INFINITY else self._asleep | self.clock.at(until_s)

    def let_go(self, requests: int) -> Event:
        """The event after which users whose requests have just left may have sent the next ones."""
        assert self.run.closed is not None
        self.run.closed.left(requests, self.clock.now)
        return self.clock.at(self.clock.now)

    def deliver(self, number: int) -> None:
        """Give it a request now, and wake it if it waits for one. For the arrival process alone."""
        self.assigned.append(number)
        if self._asleep is not None:
            if not self._asleep.triggered:
                self._asleep.succeed()
            self._asleep = None


class Load:
    """A replica as a router sees it.

    Attributes:
        number: from 0; ties between replicas go to the smaller.
    """

    def __init__(self, replica: Replica) -> None:
        self.number = replica.number
        self._replica = replica
        self._work: dict[str, list[float]] = {}

    @property
    def unfinished(self) -> int:
        """Requests sent to it that have not left: waiting and running."""
        return len(self._replica.assigned) - len(self._replica.finished)

    def cached_tokens(self, request: Request) -> int:
        """Prompt tokens of a request that this replica's prefix cache holds; 0 without such a cache.

        Only for a router that says ``reads_cache = True``.
        """
        assert self._replica.run.cache_is_read, "a router that reads the cache says so: reads_cache = True"
        cached = self._replica.cached_tokens
        return 0 if cached is None else cached(request.number)

    def predicted_tokens(self, predictor: str) -> float:
        """Output tokens that ``predictor`` expects of the unfinished requests, in total."""
        replica = self._replica
        mean = replica.run.requests.estimate(predictor).mean
        total, assigned, finished = self._work.get(predictor, [0.0, 0, 0])
        come, gone = replica.assigned[int(assigned) :], replica.finished[int(finished) :]
        total += float(mean[come].sum() - mean[gone].sum())
        self._work[predictor] = [total, len(replica.assigned), len(replica.finished)]
        return total


class Router(Protocol):
    """Chooses a replica for each request; a class of a person's own file needs only this."""

    def __call__(
        self, request: Request, loads: Sequence[Load], now_s: float, rng: np.random.Generator
    ) -> int:
        """The number of the replica that gets ``request``."""
        ...
