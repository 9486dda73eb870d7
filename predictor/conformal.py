"""Split-conformal correction of a predictor's quantiles, so that they hold what their levels say.

Each level q is moved by c_q widths, width = x_95 - x_05 of the row itself, so a row whose length is uncertain is
moved further (locally weighted scores, Lei et al. 2018; on quantiles, Romano et al. 2019). c_q is taken from rows
that the head was not trained on: for q of one half and above it is the least c for which the share of rows with
y <= x_q + c width reaches q, below one half the largest for which the share with y >= x_q + c width reaches 1 - q.
So the interval from the 5% to the 95% quantile holds a new prompt's length with at least 90% probability,
whatever the head is worth, if calibration and new prompts are exchangeable.

Several rows of one prompt are not independent. Each prompt counts once, its m rows 1/m each, beside the new
prompt, which counts once as if it lay at infinity (hierarchical conformal prediction, Lee, Barber and Willett
2023, arXiv 2306.06342).
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.head import Floats
from predictor.stored import items, named, number, shown, whole
from traces.errors import InputError
from traces.estimates import QUANTILES

LOW, HIGH = 0.05, 0.95


@dataclass(frozen=True)
class Correction:
    """shifts: level -> c_q, in widths; a level for which there were too few prompts is missing.

    prompts: how many prompts it was taken from.
    """

    shifts: Mapping[float, float]
    prompts: int

    def apply(self, at: Mapping[float, Floats]) -> dict[float, Floats]:
        """level -> (n,) tokens, corrected; levels that are missing in `shifts` are left out.

        Quantiles that cross after the correction are moved outwards, away from the median, which can only widen
        an interval. A length is at least one token.
        """
        width = at[HIGH] - at[LOW]
        moved = {q: np.maximum(at[q] + self.shifts[q] * width, 1.0) for q in sorted(at) if q in self.shifts}
        upper = [q for q in moved if q >= 0.5]
        lower = [*upper[:1], *(q for q in reversed(moved) if q < 0.5)]
        for inner, outer in itertools.pairwise(upper):
            moved[outer] = np.maximum(moved[outer], moved[inner])
        for inner, outer in itertools.pairwise(lower):
            moved[outer] = np.minimum(moved[outer], moved[inner])
        return moved

    def to_json(self) -> dict[str, Any]:
        return {"shifts": [[q, c] for q, c in sorted(self.shifts.items())], "prompts": self.prompts}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Correction":
        """Raises InputError for what `to_json` does not give."""
        shifts, prompts = named(stored, "conformal", "shifts", "prompts")
        found = {}
        for pair in items(shifts, "conformal.shifts"):
            if len(items(pair, "a shift")) != 2:
                raise InputError(f"a shift must be a level and its width, not {shown(pair)}")
            level, shift = (number(value, "conformal.shifts") for value in pair)
            if level not in QUANTILES or level in found:
                raise InputError(
                    f"conformal.shifts has the level {level:g}; each of {[*QUANTILES]} comes once at most"
                )
            found[level] = shift
        return cls(found, whole(prompts, "conformal.prompts", 1))


def calibrate(
    at: Mapping[float, Floats], lengths: NDArray[np.number], prompts: Sequence[object] | NDArray[np.object_]
) -> Correction:
    """The correction from (n,) lengths, the prompt of each, and their predicted quantiles: level -> (n,) tokens.

    Raises InputError when the 5% or the 95% quantile is missing, or where they are equal.
    """
    if LOW not in at or HIGH not in at:
        raise InputError(
            "a conformal correction needs the 5% and the 95% quantile, which say how wide a row is"
        )
    width = at[HIGH] - at[LOW]
    if not (width > 0).all():
        raise InputError("the 95% quantile must lie above the 5% quantile in every row to be corrected")
    _, group = np.unique([str(p) for p in prompts], return_inverse=True)
    count = np.bincount(group)
    weights = 1 / count[group] / (len(count) + 1)
    shifts = {}
    for q, x in at.items():
        score = np.asarray((lengths - x) / width, np.float64)
        c = least(score, weights, q) if q >= 0.5 else -least(-score, weights, 1 - q)
        if np.isfinite(c):
            shifts[q] = c
    return Correction(shifts, len(count))


def least(scores: Floats, weights: Floats, level: float) -> float:
    """The least c for which the scores <= c weigh at least `level`; inf when all of them weigh less."""
    order = np.argsort(scores, kind="stable")
    total = weights[order].cumsum()
    # Sums of floats: 19 of 20 equal weights must count as 95%.
    reached = np.flatnonzero(total >= level - 1e-12)
    return float(scores[order[reached[0]]]) if len(reached) else float("inf")
