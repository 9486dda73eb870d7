"""What every latency model answers: how long one step of a server takes, and how long many do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


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


class ChunkLatency(Latency, Protocol):
    """A model that prices each chunk of prefill by what lies before it; continuous batching asks it."""

    def chunk_time(
        self, chunks: Sequence[tuple[int, int]], decode_requests: int, context_tokens: int
    ) -> float:
        """Seconds of one step; ``chunks`` are (prefill tokens, tokens of the same request cached before them).

        The rest is as in `Latency.step_time`, whose ``prefill_tokens`` are the sum over the chunks.
        """
        ...


def search_steps(latency: Latency, seconds: float, decode_requests: int, context_tokens: int) -> int:
    """`Latency.steps_until` for any model whose steps do not get shorter as the context grows."""

    def reached(k: int) -> bool:
        return bool(latency.advance(k, decode_requests, context_tokens) >= seconds)

    guess = 1
    for _ in range(3):
        # If all steps lasted as long as their mean over the last guess, this would be the answer.
        mean_s = latency.advance(guess, decode_requests, context_tokens) / guess
        guess = max(1, round(seconds / mean_s))
    stride = 1
    if reached(guess):
        low, high = guess - stride, guess
        while low > 0 and reached(low):
            stride *= 2
            low, high = low - stride, low
        low = max(low, 0)
    else:
        low, high = guess, guess + stride
        while not reached(high):
            stride *= 2
            low, high = high, high + stride
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
