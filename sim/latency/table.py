"""A step's time from measurements on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.latency.interpolation import interpolate, sum_steps
from sim.latency.protocol import search_steps
from traces.errors import InputError

AXES = ("prefill_tokens", "decode_requests", "context_tokens")


@dataclass(frozen=True)
class Table:
    """Linear interpolation between measured steps.

    More tokens never make a step shorter: where noise says so, the running maximum along the axes of
    prefill and of context is taken. (More requests may: matrix products of some sizes are slow.) Along each
    axis the time is constant below the first point, and goes on beyond the last one with the slope of the
    last interval.

    Attributes:
        prefill_tokens: (P,) rising, tokens. decode_requests: (D,) rising. context_tokens: (C,) rising,
            tokens of all decoding requests (`Latency`).
        seconds: (P, D, C) nested sequences, each above 0.

    Raises:
        InputError: an axis does not rise, or the times are not of that shape or not above 0.
    """

    prefill_tokens: Sequence[float]
    decode_requests: Sequence[float]
    context_tokens: Sequence[float]
    seconds: Sequence[Sequence[Sequence[float]]]

    def __post_init__(self) -> None:
        for name in AXES:
            axis = np.asarray(getattr(self, name), np.float64)
            if axis.ndim != 1 or not len(axis) or not (np.diff(axis) > 0).all():
                raise InputError(f"latency table: {name} = {getattr(self, name)} must be rising numbers")
        shape = tuple(len(getattr(self, name)) for name in AXES)
        try:
            seconds = np.asarray(self.seconds, np.float64)
        except ValueError as error:
            raise InputError(f"latency table: seconds must be {shape} numbers: {error}") from error
        if seconds.shape != shape:
            raise InputError(f"latency table: seconds have the shape {seconds.shape}, the axes say {shape}")
        if not (np.isfinite(seconds) & (seconds > 0)).all():
            raise InputError("latency table: every time must be a finite number of seconds above 0")

    @classmethod
    def read(cls, path: str | Path) -> Table:
        """From a CSV with the columns prefill_tokens, decode_requests, context_tokens and seconds.

        Raises:
            InputError: a column is missing, or a point of the grid is missing or given twice.
        """
        try:
            rows = pl.read_csv(path)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"latency table {path} cannot be read: {error}") from error
        for name in (*AXES, "seconds"):
            if name not in rows.columns:
                raise InputError(
                    f"latency table {path} has no column {name!r}; it has {', '.join(rows.columns)}"
                )
        axes = [rows[name].unique().sort() for name in AXES]
        size = int(np.prod([len(axis) for axis in axes]))
        points = rows.select(AXES).n_unique()
        if points != len(rows) or size != len(rows):
            raise InputError(
                f"latency table {path} has {len(rows)} rows with {points} different points; "
                f"its grid of {' x '.join(str(len(axis)) for axis in axes)} needs {size}, each once"
            )
        seconds = rows.sort(AXES)["seconds"].to_numpy().reshape([len(axis) for axis in axes])
        prefill, requests, context = (axis.to_list() for axis in axes)
        return cls(prefill, requests, context, seconds.tolist())

    def step_time(self, prefill_tokens: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of one step (`Latency.step_time`)."""
        total = interpolate(self._axes, self._seconds, (prefill_tokens, decode_requests, context_tokens))
        return total if total.ndim else float(total)

    def advance(self, k: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of ``k`` decode steps (`Latency.advance`): each straight piece in closed form."""
        knots = self._axes[2]
        at_knots = np.asarray(self.step_time(0, np.asarray(decode_requests)[..., None], knots))
        total = sum_steps(k, context_tokens, decode_requests, knots, at_knots)
        return total if total.ndim else float(total)

    def steps_until(self, seconds: float, decode_requests: int, context_tokens: int) -> int:
        """The least number of decode steps that last ``seconds`` (`Latency.steps_until`)."""
        return search_steps(self, seconds, decode_requests, context_tokens)

    @cached_property
    def _axes(self) -> tuple[NDArray[np.float64], ...]:
        return tuple(np.asarray(getattr(self, name), np.float64) for name in AXES)

    @cached_property
    def _seconds(self) -> NDArray[np.float64]:
        seconds = np.asarray(self.seconds, np.float64)
        return np.asarray(np.maximum.accumulate(np.maximum.accumulate(seconds, axis=0), axis=2))
