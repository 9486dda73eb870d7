"""Time padded batches over a grid and fit a latency file to them; a second grid judges the fit.

In the terms of `Latency`: the prefill of b prompts padded to P tokens is ``(b * P, 0, 0)``; the j-th decode
step is ``(0, b, b * (P + j))``. The decode steps of one batch are taken together as one point at their mean
context, since a step's context grows by b tokens only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from experiments.hf.engine import Engine
from sim.latency import Latency, Table
from sim.latency.files import LatencyFile
from sim.latency.fitting import Points, error_of, fit_affine
from sim.latency.interpolation import resample
from traces.errors import InputError

NOISY_SPREAD = 0.05
"""Repeats that scatter by more than this share, in the mean over the grid, are those of a noisy machine."""
NOISY_DRIFT = 0.05
"""So is one whose reference kernel takes this share more or less at the end, or in between, than at the start."""


@dataclass(frozen=True)
class Grid:
    """What is timed.

    Attributes:
        batch_sizes: requests in a batch. prompt_tokens: padded length of its prompts.
        held_out_sizes, held_out_tokens: the same for the points that judge the fit.
        decode_steps: timed in each batch. repeats: of each batch; the median counts.
        warm_up: batches that are run and not counted.
    """

    batch_sizes: tuple[int, ...] = (1, 2, 3, 4)
    prompt_tokens: tuple[int, ...] = (32, 64, 128, 256)
    held_out_sizes: tuple[int, ...] = (1, 2, 4)
    held_out_tokens: tuple[int, ...] = (48, 192)
    decode_steps: int = 8
    repeats: int = 5
    warm_up: int = 2

    def __post_init__(self) -> None:
        for name, least in (("decode_steps", 1), ("repeats", 3), ("warm_up", 0)):
            if getattr(self, name) < least:
                raise InputError(f"calibration: {name} = {getattr(self, name)} must be at least {least}")
        for name in ("batch_sizes", "prompt_tokens", "held_out_sizes", "held_out_tokens"):
            values = getattr(self, name)
            if not values or min(values) < 1 or list(values) != sorted(set(values)):
                raise InputError(f"calibration: {name} = {values} must be rising whole numbers, at least 1")
        if len(self.batch_sizes) < 2 or len(self.prompt_tokens) < 2:
            raise InputError("calibration: a grid needs at least two batch sizes and two prompt lengths")


def calibrate(
    engine: Engine,
    about: dict[str, Any],
    grid: Grid,
    seed: int,
    tell: Callable[[str], None] = lambda line: None,
) -> LatencyFile:
    """Time the grid and fit a latency file.

    Repeats are the outer loop and the batches of a repeat come in random order, so that a slow spell of the
    machine meets all points alike.

    Args:
        about: what is measured (`PaddedEngine.about`).
        tell: is told of the progress.
    """
    rng = np.random.default_rng(seed)
    fitted = list(itertools.product(grid.batch_sizes, grid.prompt_tokens))
    batches = fitted + list(itertools.product(grid.held_out_sizes, grid.held_out_tokens))
    for _ in range(grid.warm_up):
        _time(engine, batches[-1], grid.decode_steps, rng)
    references, times = [engine.reference_s()], np.empty((grid.repeats, len(batches), 2))
    for repeat in range(grid.repeats):
        for number in rng.permutation(len(batches)):
            times[repeat, number] = _time(engine, batches[number], grid.decode_steps, rng)
        references.append(engine.reference_s())
        tell(f"repeat {repeat + 1} of {grid.repeats}")
    points = _points(batches, times, grid.decode_steps)
    judging = np.tile(np.arange(len(batches)) >= len(fitted), 2)
    affine, table = fit_affine(points.take(~judging)), fit_table(grid, points.take(~judging))
    models: dict[str, Latency] = {"affine": affine, "table": table}
    errors = {name: error_of(model, points.take(judging)) for name, model in models.items()}
    return LatencyFile(
        about={**about, "date": date.today().isoformat(), "notes": notes(points, references)},
        points=points,
        affine=affine,
        table=table,
        errors=errors,
        # A straight line has fewer numbers to be wrong, so the table has to be clearly better.
        use="table"
        if errors["table"].mean < 0.9 * errors["affine"].mean and errors["affine"].mean > 1e-6
        else "affine",
    )


def fit_table(grid: Grid, points: Points) -> Table:
    """The measured points as a table: prefill alone along one axis, decode over batch size and context.

    Decode times lie at other contexts for each batch size; they are interpolated at all of them. A step with
    both, which a padded batch has none of, is taken as the sum.
    """
    sizes, prefill = grid.batch_sizes, points.decode_requests == 0
    tokens = np.unique(points.prefill_tokens[prefill])
    prefill_s = np.array(
        [points.seconds[prefill & (points.prefill_tokens == count)].mean() for count in tokens]
    )
    contexts = np.unique(points.context_tokens[~prefill])
    decode_s = np.empty((len(sizes), len(contexts)))
    for row, size in enumerate(sizes):
        mine = points.decode_requests == size
        decode_s[row] = resample(points.context_tokens[mine], points.seconds[mine], contexts)
    # Beyond its own contexts a row is a straight line, which noise may turn down.
    decode_s = np.maximum(decode_s, decode_s[decode_s > 0].min())
    seconds = np.concatenate([np.zeros(1), prefill_s])[:, None, None] + np.concatenate(
        [np.zeros((1, len(contexts))), decode_s]
    )
    seconds[0, 0] = min(prefill_s.min(), decode_s.min())
    return Table([0, *tokens.tolist()], [0, *sizes], contexts.tolist(), seconds.tolist())


def notes(points: Points, references: Sequence[float]) -> list[str]:
    """What is to be said of the machine: how far repeats scatter, how its speed drifted, and whether that is noise."""
    spread = float(points.spread.mean())
    drift = max(references) / min(references) - 1
    said = [
        f"repeats scatter by {spread:.1%} in the mean (half the distance of the quartiles), "
        f"the reference kernel by {drift:.1%} between the fastest and the slowest time"
    ]
    if spread > NOISY_SPREAD or drift > NOISY_DRIFT:
        said.append("a noisy machine: calibrate again when nothing else runs")
    return said


def render(file: LatencyFile) -> str:
    """What a person wants to know of a calibration."""
    a, b, c, d = (getattr(file.affine, name) for name in "abcd")
    lines = [
        f"affine: {a * 1e3:.4g} ms a step + {b * 1e3:.4g} ms a prefill token + {c * 1e3:.4g} ms a decoding "
        f"request + {d * 1e6:.4g} us a context token",
    ]
    for name, error in file.errors.items():
        lines.append(
            f"{name} on {error.points} held-out points: off by {error.mean:.1%} in the mean "
            f"(signed {error.bias:+.1%}), {error.largest:.1%} at most"
        )
    return "\n".join([*lines, f"used unless told otherwise: {file.use}", *file.about["notes"]])


def _time(
    engine: Engine, batch: tuple[int, int], decode_steps: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Seconds of the prefill, and of a decode step in the mean: a simulation adds steps up, slow ones among them."""
    size, tokens = batch
    times = engine.run([engine.prompt(tokens, rng) for _ in range(size)], 1 + decode_steps)
    return times.prefill_s, float(np.mean(times.decode_s))


def _points(
    batches: Sequence[tuple[int, int]], times: np.ndarray[Any, np.dtype[np.float64]], steps: int
) -> Points:
    """Prefill points first, then decode points, each in the order of the batches; times are (repeats, batches, 2)."""
    size, tokens = np.array(batches, np.float64).T
    none = np.zeros(len(batches))
    low, median, high = np.quantile(times, [0.25, 0.5, 0.75], axis=0)
    return Points(
        prefill_tokens=np.concatenate([size * tokens, none]),
        decode_requests=np.concatenate([none, size]),
        context_tokens=np.concatenate([none, size * (tokens + 0.5 * (1 + steps))]),
        seconds=np.concatenate([median[:, 0], median[:, 1]]),
        spread=np.concatenate([(high - low)[:, i] / (2 * median[:, i]) for i in (0, 1)]),
    )
