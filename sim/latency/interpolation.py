"""Piecewise-linear functions of measured points, for the latency models that are tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def interpolate(axes: Sequence[Floats], values: Floats, at: Sequence[Any]) -> Any:
    """Multilinear interpolation on a full grid.

    Along each axis the value is constant below the first point, and goes on beyond the last one with
    the slope of the last interval.

    Args:
        axes: d rising arrays.
        values: array of the shape that the axes say.
        at: d numbers or arrays that broadcast.

    Returns: an array of the broadcast shape; a 0-d one for numbers.
    """
    places = [_place(axis, np.asarray(point)) for axis, point in zip(axes, at, strict=True)]
    total: Any = 0.0
    for corner in itertools.product((0, 1), repeat=len(axes)):
        index: list[Any] = []
        share: Any = 1.0
        for (low, weight), axis, upper in zip(places, axes, corner, strict=True):
            index.append(np.minimum(low + upper, len(axis) - 1))
            share = share * (weight if upper else 1 - weight)
        total = total + values[tuple(index)] * share
    return total


def sum_steps(k: Any, first: Any, stride: Any, knots: Floats, at_knots: Floats) -> Any:
    """Sum of f(first + stride * j) over j = 0 ... k - 1, in closed form on each straight piece.

    Args:
        k, first, stride: numbers or arrays that broadcast; ``k`` whole and at least 0, ``stride`` above 0.
        knots: (..., K) rising points of f, whose leading shape broadcasts with the others.
        at_knots: (..., K) values of f there; f is constant below the first knot and goes on with the last slope.
    """
    k, first, stride = (np.asarray(values)[..., None] for values in (k, first, stride))
    knots = np.broadcast_to(knots, np.broadcast_shapes(knots.shape, at_knots.shape))
    slope = np.diff(at_knots, axis=-1) / np.diff(knots, axis=-1)
    # Constant below the first knot; the last piece has no end.
    no_end = np.full((*knots.shape[:-1], 1), np.inf)
    starts = np.concatenate([-no_end, knots[..., :-1]], axis=-1)
    ends = np.concatenate([knots[..., :-1], no_end], axis=-1)
    slope = np.concatenate([np.zeros((*slope.shape[:-1], 1)), slope], axis=-1)
    level = np.concatenate(
        [at_knots[..., :1], at_knots[..., :-1] - slope[..., 1:] * knots[..., :-1]], axis=-1
    )
    begin = np.clip(np.ceil((starts - first) / stride), 0, k)
    end = np.clip(np.ceil((ends - first) / stride), 0, k)
    pieces = (end - begin) * (level + slope * (first + 0.5 * stride * (begin + end - 1)))
    return pieces.sum(axis=-1)


def resample(points: Floats, values: Floats, axis: Floats) -> Floats:
    """The values (n, ...) at the rising ``points`` (n,), interpolated at ``axis`` (m,): (m, ...).

    Outside of the points the first and the last slope go on; a single point is a constant.
    """
    if len(points) == 1:
        return np.repeat(values, len(axis), axis=0)
    low = np.clip(np.searchsorted(points, axis, side="right") - 1, 0, len(points) - 2)
    share = ((axis - points[low]) / (points[low + 1] - points[low])).reshape(-1, *[1] * (values.ndim - 1))
    resampled: Floats = values[low] * (1 - share) + values[low + 1] * share
    return resampled


def _place(axis: Floats, at: NDArray[Any]) -> tuple[NDArray[np.int64], Floats]:
    """The point of the axis below ``at``, and how far it is from there to the next one (above 1: beyond)."""
    if len(axis) == 1:
        return np.zeros(at.shape, np.int64), np.zeros(at.shape)
    low = np.clip(np.searchsorted(axis, at, side="right") - 1, 0, len(axis) - 2)
    return low, np.maximum((at - axis[low]) / (axis[low + 1] - axis[low]), 0.0)
