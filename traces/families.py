"""Families of distributions fitted by maximum likelihood, with 95% intervals.

Names and parameters are those of `traces.processes` and `traces.lengths`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.describe import tail_of
from traces.errors import InputError

Floats = NDArray[np.float64]
Cdf = Callable[[Floats], Floats]
Draw = Callable[[np.random.Generator, int], Floats]
NORMAL_95 = 1.959963984540054
TAIL_SHARE = 0.1
LEAST_VALUES = 20
LARGEST = 1e200
EULER = 0.5772156649015329


@dataclass(frozen=True)
class Parameter:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Fit:
    """One family fitted to one column.

    Attributes:
        family: its name in `traces.processes` or `traces.lengths`.
        parameters: by their names there.
        aic: Akaike's criterion, 2 parameters - 2 log likelihood: the smaller of two families is the better.
        distance: largest distance between the empirical and the fitted distribution.
        p_value: by parametric bootstrap; small: the family does not fit. None: not asked for.
        most: the longest that was seen, where what is drawn from the family might have no bounds.
    """

    family: str
    parameters: dict[str, Parameter]
    aic: float
    distance: float
    p_value: float | None = None
    most: float | None = None

    def spec(self) -> str:
        """The family as `traces.spec` reads it."""
        parts = [self.family, *(f"{k}={p.value:.6g}" for k, p in self.parameters.items())]
        return ",".join(parts if self.most is None else [*parts, f"most={self.most:.0f}"])


def fit_poisson(gaps: Floats) -> tuple[Fit, Draw]:
    """Exponential gaps. The interval is exact: 2 rate sum(gaps) is chi-squared with 2 n degrees."""
    chi2 = scipy_part("stats").chi2
    n, total = len(gaps), float(gaps.sum())
    rate = n / total
    low, high = (float(chi2.ppf(q, 2 * n)) / (2 * total) for q in (0.025, 0.975))
    aic = 2 * (1 + n - n * math.log(rate))
    parameters = {"rate": Parameter(rate, low, high)}

    def cdf(x: Floats) -> Floats:
        return -np.expm1(-rate * x)

    return (
        Fit("poisson", parameters, aic, distance(gaps, cdf)),
        lambda rng, m: rng.exponential(1 / rate, m),
    )


def fit_gamma(gaps: Floats) -> tuple[Fit, Draw]:
    """Gamma gaps. log(shape) - digamma(shape) = log(mean) - mean(log), solved by Newton's steps in log(shape).

    Variances: shape / (n (shape psi'(shape) - 1)), and mean^2 / (n shape) of the mean, independent of it.
    """
    special = scipy_part("special")
    n, mean = len(gaps), float(gaps.mean())
    s = math.log(mean) - float(np.log(gaps).mean())
    shape = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    for _ in range(50):
        off = math.log(shape) - float(special.digamma(shape)) - s
        slope = 1 - shape * float(special.polygamma(1, shape))
        shape *= math.exp(-off / slope)
    spread = math.sqrt(1 / (n * shape * (shape * float(special.polygamma(1, shape)) - 1)))
    parameters = {
        "rate": log_normal(1 / mean, math.sqrt(1 / (n * shape))),
        "shape": log_normal(shape, spread),
    }
    logs = (
        shape * math.log(shape / mean) - math.lgamma(shape) + (shape - 1) * float(np.log(gaps).mean()) - shape
    )

    def cdf(x: Floats) -> Floats:
        return np.asarray(special.gammainc(shape, x * shape / mean))

    return (
        Fit("gamma", parameters, 2 * (2 - n * logs), distance(gaps, cdf)),
        lambda rng, m: rng.gamma(shape, mean / shape, m),
    )


def fit_weibull(gaps: Floats) -> tuple[Fit, Draw]:
    """Weibull gaps, by bisection on the one root of the shape's score.

    The covariances of log(scale) and shape are those of the Gumbel distribution of log(gap): 1.1087 / (n
    shape^2), 0.6079 shape^2 / n and 0.2570 / n.
    """
    special = scipy_part("special")
    n, logs = len(gaps), np.log(gaps)
    mean_log, largest = float(logs.mean()), float(logs.max())

    def score(k: float) -> float:
        weights = np.exp(k * (logs - largest))
        return float((weights * logs).sum() / weights.sum()) - 1 / k - mean_log

    low, high = 1e-3, 1e3
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if score(middle) < 0 else (low, middle)
    k = math.sqrt(low * high)
    log_scale = largest + math.log(float(np.exp(k * (logs - largest)).mean())) / k
    mean = math.exp(log_scale + math.lgamma(1 + 1 / k))
    ratio = 6 / math.pi**2
    slope = -float(special.digamma(1 + 1 / k)) / k**2
    variance = (
        (1 + ratio * (1 - EULER) ** 2) / k**2 + ratio * k**2 * slope**2 + 2 * slope * ratio * (1 - EULER)
    )
    parameters = {
        "rate": log_normal(1 / mean, math.sqrt(variance / n)),
        "shape": log_normal(k, math.sqrt(ratio / n)),
    }
    scaled = logs - log_scale
    likelihood = n * (math.log(k) - log_scale) + float(((k - 1) * scaled - np.exp(k * scaled)).sum())
    scale = math.exp(log_scale)

    def cdf(x: Floats) -> Floats:
        return -np.expm1(-((x / scale) ** k))

    return (
        Fit("weibull", parameters, 2 * (2 - likelihood), distance(gaps, cdf)),
        lambda rng, m: scale * rng.weibull(k, m),
    )


def fit_lognormal(tokens: Floats) -> tuple[Fit, Draw]:
    """Lognormal lengths, rounded to whole tokens: the mean and the standard deviation of the logarithm.

    The median's interval is Student's, sigma's that of chi-squared with n - 1 degrees.
    """
    stats, special = scipy_part("stats"), scipy_part("special")
    logs = np.log(tokens)
    n, mu, sigma = len(logs), float(logs.mean()), float(logs.std(ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * sigma / math.sqrt(n)
    low, high = (sigma * math.sqrt((n - 1) / float(stats.chi2.ppf(q, n - 1))) for q in (0.975, 0.025))
    parameters = {
        "median": Parameter(math.exp(mu), math.exp(mu - half), math.exp(mu + half)),
        "sigma": Parameter(sigma, low, high),
    }
    likelihood = -float(logs.sum()) - n * (math.log(sigma * math.sqrt(2 * math.pi)) + 0.5)

    def cdf(x: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return np.asarray(special.ndtr((np.log(x) - mu) / sigma))

    def draw(rng: np.random.Generator, m: int) -> Floats:
        return np.maximum(np.rint(np.exp(mu + sigma * rng.standard_normal(m))), 1)

    return Fit("lognormal", parameters, 2 * (2 - likelihood), distance(tokens, cdf, 0.5)), draw


def fit_pareto(tokens: Floats) -> tuple[Fit, Draw]:
    """Pareto lengths, rounded to whole tokens: the least, and alpha by the likelihood of the rounded values.

    The least true value is within half a token of the least that is seen, or below it by what n draws leave.
    """
    optimize = scipy_part("optimize")
    n, least = len(tokens), float(tokens.min())
    found, counts = np.unique(tokens, return_counts=True)
    begins = np.where(found > least, found - 0.5, least)
    near, width = np.log(begins / least), np.log1p(np.where(found > least, 1.0, 0.5) / begins)

    def loss(alpha: float) -> float:
        # exp(-alpha near) - exp(-alpha (near + width)), as its logarithm.
        return float((counts * (alpha * near - np.log(-np.expm1(-alpha * width)))).sum())

    rough = n / float((counts * (near + width)).sum())
    alpha = float(optimize.minimize_scalar(loss, bounds=(rough / 5, rough * 5), method="bounded").x)
    step = alpha * 1e-3
    curvature = (loss(alpha + step) - 2 * loss(alpha) + loss(alpha - step)) / step**2
    parameters = {
        "least": Parameter(least, (least - 0.5) * 0.05 ** (1 / (n * alpha)), least + 0.5),
        "alpha": log_normal(alpha, 1 / (alpha * math.sqrt(curvature))),
    }

    def cdf(x: Floats) -> Floats:
        return np.asarray(1 - (least / np.maximum(x, least)) ** alpha)

    def draw(rng: np.random.Generator, m: int) -> Floats:
        with np.errstate(over="ignore"):
            return np.rint(least * np.minimum(rng.random(m) ** (-1 / alpha), LARGEST))

    aic, most = 2 * (2 + loss(alpha)), float(tokens.max())
    return Fit("pareto", parameters, aic, distance(tokens, cdf, 0.5), most=most), draw


def fit_tail(tokens: Floats, share: float = TAIL_SHARE) -> Parameter | None:
    """Pareto's alpha over the longest ``share``, as in `traces.describe.tail_index`; +- 1.96 alpha / sqrt(n)."""
    tail = tail_of(tokens, share)
    if len(tail) < LEAST_VALUES or tail.min() == tail.max():
        return None
    alpha = len(tail) / float(np.log(tail / (tail.min() - 0.5)).sum())
    half = NORMAL_95 * alpha / math.sqrt(len(tail))
    return Parameter(alpha, alpha - half, alpha + half)


def distance(values: Floats, cdf: Cdf, rounding: float = 0.0) -> float:
    """Kolmogorov and Smirnov's; values rounded to whole numbers stand for all within ``rounding`` of them."""
    found, counts = np.unique(values, return_counts=True)
    upto = np.cumsum(counts) / len(values)
    before = upto - counts / len(values)
    return float(
        max(
            np.abs(cdf(found + rounding) - upto).max(),
            np.abs(cdf(np.maximum(found - rounding, 0)) - before).max(),
        )
    )


def log_normal(value: float, spread: float) -> Parameter:
    """An interval that is symmetric in the logarithm, whose standard error is ``spread``."""
    half = NORMAL_95 * spread
    return Parameter(value, value * math.exp(-half), value * math.exp(half))


def scipy_part(part: str) -> Any:
    try:
        return __import__(f"scipy.{part}", fromlist=[part])
    except ImportError:
        raise InputError("a fit needs scipy: pip install scipy, or pip install 'estp[predictor]'") from None
