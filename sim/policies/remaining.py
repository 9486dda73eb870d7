"""Orders by what is left of the expected output length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sim.request import ORACLE
from traces.errors import InputError


@dataclass(frozen=True)
class SRPT:
    """Shortest remaining (predicted) processing time first, with TRAIL's limited preemption.

    The value is the expected output less the tokens that the request has got, at least 0: with the
    true lengths SRPT, with predicted ones SPRPT (Mitzenmacher, "Scheduling with predictions and the
    price of misprediction", ITCS 2020). A waiting request takes the place of a running one that has
    more left, until that one has got ``floor(limit * expected)`` tokens: from then on it keeps its
    place (TRAIL, arXiv 2410.01035, section on limited preemption, C = 0.8 there; C = 1 is SPRPT). TRAIL
    predicts anew at every token; here the estimate is the one made at arrival.

    Attributes:
        predictor: whose estimate; "oracle": the true length.
        limit: TRAIL's C, between 0 (never preempts) and 1.

    Raises:
        InputError: ``limit`` lies outside of [0, 1].
    """

    predictor: str = ORACLE
    limit: float = 1.0
    vectorised: ClassVar[bool] = True
    refresh: ClassVar[str] = "progress"
    preemptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.limit) and 0 <= self.limit <= 1):
            raise InputError(f"policy srpt: limit = {self.limit} must lie between 0 and 1")

    def __call__(self, request: Any, now_s: Any) -> Any:
        return np.maximum(request.estimate(self.predictor).mean - request.generated_tokens, 0.0)

    def protects(self, request: Any, now_s: Any) -> Any:
        """It has got its share of the expected tokens."""
        return request.generated_tokens >= np.floor(self.limit * request.estimate(self.predictor).mean)
