"""When requests arrive: as recorded, faster or slower, drawn at a rate, or all at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from traces.errors import InputError
from traces.schema import Trace

Kind = Literal["recorded", "poisson", "gamma", "burst"]


@dataclass(frozen=True)
class Arrivals:
    """An arrival process that a trace's requests are put on.

    ``recorded`` keeps the trace's arrivals and order. The others draw from a generator: the order
    of the requests is shuffled first (a file is often grouped by kind of prompt, which no stream
    of users is), and sessions or shared prefixes then no longer come in their recorded order.

    Attributes:
        kind: ``recorded``; ``poisson``: exponential gaps of mean 1 / rate; ``gamma``: gamma gaps of
            the same mean and of shape ``burstiness``; ``burst``: all at time 0.
        rate: requests per second, for poisson and gamma.
        burstiness: shape of the gamma gaps, as vLLM's ``--burstiness``: 1 is Poisson, less is
            burstier; the gaps' coefficient of variation is 1 / sqrt(burstiness).
        time_scale: recorded arrivals are multiplied by it: 0.5 is twice the load.

    Raises:
        InputError: a value that the kind needs is missing, out of range, or of no effect.
    """

    kind: Kind = "recorded"
    rate: float | None = None
    burstiness: float = 1.0
    time_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"arrivals are {', '.join(get_args(Kind))}, not {self.kind!r}")
        for name in ("rate", "burstiness", "time_scale"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} of arrivals is {value}; it must be above 0 and finite")
        drawn = self.kind in ("poisson", "gamma")
        if drawn and self.rate is None:
            raise InputError(f"{self.kind} arrivals need a request rate")
        if not drawn and self.rate is not None:
            raise InputError(f"a request rate is for poisson and gamma arrivals, not for {self.kind} ones")
        if self.kind != "gamma" and self.burstiness != 1.0:
            raise InputError(f"burstiness is for gamma arrivals, not for {self.kind} ones")
        if self.kind != "recorded" and self.time_scale != 1.0:
            raise InputError(f"a time scale is for recorded arrivals, not for {self.kind} ones")

    @property
    def repeats_itself(self) -> bool:
        """Whether every draw gives the same stream."""
        return self.kind == "recorded"

    def apply(self, trace: Trace, rng: np.random.Generator, num_requests: int | None = None) -> Trace:
        """The trace's requests on these arrivals, the first at 0.

        ``num_requests`` keeps only that many: the first of recorded arrivals, otherwise a random
        choice without replacement.

        Raises:
            InputError: more requests than the trace has, or recorded arrivals that are not there.
        """
        n = len(trace) if num_requests is None else num_requests
        if not 1 <= n <= len(trace):
            raise InputError(f"{n} requests were asked for; the trace has {len(trace)}")
        if self.kind == "recorded":
            if trace.metadata.get("arrivals") == "absent" and len(trace) > 1:
                raise InputError(
                    "the trace has no arrival times; name their column, or draw them with poisson, "
                    "gamma or burst arrivals"
                )
            if trace.metadata.get("arrivals") == "closed loop":
                raise InputError(
                    "the trace is a closed loop, whose arrivals follow from the answers: find them with "
                    "traces.closed_loop.close, or draw others"
                )
            kept = trace if n == len(trace) else trace.take(np.arange(n))
            # Only a real change is computed, so that recorded times stay as they are to the last bit.
            return (
                kept if self.time_scale == 1.0 else kept.replace(arrival_s=kept.arrival_s * self.time_scale)
            )
        rows = rng.permutation(len(trace))[:n]
        shuffled = trace.replace(arrival_s=np.zeros(len(trace))).take(rows)
        return shuffled.replace(arrival_s=self._draw(n, rng))

    def _draw(self, n: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        if self.rate is None:
            return np.zeros(n)
        if self.kind == "poisson":
            gaps = rng.exponential(1 / self.rate, n - 1)
        else:
            gaps = rng.gamma(self.burstiness, 1 / (self.rate * self.burstiness), n - 1)
        return np.concatenate([[0.0], np.cumsum(gaps)])


def burstiness_of(cv: float) -> float:
    """The gamma shape whose gaps have this coefficient of variation: 1 / cv^2.

    Raises:
        InputError: the coefficient is not above 0 and finite.
    """
    if not (math.isfinite(cv) and cv > 0):
        raise InputError(f"the coefficient of variation is {cv}; it must be above 0 and finite")
    return 1 / cv**2
