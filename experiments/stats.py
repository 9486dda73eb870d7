"""Intervals for simulation results: from independent replications, or from batch means of one run.

Requests of one run are correlated through the queue, so they are never resampled one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Method = Literal["replications", "batch means", "none"]
CONFIDENCE = 0.95
# Few batches keep them long against the queue's memory, which is what their independence rests on.
BATCHES = 10
MIN_BATCH = 20
ROUNDING = 1e-12


@dataclass(frozen=True)
class Interval:
    """A value and the half width of its two-sided t interval.

    Attributes:
        mean: the value itself, in the metric's unit.
        half_width: nan where there is nothing to tell it from.
        method: where the interval comes from.
        samples: replications or batches.
    """

    mean: float
    half_width: float
    method: Method
    samples: int

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half_width

    @property
    def includes_zero(self) -> bool:
        """Whether 0 lies inside; true as well where the interval is unknown."""
        return not (self.low > 0 or self.high < 0)


def t_interval(
    values: ArrayLike, method: Method = "replications", confidence: float = CONFIDENCE
) -> Interval:
    """Mean +- t_{n-1} s / sqrt(n) of n independent values; nan values make the whole unknown."""
    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    if n == 0:
        return Interval(math.nan, math.nan, "none", 0)
    mean = float(np.mean(sample))
    if n < 2:
        return Interval(mean, math.nan, "none", n)
    spread = float(np.std(sample, ddof=1))
    # Equal values that were summed in another order differ in their last bits; that is no spread.
    if spread <= ROUNDING * float(np.max(np.abs(sample))):
        spread = 0.0
    half = t_quantile(0.5 + confidence / 2, n - 1) * spread / math.sqrt(n)
    return Interval(mean, half, method, n)


def paired_interval(values: ArrayLike, baseline: ArrayLike, method: Method = "replications") -> Interval:
    """The interval of the mean difference ``values - baseline``, pair by pair.

    With common random numbers the pairs share their arrivals and lengths, and most noise cancels.
    """
    first, second = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    gaps = first - second
    # As above, and a difference of rounding errors is none.
    gaps[np.abs(gaps) <= ROUNDING * np.abs(first)] = 0.0
    return t_interval(gaps, method)


def batch_values(
    values: ArrayLike, statistic: Callable[[NDArray[np.float64]], Any], batches: int = BATCHES
) -> NDArray[np.float64]:
    """The statistic of each of ``batches`` runs of consecutive values, (batches,).

    ``values`` are in order of arrival and all of them are used; the batches' sizes differ by one
    at most. Empty where a batch would have fewer than ``MIN_BATCH`` values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < batches * MIN_BATCH:
        return np.empty(0)
    return np.array([float(statistic(part)) for part in np.array_split(sample, batches)])


def batch_means_interval(overall: float, per_batch: ArrayLike) -> Interval:
    """The interval of one recorded run: its overall value, with the batches' t half width."""
    spread = t_interval(per_batch, "batch means")
    return Interval(
        overall, spread.half_width, spread.method if spread.samples > 1 else "none", spread.samples
    )


def t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution with a whole number of degrees of freedom.

    The distribution function is the finite sum of Abramowitz and Stegun, 26.7.3 and 26.7.4; it is
    inverted by bisection on the angle atan(t / sqrt(degrees)).
    """
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError(f"no t quantile for probability {probability} and {degrees} degrees of freedom")
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees)
    low, high = 0.0, math.pi / 2
    for _ in range(80):
        middle = (low + high) / 2
        if _two_sided_probability(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _two_sided_probability(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan(angle))."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2 == 1
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
