"""Length distributions, as functions of a standard normal score: so two of them can be correlated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from traces.errors import InputError
from traces.spec import positive

Floats = NDArray[np.float64]
MAX_TOKENS = 2**31 - 1


class Lengths(Protocol):
    """What turns scores into lengths."""

    def at(self, score: Floats) -> Floats:
        """The lengths, not yet rounded, whose quantiles are those of the standard normal scores."""
        ...


@dataclass(frozen=True)
class Lognormal:
    """Normal logarithms: ``median`` tokens, ``sigma`` of the natural logarithm; longer ones are ``most``."""

    median: float
    sigma: float
    most: float = MAX_TOKENS

    def __post_init__(self) -> None:
        positive(self, "median", "sigma", "most")

    def at(self, score: Floats) -> Floats:
        """median exp(sigma score)"""
        with np.errstate(over="ignore"):
            return np.minimum(self.median * np.exp(self.sigma * score), self.most)


@dataclass(frozen=True)
class Pareto:
    """P(X > x) = (``least`` / x)^``alpha``; longer ones than ``most`` are ``most``."""

    least: float
    alpha: float
    most: float = MAX_TOKENS

    def __post_init__(self) -> None:
        positive(self, "least", "alpha", "most")

    def at(self, score: Floats) -> Floats:
        """least (1 - Phi(score))^(-1 / alpha)"""
        with np.errstate(over="ignore", divide="ignore"):
            return np.minimum(self.least * above(score) ** (-1 / self.alpha), self.most)


@dataclass(frozen=True)
class Tailed:
    """A lognormal body, of which the longest ``tail`` (a share) is a Pareto tail with ``alpha``."""

    median: float
    sigma: float
    tail: float
    alpha: float
    most: float = MAX_TOKENS

    def __post_init__(self) -> None:
        positive(self, "median", "sigma", "alpha", "most")
        if not 0 < self.tail < 1:
            raise InputError(f"tail of tailed is {self.tail:g}; it must be a share between 0 and 1")

    def at(self, score: Floats) -> Floats:
        """The lognormal up to its 1 - tail quantile u, and u (P(longer) / tail)^(-1 / alpha) from there."""
        from statistics import NormalDist

        begins = NormalDist().inv_cdf(1 - self.tail)
        body = Lognormal(self.median, self.sigma).at(np.minimum(score, begins))
        with np.errstate(over="ignore", divide="ignore"):
            stretch = (above(score) / self.tail) ** (-1 / self.alpha)
        return np.minimum(np.where(score > begins, body * stretch, body), self.most)


@dataclass(frozen=True)
class Constant:
    """All of ``tokens``."""

    tokens: float

    def __post_init__(self) -> None:
        positive(self, "tokens")

    def at(self, score: Floats) -> Floats:
        """The constant."""
        return np.full(len(score), self.tokens)


LENGTHS: dict[str, type[Lengths]] = {
    "lognormal": Lognormal,
    "pareto": Pareto,
    "tailed": Tailed,
    "constant": Constant,
}


def whole(lengths: Floats) -> NDArray[np.int32]:
    """Rounded, and at least 1."""
    return np.clip(np.rint(lengths), 1, MAX_TOKENS).astype(np.int32)


def above(score: Floats) -> Floats:
    """1 - Phi(score), exact far into the tail."""
    return np.array([math.erfc(x / math.sqrt(2)) / 2 for x in score.tolist()])
