"""What every latency model answers: how long one step of a server takes, and how long many do."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Seconds = TypeVar("Seconds", float, NDArray[np.float64])


class Latency(Protocol):
    """A latency model: a frozen dataclass that prices steps.

    ``context_tokens`` is the number of tokens that the decoding requests attend to in the step,
    summed over them: a request's prompt plus all it has generated so far, the token that is fed in
    included. A request that has its first token (from prefill) and decodes for the first time
    therefore counts ``prompt + 1``.
    """

    def step_time(self, prefill_tokens: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of one step; numbers give a float, arrays broadcast to an array.

        ``prefill_tokens`` are the prompt tokens computed in the step, ``decode_requests`` the
        requests that get one token each.
        """
        ...

    def advance(self, k: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of ``k >= 0`` decode steps in a row, ``k`` a number or an array.

        The first step has ``context_tokens``; each later one has ``decode_requests`` more.
        """
        ...

    def steps_until(self, seconds: float, decode_requests: int, context_tokens: int) -> int:
        """The least ``k >= 1`` with ``advance(k, decode_requests, context_tokens) >= seconds``."""
        ...


def search_steps(latency: Latency, seconds: float, decode_requests: int, context_tokens: int) -> int:
    """`Latency.steps_until` for any model: doubles ``k``, then halves the bracket."""
    high = 1
    while latency.advance(high, decode_requests, context_tokens) < seconds:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if latency.advance(middle, decode_requests, context_tokens) < seconds:
            low = middle
        else:
            high = middle
    return high
