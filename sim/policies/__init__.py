"""Which waiting request goes first. One family of policies a file; all follow `Policy`."""

from __future__ import annotations

import math
import numbers
from typing import Any, Protocol

import numpy as np

from sim.plugins import defined_at, raised_at
from sim.policies.arrival import FCFS, Random
from sim.policies.shortest import Longest, Shortest
from sim.request import ORACLE, Request, Requests
from traces.errors import InputError

POLICIES: dict[str, type] = {"fcfs": FCFS, "random": Random, "shortest": Shortest, "longest": Longest}

ALIASES = {
    "sjf": "shortest,predictor=oracle",
    "ljf": "longest,predictor=oracle",
    "sjf-noise": "shortest,predictor=oracle,sigma=0.5",
    "egtp": "shortest,predictor=egtp",
    "estp": "shortest,predictor=estp",
}


class Policy(Protocol):
    """Gives a waiting request a number; the smallest is served first.

    Ties go to the earlier arrival, then to the smaller id. It is asked once, at arrival, and again
    after a preemption. Two attributes are optional:

    * ``vectorised = True``: it only does arithmetic, so it may be called with all `Requests` (and
      an array of times) at once, and returns an array.
    * ``refresh``: its value moves with time or progress: ``"step"`` (ask before every step),
      ``"event"`` (when a request comes or goes), or a number of seconds. Static batching asks such
      a policy whenever it forms a batch.
    """

    def __call__(self, request: Request, now_s: float) -> float: ...


class Order:
    """A policy at work in one run.

    Attributes:
        policy: the callable.
        name: how messages and results call it.
        keys: (n,) list; the value of each request at its arrival. The order of service is
            ``(keys[number], number)``.
        refresh: see `Policy`; None if the values stand.
    """

    def __init__(self, policy: Policy, name: str, requests: Requests) -> None:
        self.policy = policy
        self.name = name
        self.refresh: Any = getattr(policy, "refresh", None)
        self._requests = requests
        if getattr(policy, "vectorised", False):
            self.keys = self._ask_all()
        else:
            self.keys = [self.ask(i, now_s) for i, now_s in enumerate(requests.arrival_s.tolist())]

    def ask(self, number: int, now_s: float, generated_tokens: int = 0) -> float:
        """The policy's value for one request now.

        Raises:
            InputError: the policy raised, or returned something other than a number.
        """
        request = Request(self._requests, number, generated_tokens)
        try:
            value = self.policy(request, now_s)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"policy {self.name} raised {type(error).__name__} at {raised_at(error, self.policy)} "
                f"for request {request.id!r}: {error}"
            ) from error
        if not isinstance(value, numbers.Real) or math.isnan(value):
            raise InputError(
                f"policy {self.name} returned {value!r} for request {request.id!r}; it must return a number "
                f"({defined_at(self.policy)})"
            )
        return float(value)

    def _ask_all(self) -> list[float]:
        requests: Any = self._requests
        values = np.asarray(self.policy(requests, requests.arrival_s), np.float64)
        if np.isnan(values).any():
            first = requests.id[int(np.flatnonzero(np.isnan(np.broadcast_to(values, len(requests))))[0])]
            raise InputError(
                f"policy {self.name} returned nan for request {first!r}; it must return a number"
            )
        return np.broadcast_to(values, len(requests)).tolist()  # type: ignore[no-any-return]


def reads_truth(policy: Any) -> bool:
    """Whether the policy is given the true lengths: it is one of ours and its predictor is the oracle."""
    ours = type(policy).__module__.partition(".")[0] == "sim"
    return ours and (
        getattr(policy, "predictor", None) == ORACLE or reads_truth(getattr(policy, "inner", None))
    )
