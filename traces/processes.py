"""Arrival processes: each draws n arrival times in seconds, the first at 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from traces.errors import InputError
from traces.spec import positive

Floats = NDArray[np.float64]


class Process(Protocol):
    """What draws arrivals."""

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """(n,) seconds that never fall, the first 0."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Exponential gaps: ``rate`` requests per second."""

    rate: float

    def __post_init__(self) -> None:
        positive(self, "rate")

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """Arrivals of a Poisson process."""
        return _from_gaps(rng.exponential(1 / self.rate, n - 1))


@dataclass(frozen=True)
class Gamma:
    """Gamma gaps of mean 1 / ``rate``; their coefficient of variation is 1 / sqrt(``shape``)."""

    rate: float
    shape: float

    def __post_init__(self) -> None:
        positive(self, "rate", "shape")

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """Arrivals of a renewal process."""
        return _from_gaps(rng.gamma(self.shape, 1 / (self.rate * self.shape), n - 1))


@dataclass(frozen=True)
class Weibull:
    """Weibull gaps of mean 1 / ``rate``; a ``shape`` below 1 is burstier than Poisson."""

    rate: float
    shape: float

    def __post_init__(self) -> None:
        positive(self, "rate", "shape")
        if self.shape < 0.05:
            raise InputError(
                f"shape of weibull is {self.shape:g}; below 0.05 the mean gap cannot be computed"
            )

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """Arrivals of a renewal process."""
        scale = 1 / (self.rate * math.gamma(1 + 1 / self.shape))
        return _from_gaps(scale * rng.weibull(self.shape, n - 1))


@dataclass(frozen=True)
class Bursts:
    """A Markov-modulated Poisson process of two states.

    Calm times of mean ``calm_s`` seconds with ``rate`` requests per second and bursts of mean
    ``burst_s`` with ``burst_rate`` take turns; both last exponentially long.
    """

    rate: float
    burst_rate: float
    calm_s: float
    burst_s: float

    def __post_init__(self) -> None:
        positive(self, "burst_rate", "calm_s", "burst_s")
        if not 0 <= self.rate < math.inf:
            raise InputError(f"rate of bursts is {self.rate:g}; it must be at least 0 and finite")

    @property
    def mean_rate(self) -> float:
        """Requests per second in the long run."""
        cycle_s = self.calm_s + self.burst_s
        return (self.rate * self.calm_s + self.burst_rate * self.burst_s) / cycle_s

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """A Poisson process of rate 1, its clock running at the rate of the state."""
        busy = np.cumsum(rng.exponential(1, n))
        in_burst = rng.random() < self.burst_s / (self.calm_s + self.burst_s)
        means = np.array([self.burst_s, self.calm_s] if in_burst else [self.calm_s, self.burst_s])
        rates = np.array([self.burst_rate, self.rate] if in_burst else [self.rate, self.burst_rate])
        time_s, work = np.zeros(1), np.zeros(1)
        while work[-1] <= busy[-1]:
            stays = rng.exponential(np.tile(means, 512))
            time_s = np.append(time_s, time_s[-1] + np.cumsum(stays))
            work = np.append(work, work[-1] + np.cumsum(stays * np.tile(rates, 512)))
        arrivals = np.interp(busy, work, time_s)
        return np.asarray(arrivals - arrivals[0])


@dataclass(frozen=True)
class Diurnal:
    """A Poisson process whose rate is ``rate`` (1 - ``amplitude`` cos(2 pi t / ``period_s``)).

    It begins at its quietest; the mean is ``rate`` requests per second.
    """

    rate: float
    amplitude: float
    period_s: float = 86400.0

    def __post_init__(self) -> None:
        positive(self, "rate", "period_s")
        if not 0 <= self.amplitude <= 1:
            raise InputError(f"amplitude of diurnal is {self.amplitude:g}; it must be from 0 to 1")

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """A Poisson process of rate 1, its clock turned by the inverse of the expected count."""
        target = np.cumsum(rng.exponential(1, n)) / self.rate
        swing = self.amplitude * self.period_s / (2 * math.pi)
        low, high = target - swing, target + swing
        # The expected count rises everywhere, so halving the bracket ends at its one root, to the last bit.
        for _ in range(70):
            middle = (low + high) / 2
            below = middle - swing * np.sin(2 * math.pi * middle / self.period_s) < target
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.maximum.accumulate(high - high[0])


@dataclass(frozen=True)
class Burst:
    """All at once."""

    def draw(self, n: int, rng: np.random.Generator) -> Floats:
        """Zeros."""
        return np.zeros(n)


PROCESSES: dict[str, type[Process]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "weibull": Weibull,
    "bursts": Bursts,
    "diurnal": Diurnal,
    "burst": Burst,
}


def _from_gaps(gaps: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(gaps)])
