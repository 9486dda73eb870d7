"""The table that every validation prints: real, simulated, error, and the machine's own spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

BOUND = 0.05
"""An error up to this, or up to the machine's own spread, counts as met."""


@dataclass(frozen=True)
class Figure:
    """One figure of a run.

    Attributes:
        name: with its unit, such as "mean JCT s".
        real: one value a repetition of the real run.
        simulated: one value a repetition of the simulation; one, if all would be the same.
    """

    name: str
    real: tuple[float, ...]
    simulated: tuple[float, ...]

    @property
    def error(self) -> float:
        """Mean simulated over mean real value, less 1; 0 where both are 0."""
        real, simulated = _mean(self.real), _mean(self.simulated)
        return 0.0 if real == simulated else simulated / real - 1 if real else math.inf

    @property
    def spread(self) -> float:
        """(largest - smallest) / mean of the repetitions; nan for a single one."""
        if len(self.real) < 2:
            return math.nan
        mean = _mean(self.real)
        return (max(self.real) - min(self.real)) / mean if mean else 0.0

    @property
    def met(self) -> bool:
        """Whether the error is within `BOUND`, or within the machine's own spread."""
        return abs(self.error) <= BOUND or abs(self.error) <= self.spread


def summaries(name: str, unit: str, real: ArrayLike, simulated: ArrayLike) -> list[Figure]:
    """Mean, p50 and p99 of a per-request metric of one run, requests in which it is nan left out."""
    figures = []
    pairs = np.asarray(real, np.float64), np.asarray(simulated, np.float64)
    for label, of in (("mean", np.mean), ("p50", np.median), ("p99", _p99)):
        values = [float(of(column[np.isfinite(column)])) for column in pairs]
        figures.append(Figure(f"{label} {name} {unit}", (values[0],), (values[1],)))
    return figures


def render(groups: Mapping[str, Sequence[Figure]], first: str = "policy") -> str:
    """A table of all figures, one a line, and the worst error under it.

    Args:
        groups: figures by policy, or by whatever ``first`` names.
    """
    spreads = any(not math.isnan(figure.spread) for figure in _all(groups))
    rows = [[first, "figure", "real", *(["spread"] if spreads else []), "simulated", "error", ""]]
    for group, figures in groups.items():
        for number, figure in enumerate(figures):
            cells = [group if not number else "", figure.name, _number(_mean(figure.real))]
            if spreads:
                cells.append("" if math.isnan(figure.spread) else f"{figure.spread:.1%}")
            cells += [_number(_mean(figure.simulated)), f"{figure.error:+.1%}", "" if figure.met else "!"]
            rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join([*left, *right]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join([*lines, "", *_notes(groups, spreads)])


def worst(groups: Mapping[str, Sequence[Figure]]) -> tuple[str, Figure]:
    """The group and the figure with the largest absolute error."""
    return max(
        ((group, figure) for group, figures in groups.items() for figure in figures),
        key=lambda pair: abs(pair[1].error),
    )


def _notes(groups: Mapping[str, Sequence[Figure]], spreads: bool) -> list[str]:
    group, figure = worst(groups)
    notes = [f"worst: {figure.name} of {group}, {figure.error:+.1%}"]
    missed = sum(not figure.met for figure in _all(groups))
    beyond = f"beyond {BOUND:.0%}" + (" and beyond the machine's own spread" if spreads else "")
    notes.append(f"! {beyond}: {missed} of {len(list(_all(groups)))} figures")
    if spreads:
        notes.append("spread: (largest - smallest) / mean of the repetitions of the real run")
    return notes


def _all(groups: Mapping[str, Sequence[Figure]]) -> Iterable[Figure]:
    return (figure for figures in groups.values() for figure in figures)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _p99(values: NDArray[np.float64]) -> float:
    return float(np.quantile(values, 0.99))


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
