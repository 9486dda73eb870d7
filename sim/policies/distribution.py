"""Orders by the predicted distribution of the output length, given as probabilities of length bins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.request import Estimate
from traces.errors import InputError


@dataclass(frozen=True)
class Gittins:
    """The least Gittins rank first: the best expected tokens spent a completion.

    With X the output length and a the tokens that the request has got, the rank is
    ``inf_d E[min(X - a, d) | X > a] / P(X - a <= d | X > a)`` (Gittins 1989; SOAP, arXiv 1712.00790,
    section 2): optimal for the mean response time of one server where the lengths are unknown but
    their distribution is not. X takes the centres of the predictor's bins, so d need only be tried
    at these. Beyond the last centre it is taken to end at the next token.

    Attributes:
        predictor: whose probabilities.
        preempts: whether a waiting request may take a running one's place.
    """

    predictor: str = "estp"
    preempts: bool = True
    vectorised: ClassVar[bool] = True
    refresh: ClassVar[str] = "progress"

    @property
    def preemptive(self) -> bool:
        return self.preempts

    def __call__(self, request: Any, now_s: Any) -> Any:
        probabilities, centres = _bins(request.estimate(self.predictor))
        return gittins_rank(probabilities, centres, np.asarray(request.generated_tokens, np.float64))


def gittins_rank(
    probabilities: NDArray[np.float64], centres: NDArray[np.float64], generated: NDArray[np.float64]
) -> Any:
    """Ranks (...) in tokens, from probabilities (..., K) of the lengths ``centres`` (K,), after ``generated`` (...)."""
    left = centres - generated[..., None]
    ahead = left > 0
    mass = np.where(ahead, probabilities, 0.0)
    alive = mass.sum(-1, keepdims=True)
    done = mass.cumsum(-1)  # alive * P(X - a <= d), d = left
    spent = (mass * left).cumsum(-1) + left * (alive - done)
    with np.errstate(divide="ignore", invalid="ignore"):
        rank = np.where(ahead & (done > 0), spent / done, np.inf).min(-1)
    return np.where(np.isfinite(rank), rank, 1.0)


@dataclass(frozen=True)
class CVaR:
    """The smallest expected output plus ``beta`` times its conditional value at risk: TIE, arXiv 2604.00499.

    CVaR is the mean of the longest ``1 - level`` of the distribution: who may turn out long goes later.
    TIE fits a log-t distribution to each request; here it is the predictor's bins, each at its centre.

    Attributes:
        predictor: whose probabilities.
        beta: weight of the tail.
        level: where the tail begins.

    Raises:
        InputError: ``beta`` is negative, or ``level`` not in [0, 1).
    """

    predictor: str = "estp"
    beta: float = 1.0
    level: float = 0.9
    vectorised: ClassVar[bool] = True
    stands: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.beta) and self.beta >= 0 and 0 <= self.level < 1):
            raise InputError(
                f"policy cvar: beta = {self.beta} must be at least 0 and level = {self.level} in [0, 1)"
            )

    def __call__(self, request: Any, now_s: Any) -> Any:
        probabilities, centres = _bins(request.estimate(self.predictor))
        return probabilities @ centres + self.beta * cvar(probabilities, centres, self.level)


def cvar(probabilities: NDArray[np.float64], centres: NDArray[np.float64], level: float) -> Any:
    """Mean of the largest ``1 - level`` of lengths, (...), from probabilities (..., K) and centres (K,)."""
    tail = 1 - level
    # From the longest bin downwards, as much of each as still belongs to the tail.
    above = np.flip(np.flip(probabilities, -1).cumsum(-1), -1) - probabilities
    taken = np.clip(np.minimum(probabilities, tail - above), 0.0, None)
    return (taken @ centres) / taken.sum(-1)


def _bins(estimate: Estimate) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if estimate.probabilities is None or estimate.bin_edges is None:
        raise InputError(
            f"predictor {estimate.predictor!r} gives no probabilities of length bins, which this policy needs"
        )
    probabilities = np.asarray(estimate.probabilities, np.float64)
    edges = estimate.bin_edges
    return probabilities / probabilities.sum(-1, keepdims=True), (edges[:-1] + edges[1:]) / 2
