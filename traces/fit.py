"""Parameters of a trace: maximum likelihood, 95% intervals, and how well each family fits.

Gaps between arrivals: exponential (poisson), gamma, Weibull, and bursts of two rates where gaps depend on those
before them. Lengths: lognormal, Pareto, and a Pareto tail over the longest tenth. Prompt and output: the
correlation of a Gaussian copula. The names and parameters are those of `traces.synthetic`, so that what is fitted
can be drawn again.

Goodness of fit is the Kolmogorov-Smirnov distance and its p-value by parametric bootstrap: the share of
samples of the fitted family that, refitted, lie as far from their own fit (Clauset et al. 2009, section 4). A
test against the fitted parameters as if they had been known would pass nearly everything.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from traces.errors import InputError
from traces.families import (
    LEAST_VALUES,
    NORMAL_95,
    Draw,
    Fit,
    Floats,
    Parameter,
    fit_gamma,
    fit_lognormal,
    fit_pareto,
    fit_poisson,
    fit_tail,
    fit_weibull,
    scipy_part,
)
from traces.modulated import fit_bursts
from traces.schema import Trace

# Goodness of fit looks at no more values than this: with more, every real trace fails every family.
JUDGED = 1000
REFITS = 99
# With more simultaneous arrivals than this the clock is too coarse for a distribution of gaps.
MOST_TIED = 0.01
# What a specification without arrivals draws.
UNFITTED = ", so the specification has no arrivals: all requests at once"


@dataclass(frozen=True)
class Fits:
    """What was fitted to a trace.

    Attributes:
        arrivals: families of gaps, the best first; empty where there are no arrivals to fit.
        prompt, output: families of lengths, the best first; ``tail`` fits of each follow.
        correlation: of the normal scores of prompt and output; None where one is constant.
        notes: what could not be fitted, and why.
        requests: how many there are.
    """

    requests: int
    arrivals: list[Fit] = field(default_factory=list)
    prompt: list[Fit] = field(default_factory=list)
    output: list[Fit] = field(default_factory=list)
    tails: dict[str, Parameter] = field(default_factory=dict)
    correlation: Parameter | None = None
    notes: list[str] = field(default_factory=list)

    def spec(self, seed: int = 0) -> str:
        """A one-line specification of a synthetic trace like this one, of the best family of each."""
        words = []
        for name, fits in (("arrivals", self.arrivals), ("prompt", self.prompt), ("output", self.output)):
            if fits:
                words.append(f"{name}={fits[0].spec()}")
        if self.correlation is not None:
            words.append(f"correlation={self.correlation.value:.4g}")
        return " ".join([*words, f"requests={self.requests}", f"seed={seed}"])


def fit(trace: Trace, goodness: bool = True, seed: int = 0) -> Fits:
    """Fit arrivals, lengths and their correlation.

    Args:
        trace: at least ``LEAST_VALUES`` requests.
        goodness: whether to bootstrap p-values.
        seed: of that bootstrap.

    Raises:
        InputError: the trace is too short, or scipy is not installed.
    """
    if len(trace) < LEAST_VALUES + 1:
        raise InputError(f"a fit needs more than {LEAST_VALUES} requests; the trace has {len(trace)}")
    rng = np.random.default_rng(seed) if goodness else None
    notes: list[str] = []
    arrivals = _arrivals(trace, rng, notes)
    lengths: dict[str, list[Fit]] = {}
    tails: dict[str, Parameter] = {}
    for name in ("prompt", "output"):
        tokens = getattr(trace, f"{name}_tokens").astype(np.float64)
        if tokens.min() == tokens.max():
            notes.append(f"{name} lengths are all {int(tokens[0])} tokens")
            lengths[name] = []
            continue
        families = [judged(family, tokens, rng) for family in (fit_lognormal, fit_pareto)]
        lengths[name] = sorted(families, key=lambda fit: fit.aic)
        tail = fit_tail(tokens)
        if tail is None:
            notes.append(f"{name} lengths have too few different values in their longest tenth for a tail")
        else:
            tails[name] = tail
    return Fits(len(trace), arrivals, lengths["prompt"], lengths["output"], tails, _correlation(trace), notes)


def judged(
    family: Callable[[Floats], tuple[Fit, Draw]], values: Floats, rng: np.random.Generator | None
) -> Fit:
    """The fit with its p-value, from at most ``JUDGED`` of the values and ``REFITS`` drawn samples."""
    fitted, _ = family(values)
    if rng is None:
        return fitted
    part = values if len(values) <= JUDGED else values[rng.choice(len(values), JUDGED, replace=False)]
    own, draw = family(part)
    farther = sum(family(_positive(draw(rng, len(part))))[0].distance >= own.distance for _ in range(REFITS))
    p_value = (farther + 1) / (REFITS + 1)
    return dataclasses.replace(fitted, p_value=p_value)


def _arrivals(trace: Trace, rng: np.random.Generator | None, notes: list[str]) -> list[Fit]:
    gaps = np.diff(trace.arrival_s)
    if "arrivals" in trace.metadata or not gaps.any():
        notes.append("there are no arrival times to fit")
        return []
    tied = float((gaps == 0).mean())
    if tied > MOST_TIED:
        notes.append(
            f"{tied:.0%} of the gaps between arrivals are 0: their clock is too coarse for a fit{UNFITTED}"
        )
        return []
    positive = gaps[gaps > 0]
    if positive.min() == positive.max():
        notes.append(f"the gaps between arrivals are all {positive[0]:g} s{UNFITTED}")
        return []
    lag = float(np.corrcoef(np.log(positive[:-1]), np.log(positive[1:]))[0, 1])
    fits = [judged(family, positive, rng) for family in (fit_poisson, fit_gamma, fit_weibull)]
    if abs(lag) > 3 / math.sqrt(len(positive)):
        notes.append(
            f"gaps hang together with the ones before (correlation {lag:.2f} of their logarithms): of these families "
            "bursts alone do, and days (diurnal) are not fitted"
        )
        bursts = fit_bursts(positive)
        fits += [] if bursts is None else [bursts]
    return sorted(fits, key=lambda fit: fit.aic)


def _correlation(trace: Trace) -> Parameter | None:
    """Correlation of the normal scores of the ranks; Fisher's interval."""
    import polars as pl

    special = scipy_part("special")
    scores = []
    for tokens in (trace.prompt_tokens, trace.output_tokens):
        if tokens.min() == tokens.max():
            return None
        ranks = pl.Series(tokens).rank("average").to_numpy()
        scores.append(special.ndtri((ranks - 0.5) / len(tokens)))
    found = float(np.corrcoef(scores)[0, 1])
    inside = min(max(found, -1 + 1e-12), 1 - 1e-12)
    half = NORMAL_95 / math.sqrt(len(trace) - 3)
    low, high = (math.tanh(math.atanh(inside) + sign * half) for sign in (-1, 1))
    return Parameter(inside, low, high)


def _positive(values: Floats) -> Floats:
    # Gaps of a very small shape underflow to 0, which has no logarithm.
    return np.maximum(values, np.finfo(np.float64).tiny)
