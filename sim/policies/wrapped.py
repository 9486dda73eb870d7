"""Guards around any order: nobody waits for ever."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from traces.errors import InputError

PROMOTED = -1e300
"""Smaller than any value that an order gives."""


@dataclass(frozen=True)
class Aging:
    """Any order, less ``rate`` times the seconds since arrival (linear aging: Kleinrock, "A delay
    dependent queue discipline", 1964).

    What all requests have in common does not change their order, so the value is
    ``inner + rate * arrival``, and stands where the inner value stands.

    Attributes:
        inner: the order, by name; its settings are joined by plus signs: ``shortest+predictor=egtp``.
        rate: units of the inner value (tokens, mostly) that a second of waiting is worth.

    Raises:
        InputError: ``rate`` is negative, or there is no such order.
    """

    inner: Any = "sjf"
    rate: float = 10.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise InputError(f"policy aging: rate = {self.rate} must be a number, at least 0")
        _load_inner(self)

    vectorised = property(lambda self: getattr(self.inner, "vectorised", False))
    refresh = property(lambda self: getattr(self.inner, "refresh", None))
    preemptive = property(lambda self: getattr(self.inner, "preemptive", False))

    def __call__(self, request: Any, now_s: Any) -> Any:
        return self.inner(request, now_s) + self.rate * request.arrival_s

    def protects(self, request: Any, now_s: Any) -> Any:
        """Who the inner order protects."""
        return _asked(self.inner, "protects", request, now_s, False)

    def displaces(self, request: Any, now_s: Any) -> Any:
        """Who may take a place in the inner order."""
        return _asked(self.inner, "displaces", request, now_s, True)


@dataclass(frozen=True)
class StarvationCap:
    """Any order, but who has not run for ``steps`` steps goes first, for ``quantum`` steps.

    LTR's starvation prevention (arXiv 2408.15792, algorithm 1): a request that was left out of so many
    steps on end is promoted above all others, and keeps that until it has run for its quantum. Among
    the promoted, the earlier arrival goes first. As there, a promoted request takes a running one's place.

    Attributes:
        inner: the order, as in `Aging`.
        steps: steps of the server without the request, after which it is promoted.
        quantum: steps for which it stays promoted once it runs. Let it cover a prefill that a displaced request
            computes anew: with less, requests may displace each other for ever.

    Raises:
        InputError: ``steps`` or ``quantum`` is less than 1, or there is no such order.
    """

    inner: Any = "sjf"
    steps: int = 1000
    quantum: int = 100
    refresh: ClassVar[str] = "step"
    preemptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.quantum < 1:
            raise InputError(
                f"policy starvation-cap: steps = {self.steps} and quantum = {self.quantum} must be at least 1"
            )
        _load_inner(self)

    vectorised = property(lambda self: getattr(self.inner, "vectorised", False))

    def __call__(self, request: Any, now_s: Any) -> Any:
        value = np.where(self.promoted(request), PROMOTED, self.inner(request, now_s))
        return value if value.ndim else float(value)

    def promoted(self, request: Any) -> Any:
        """Whether a request goes before all who are not."""
        starved = np.asarray(request.idle_steps) >= self.steps
        served = (np.asarray(request.waited_steps) >= self.steps) & (request.run_steps < self.quantum)
        return starved | (np.asarray(request.running) & served)

    def protects(self, request: Any, now_s: Any) -> Any:
        """Who is promoted, or protected by the inner order."""
        return self.promoted(request) | _asked(self.inner, "protects", request, now_s, False)

    def displaces(self, request: Any, now_s: Any) -> Any:
        """Who is promoted, or may take a place in the inner order; if that never preempts, nobody else."""
        if getattr(self.inner, "preemptive", False):
            return self.promoted(request) | _asked(self.inner, "displaces", request, now_s, True)
        return self.promoted(request)


def _asked(inner: Any, name: str, request: Any, now_s: Any, otherwise: bool) -> Any:
    method = getattr(inner, name, None)
    return np.asarray(method(request, now_s)) if method is not None else np.bool_(otherwise)


def _load_inner(policy: Any) -> None:
    from sim.plugins import load
    from sim.policies import ALIASES, POLICIES

    if isinstance(policy.inner, str):
        inner = load(policy.inner.replace("+", ","), "policy", POLICIES, ALIASES)
        object.__setattr__(policy, "inner", inner)
