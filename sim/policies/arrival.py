"""Orders that look at no length: the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class FCFS:
    """First come, first served."""

    vectorised: ClassVar[bool] = True
    stands: ClassVar[bool] = True

    def __call__(self, request: Any, now_s: Any) -> Any:
        return request.arrival_s


@dataclass(frozen=True)
class Random:
    """A random order, fixed by the run's seed."""

    vectorised: ClassVar[bool] = True
    stands: ClassVar[bool] = True

    def __call__(self, request: Any, now_s: Any) -> Any:
        return request.uniform
