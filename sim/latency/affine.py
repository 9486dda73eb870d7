"""A step's time as a straight line: the model that can be fitted to a handful of timings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sim.latency.protocol import search_steps
from traces.errors import InputError


@dataclass(frozen=True)
class Affine:
    """``a + b * prefill_tokens + c * decode_requests + d * context_tokens`` seconds a step.

    Attributes:
        a: seconds of any step (launches, weights).
        b: seconds a prefill token.
        c: seconds a decoding request.
        d: seconds a context token of the decoding requests (see `Latency`).

    Raises:
        InputError: a coefficient is negative or not finite, or steps would take no time at all.
    """

    a: float
    b: float = 0.0
    c: float = 0.0
    d: float = 0.0

    def __post_init__(self) -> None:
        for name in ("a", "b", "c", "d"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(
                    f"affine latency: {name} = {value} must be a finite number of seconds, at least 0"
                )
        # A decode step of no duration would let a server do endless work at one instant.
        if self.a + self.c + self.d == 0:
            raise InputError(
                "affine latency: a, c and d are all 0, so a decode step would take no time; give one"
            )

    def step_time(self, prefill_tokens: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of one step (`Latency.step_time`)."""
        return self.a + self.b * prefill_tokens + self.c * decode_requests + self.d * context_tokens

    def advance(self, k: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of ``k`` decode steps (`Latency.advance`), by the sum of the arithmetic series."""
        first = self.a + self.c * decode_requests + self.d * context_tokens
        return k * (first + 0.5 * self.d * decode_requests * (k - 1))

    def steps_until(self, seconds: float, decode_requests: int, context_tokens: int) -> int:
        """The least number of decode steps that last ``seconds`` (`Latency.steps_until`)."""
        first = self.a + self.c * decode_requests + self.d * context_tokens
        growth = 0.5 * self.d * decode_requests
        if first <= 0:
            return search_steps(self, seconds, decode_requests, context_tokens)
        if growth == 0:
            k = math.ceil(seconds / first)
        else:
            # growth k^2 + (first - growth) k = seconds, in the form that loses no digits for small growth.
            half = 0.5 * (first - growth)
            k = math.ceil(seconds / (half + math.sqrt(half * half + growth * seconds)))
        k = max(k, 1)
        # The root is off by a rounding error at most, so it is right, one too few, or one too many;
        # which, `advance` would say (spelled out here: a simulator asks this once a request).
        if k * (first + growth * (k - 1)) < seconds:
            return k + 1
        if k > 1 and (k - 1) * (first + growth * (k - 2)) >= seconds:
            return k - 1
        return k
