"""Which waiting request goes first. One family of policies a file; all follow `Policy`."""

from __future__ import annotations

import math
import numbers
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.plugins import defined_at, raised_at
from sim.policies.arrival import FCFS, Random
from sim.policies.attained import LAS, MLFQ
from sim.policies.distribution import CVaR, Gittins
from sim.policies.remaining import SRPT
from sim.policies.shortest import Longest, Shortest, ShortestWork
from sim.policies.wrapped import Aging, StarvationCap
from sim.request import COME, ORACLE, Progress, Request, Requests, Some
from traces.errors import InputError

POLICIES: dict[str, type] = {
    "fcfs": FCFS,
    "random": Random,
    "shortest": Shortest,
    "longest": Longest,
    "shortest-work": ShortestWork,
    "srpt": SRPT,
    "las": LAS,
    "mlfq": MLFQ,
    "gittins": Gittins,
    "cvar": CVaR,
    "aging": Aging,
    "starvation-cap": StarvationCap,
}

ALIASES = {
    "sjf": "shortest,predictor=oracle",
    "ljf": "longest,predictor=oracle",
    "sjf-noise": "shortest,predictor=oracle,sigma=0.5",
    "egtp": "shortest,predictor=egtp",
    "estp": "shortest,predictor=estp",
    "ltr": "starvation-cap,inner=shortest+predictor=ltr",
    "sprpt": "srpt,predictor=estp",
    "trail": "srpt,predictor=trail,limit=0.8",
    "tie": "cvar",
    "fastserve": "starvation-cap,inner=mlfq,steps=1000,quantum=64",
}

REFRESHES = ("progress", "event", "step")


class Policy(Protocol):
    """Gives a request a number; the smallest is served first.

    Ties go to the earlier arrival, then to the smaller id. It is asked once, at arrival, and again
    after a preemption. These attributes are optional:

    * ``vectorised = True``: it only does arithmetic, so it may be called with many requests (and an
      array of times) at once, and returns an array.
    * ``stands = True``: its value never changes, so it is not asked again after a preemption.
    * ``refresh``: its value moves. ``"progress"``: with the tokens that a request has got, so it stands
      while a request waits; ``"event"``: it is asked when a request comes or goes; ``"step"``: before
      every step; a number: every so many seconds. Static batching asks such a policy whenever it
      forms a batch.
    * ``preemptive = True``: in continuous batching, a waiting request takes the place of a running one
      with a larger number (`sim.reranking`).
    * ``protects(request, now_s)``, ``displaces(request, now_s)``: whether a running request keeps its
      place whoever waits, and whether a waiting one may take a place; arrays if vectorised.
    """

    def __call__(self, request: Request, now_s: float) -> float: ...


class Order:
    """A policy at work in one run.

    Attributes:
        policy: the callable.
        name: how messages and results call it.
        keys: (n,) list; the value of each request at its arrival. The order of service is
            ``(keys[number], number)``.
        refresh, preemptive: see `Policy`; ``refresh`` is None if the values stand.
        vectorised: whether `ask_some` is one call. stands: see `Policy`.
    """

    def __init__(self, policy: Policy, name: str, requests: Requests) -> None:
        self.policy = policy
        self.name = name
        self.refresh: Any = getattr(policy, "refresh", None)
        self.preemptive = bool(getattr(policy, "preemptive", False))
        self.vectorised = bool(getattr(policy, "vectorised", False))
        self.stands = bool(getattr(policy, "stands", False))
        self._requests = requests
        if not (self.refresh is None or self.refresh in REFRESHES or _is_seconds(self.refresh)):
            raise InputError(
                f"policy {name}: refresh = {self.refresh!r} must be None, one of {', '.join(REFRESHES)}, or a "
                "number of seconds above 0"
            )
        if self.preemptive and self.refresh is None:
            raise InputError(f"policy {name} is preemptive, so it must say when its value moves (refresh)")
        arrival_s = requests.arrival_s
        if self.vectorised:
            everybody: Any = requests
            self.keys = self._numbers(self._call(policy, everybody, arrival_s), everybody).tolist()
        else:
            self.keys = [self.ask_now(i, now_s) for i, now_s in enumerate(arrival_s.tolist())]

    def ask(
        self, number: int, now_s: float, generated_tokens: int = 0, progress: Progress | None = None
    ) -> float:
        """The policy's value for one request now.

        Raises:
            InputError: the policy raised, or returned something other than a number.
        """
        request = Request(self._requests, number, generated_tokens, progress)
        value = self._call(self.policy, request, now_s)
        if not isinstance(value, numbers.Real) or math.isnan(value):
            raise InputError(
                f"policy {self.name} returned {value!r} for request {request.id!r}; it must return a number "
                f"({defined_at(self.policy)})"
            )
        return float(value)

    def ask_now(self, number: int, now_s: float) -> float:
        """The value of a request that has just come."""
        return self.ask(number, now_s, 0, COME)

    def ask_some(
        self, number: NDArray[np.int64], generated_tokens: Any, progress: Progress, now_s: Any
    ) -> NDArray[np.float64]:
        """The values (m,) of several requests, each at its own progress; the same one may be there often.

        Raises:
            InputError: as `ask`.
        """
        if self.vectorised:
            some = Some(self._requests, number, generated_tokens, progress)
            return self._numbers(self._call(self.policy, some, now_s), some)
        each = _one_by_one(number, generated_tokens, progress)
        return np.array([self.ask(one, now_s, generated, at) for one, generated, at in each])

    def allows(
        self,
        name: str,
        number: NDArray[np.int64],
        generated_tokens: Any,
        progress: Progress,
        now_s: Any,
        otherwise: bool,
    ) -> NDArray[np.bool_]:
        """What the policy's method ``name`` says of several requests (m,); ``otherwise`` if it has none."""
        method: Any = getattr(self.policy, name, None)
        if method is None:
            return np.full(len(number), otherwise)
        if self.vectorised:
            some = Some(self._requests, number, generated_tokens, progress)
            return np.broadcast_to(np.asarray(self._call(method, some, now_s), bool), len(number))
        each = _one_by_one(number, generated_tokens, progress)
        return np.array(
            [bool(self._call(method, Request(self._requests, *one), now_s)) for one in each], bool
        )

    def _call(self, function: Any, request: Any, now_s: Any) -> Any:
        try:
            return function(request, now_s)
        except InputError:
            raise
        except Exception as error:
            who = f"for request {request.id!r}" if isinstance(request, Request) else "for several requests"
            raise InputError(
                f"policy {self.name} raised {type(error).__name__} at {raised_at(error, self.policy)} "
                f"{who}: {error}"
            ) from error

    def _numbers(self, values: Any, requests: Any) -> NDArray[np.float64]:
        found = np.broadcast_to(np.asarray(values, np.float64), len(requests))
        if np.isnan(found).any():
            first = requests.id[int(np.argmax(np.isnan(found)))]
            raise InputError(
                f"policy {self.name} returned nan for request {first!r}; it must return a number"
            )
        return found


def _is_seconds(refresh: Any) -> bool:
    return isinstance(refresh, int | float) and math.isfinite(refresh) and refresh > 0


def _one_by_one(
    number: NDArray[np.int64], generated_tokens: Any, progress: Progress
) -> list[tuple[int, int, Progress]]:
    """The last three arguments of `Request` for each of several requests."""
    moving = (progress.running, progress.idle_steps, progress.waited_steps, progress.run_steps)
    columns = [np.broadcast_to(column, len(number)).tolist() for column in (generated_tokens, *moving)]

    def at(i: int) -> Progress:
        running, idle, waited, run = (column[i] for column in columns[1:])
        return Progress(running, idle, waited, run, lambda: int(progress.cached()[i]))

    return [(one, columns[0][i], at(i)) for i, one in enumerate(number.tolist())]


def reads_truth(policy: Any) -> bool:
    """Whether the policy is given the true lengths: it is one of ours and its predictor is the oracle."""
    ours = type(policy).__module__.partition(".")[0] == "sim"
    return ours and (
        getattr(policy, "predictor", None) == ORACLE or reads_truth(getattr(policy, "inner", None))
    )
