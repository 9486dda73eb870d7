"""Fit step times to measurements: the affine model, a table, and how far a model is off."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.latency.affine import Affine
from sim.latency.protocol import Latency
from traces.errors import InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Points:
    """Measured steps; arrays of equal length (n,), in the terms of `Latency.step_time`.

    Attributes:
        prefill_tokens, decode_requests, context_tokens: what the step did.
        seconds: the median of the repeats.
        spread: of the repeats, as a share of the median: half the distance of their quartiles.

    Raises:
        InputError: the lengths differ, or a time is not above 0.
    """

    prefill_tokens: Floats
    decode_requests: Floats
    context_tokens: Floats
    seconds: Floats
    spread: Floats

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            object.__setattr__(self, name, np.asarray(values, np.float64))
        if len({len(values) for values in vars(self).values()}) != 1:
            raise InputError("measured steps: the columns have different lengths")
        if not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise InputError("measured steps: every time must be a finite number of seconds above 0")

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Points:
        """The points of these rows."""
        return Points(**{name: values[rows] for name, values in vars(self).items()})


@dataclass(frozen=True)
class FitError:
    """How far a model is off on points: shares of the measured time.

    Attributes:
        points: how many. mean, largest: of the absolute relative errors. bias: mean of the signed ones.
    """

    points: int
    mean: float
    largest: float
    bias: float


def fit_affine(points: Points) -> Affine:
    """The affine model with the least sum of squared *relative* errors, no coefficient below 0.

    Exact: every subset of the four coefficients is fitted freely, and the best admissible one is taken.

    Raises:
        InputError: no decode step was measured.
    """
    if not points.decode_requests.any():
        raise InputError("affine latency: no decode step was measured, so its time cannot be fitted")
    ones = np.ones(len(points))
    columns = np.column_stack([ones, points.prefill_tokens, points.decode_requests, points.context_tokens])
    columns = columns / points.seconds[:, None]
    best: tuple[float, Floats] | None = None
    for size in range(1, 5):
        for subset in itertools.combinations(range(4), size):
            if len(points) < size or subset == (1,):
                continue
            chosen = columns[:, subset]
            scale = np.abs(chosen).max(axis=0)
            if not scale.all():
                continue
            found = np.linalg.lstsq(chosen / scale, ones, rcond=None)[0] / scale
            cost = float(((chosen @ found - 1) ** 2).sum())
            if (found >= 0).all() and (best is None or cost < best[0]):
                coefficients = np.zeros(4)
                coefficients[list(subset)] = found
                best = cost, coefficients
    assert best is not None, "a constant alone fits any points"
    return Affine(*(float(value) for value in best[1]))


def error_of(latency: Latency, points: Points) -> FitError:
    """How far ``latency`` is off on ``points``."""
    model = latency.step_time(points.prefill_tokens, points.decode_requests, points.context_tokens)
    relative = np.asarray(model) / points.seconds - 1
    return FitError(
        len(points), float(np.abs(relative).mean()), float(np.abs(relative).max()), float(relative.mean())
    )
