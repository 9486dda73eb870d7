"""Orders by the expected output length.

With ``predictor="oracle"`` the estimate is the true length: shortest first is then SJF, the bound
that no predictor passes on one server, and longest first its opposite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sim.request import ORACLE
from traces.errors import InputError


@dataclass(frozen=True)
class Shortest:
    """The smallest expected output first: SJF, EGTP and ESTP differ in the predictor alone.

    Attributes:
        predictor: whose estimate.
        sigma: the estimate is multiplied by exp(sigma * N(0, 1)), drawn once a request, to ask how
            good a predictor has to be: 0.5 puts two thirds of them within a factor of 1.65.

    Raises:
        InputError: ``sigma`` is negative or not finite.
    """

    predictor: str
    sigma: float = 0.0
    vectorised: ClassVar[bool] = True
    stands: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise InputError(f"policy shortest: sigma = {self.sigma} must be a finite number, at least 0")

    def __call__(self, request: Any, now_s: Any) -> Any:
        mean = request.estimate(self.predictor).mean
        return mean * np.exp(self.sigma * request.normal) if self.sigma else mean


@dataclass(frozen=True)
class Longest:
    """The largest expected output first."""

    predictor: str
    vectorised: ClassVar[bool] = True
    stands: ClassVar[bool] = True

    def __call__(self, request: Any, now_s: Any) -> Any:
        return -request.estimate(self.predictor).mean


@dataclass(frozen=True)
class ShortestWork:
    """The least expected work first: output tokens, and the prompt tokens that the prefix cache lacks.

    Attributes:
        predictor: whose estimate of the output.
        prefill_tokens: prompt tokens that cost as much as one output token.

    Raises:
        InputError: ``prefill_tokens`` is not above 0.
    """

    predictor: str = ORACLE
    prefill_tokens: float = 64.0
    vectorised: ClassVar[bool] = True
    refresh: ClassVar[str] = "event"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.prefill_tokens) and self.prefill_tokens > 0):
            raise InputError(
                f"policy shortest-work: prefill_tokens = {self.prefill_tokens} must be a number above 0"
            )

    def __call__(self, request: Any, now_s: Any) -> Any:
        prefill = (request.prompt_tokens - request.cached_tokens) / self.prefill_tokens
        return request.estimate(self.predictor).mean - request.generated_tokens + prefill
