"""From the steps of calibration runs to a latency file.

The grid of a run makes the models; its mixed requests, other steps in another order, judge them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.vllm.engine import GRID_PREFILLS
from experiments.vllm.recording import PRICED, Recording, Steps, joined
from sim.latency import Affine, Latency, Table
from sim.latency.files import LatencyFile
from sim.latency.fitting import Points, error_of
from traces.errors import InputError

ROUNDS = 30
SNAP = 0.05  # a chunk beside b decodes is up to b tokens smaller than asked for
# Repeats of one decode step that scatter by more than this, in the mean, are those of a noisy machine.
NOISY = 0.05


def calibrate(recordings: Sequence[Recording]) -> LatencyFile:
    """Fit both models to the grids of the runs, and judge them on their mixed requests.

    Raises:
        InputError: a run has no grid (it was made to be replayed), or the runs differ in what ran.
    """
    first = recordings[0]
    for recording in recordings:
        if not len(recording.grid()):
            raise InputError(f"{recording.path} has no calibration grid; it is the record of a replay")
        if (recording.about, recording.case["limits"]) != (first.about, first.case["limits"]):
            raise InputError(
                f"{recording.path} and {first.path} ran on different engines; calibrate each alone"
            )
    grid = joined([recording.grid() for recording in recordings])
    mixed = joined([recording.steps() for recording in recordings])
    affine = fit_affine(grid)
    table = fit_table(grid, affine)
    points, held_out = grouped(grid), every(mixed)
    totals = {name: total_error(model, mixed) for name, model in (("affine", affine), ("table", table))}
    notes = [
        f"{len(recordings)} runs; held out: {len(mixed)} steps of mixed requests, whose sum is "
        + " and ".join(f"{off:+.1%} off ({name})" for name, off in totals.items())
    ]
    scatter = float(points.spread[points.prefill_tokens == 0].mean())
    if scatter > NOISY:
        notes.append(f"a noisy machine: repeats of one decode step scatter by {scatter:.0%}")
    return LatencyFile(
        about={"engine": "vllm", **first.about, "limits": first.case["limits"], "notes": notes},
        points=points,
        affine=affine,
        table=table,
        errors={"affine": error_of(affine, held_out), "table": error_of(table, held_out)},
        use=min(totals, key=lambda name: abs(totals[name])),
    )


def fit_affine(steps: Steps) -> Affine:
    """Coefficients >= 0 of `Affine`, by least squares with the variance in proportion to the time.

    That is what lost time (interrupts, other processes) does to a step; and it makes the fitted times add
    up to the measured ones, means and not medians, since a simulation adds steps up.
    """
    design = np.stack([np.ones(len(steps)), *(getattr(steps, name) for name in PRICED)], axis=1)
    kept = np.ones(design.shape[1], bool)
    fitted = np.full(len(steps), steps.seconds.mean())
    for _ in range(ROUNDS):
        weight = 1 / np.sqrt(fitted)
        coefficients = np.zeros(len(kept))
        found = np.linalg.lstsq(design[:, kept] * weight[:, None], steps.seconds * weight, rcond=None)[0]
        coefficients[kept] = np.maximum(found, 0.0)
        kept = coefficients > 0
        fitted = design @ coefficients
    return Affine(*coefficients.tolist())


def fit_table(steps: Steps, affine: Affine) -> Table:
    """The median time of every batch beside every prefill, straight in the context, at the measured level.

    The context's slope is `affine`'s. What never runs (a prefill beside a full batch) is taken from the
    next smaller batch and what the larger one costs without a prefill. Medians are brought to the
    measured total, since lost time belongs to the steps that a simulation adds up.
    """
    straight = steps.seconds - affine.d * steps.context_tokens
    prefills = np.array([0, *(p for p in GRID_PREFILLS if p <= steps.prefill_tokens.max())])
    near = np.abs(steps.prefill_tokens[:, None] - prefills) <= SNAP * prefills
    batches = np.unique([0, *steps.decode_requests[steps.prefill_tokens == 0]])
    level = np.zeros((len(prefills), len(batches)))
    for i, prefill in enumerate(prefills):
        for j, batch in enumerate(batches):
            there = near[:, i] & (steps.decode_requests == batch)
            if there.any():
                level[i, j] = np.median(straight[there])
            elif prefill == batch == 0:  # a step of nothing, which never runs
                level[i, j] = affine.a
            else:
                level[i, j] = level[i, j - 1] + level[0, j] - level[0, j - 1]
    contexts = np.array([0.0, steps.context_tokens.max()])
    seconds = level[:, :, None] + affine.d * contexts
    axes = (prefills.tolist(), batches.tolist(), contexts.tolist())
    known = steps.take(near.any(axis=1))
    scale = 1 / (1 + total_error(Table(*axes, seconds.tolist()), known))
    return Table(*axes, (seconds * scale).tolist())


def predicted(latency: Latency, steps: Steps) -> NDArray[np.float64]:
    """Seconds (n,) that a latency model gives these steps."""
    return np.asarray(latency.step_time(*(getattr(steps, name) for name in PRICED)), np.float64)


def total_error(latency: Latency, steps: Steps) -> float:
    """Predicted over measured time of all steps together, less 1: what a simulation adds up."""
    return float(predicted(latency, steps).sum() / steps.seconds.sum() - 1)


def every(steps: Steps) -> Points:
    """Each step as a point of its own."""
    columns = {name: getattr(steps, name) for name in (*PRICED, "seconds")}
    return Points(**columns, spread=np.zeros(len(steps)))


def grouped(steps: Steps) -> Points:
    """Repeats in a row (one batch, one prefill, a context that only grows) as one point: the median."""
    kinds = np.stack([steps.prefill_tokens, steps.decode_requests])
    jumps = np.abs(np.diff(steps.context_tokens)) > steps.decode_requests[1:]
    changes = np.flatnonzero((np.diff(kinds) != 0).any(axis=0) | jumps) + 1
    found: list[list[float]] = []
    for rows in np.split(np.arange(len(steps)), changes):
        low, middle, high = np.quantile(steps.seconds[rows], (0.25, 0.5, 0.75))
        prefill, batch, context = (getattr(steps, name)[rows].mean() for name in PRICED)
        found.append([prefill, batch, context, middle, (high - low) / 2 / middle])
    prefills, batches, contexts, seconds, spread = np.array(found).T
    return Points(prefills, batches, contexts, seconds, spread)
