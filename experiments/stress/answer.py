"""What a question ends in, the words for its sentence, and its files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from experiments import plots
from experiments.labels import labels
from experiments.plots import Bars, Curves
from experiments.stats import Interval, paired_interval, t_interval
from experiments.stress.case import Floats
from experiments.style import save_figure
from traces.files import atomic_path


@dataclass(frozen=True, eq=False)
class Answer:
    """The end of a question.

    Attributes:
        sentence: what was found, with its uncertainty.
        panels: of the one plot, and so all its data.
        rows: in which the panels stand.
        facts: JSON-able numbers beside the plot's, such as the rate that was asked for.
    """

    sentence: str
    panels: Sequence[Curves] | Sequence[Bars]
    rows: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)

    def figure(self) -> Figure:
        """The plot; called within `experiments.style.plot_style`."""
        if all(isinstance(panel, Bars) for panel in self.panels):
            return plots.bars([panel for panel in self.panels if isinstance(panel, Bars)])
        return plots.curves([panel for panel in self.panels if isinstance(panel, Curves)], self.rows)

    def table(self) -> pl.DataFrame:
        """All that the plot shows: a row a value, with the half width of its 95% interval."""
        rows: list[tuple[str, str, str, float | None, float, float]] = []
        for panel in self.panels:
            if isinstance(panel, Bars):
                rows += [(panel.title, name, "", None, *_two(value)) for name, value in panel.values.items()]
                continue
            what, along = panel.y_label, panel.x_label
            for name, values in panel.lines.items():
                rows += [
                    (what, name, along, float(x), *_two(value))
                    for x, value in zip(panel.x, values, strict=True)
                ]
            rows += [(what, name, along, None, *_two(value)) for name, value in panel.levels.items()]
            rows += [(what, name, along, float(x), *_two(v)) for name, (x, v) in panel.points.items()]
        names = ("measure", "policy", "along", "x", "mean", "half_width")
        types = (pl.String, pl.String, pl.String, pl.Float64, pl.Float64, pl.Float64)
        frame = pl.DataFrame(rows, schema=list(zip(names, types, strict=True)), orient="row")
        return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def write(
    answer: Answer, name: str, title: str, out: Path, command: str, settings: Mapping[str, Any]
) -> None:
    """Write ``name.png``, ``.svg``, ``.csv`` and ``.json`` into ``out``.

    Raises:
        InputError: the folder cannot be written.
    """
    save_figure(answer.figure(), out, name)
    table = answer.table()
    with atomic_path(out / f"{name}.csv") as temporary:
        table.write_csv(temporary)
    page = {
        "question": title,
        "sentence": answer.sentence,
        "command": command,
        "settings": settings,
        "facts": answer.facts,
        "data": table.to_dicts(),
    }
    with atomic_path(out / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(page, indent=1, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def ratio(values: Floats, base: Floats) -> Interval:
    """``mean(values) / mean(base)`` of (seeds,) paired replications.

    Its interval is that of ``values - ratio * base``, over the mean of ``base`` (the delta method).
    """
    quotient = float(values.mean() / base.mean())
    spread = t_interval((values - quotient * base) / abs(float(base.mean())))
    return Interval(quotient, spread.half_width, spread.method, spread.samples)


def share_of_gain(worst: Floats, best: Floats, mine: Floats) -> Interval:
    """How much of the way from one policy to another a third one goes: 0 like the first, 1 like the second.

    nan where the second gains nothing beyond noise. Takes (seeds,) values of a metric that is better low.
    """
    if not paired_interval(worst, best).low > 0:
        return Interval(math.nan, math.nan, "none", len(worst))
    return ratio(worst - mine, worst - best)


def ranking(values: Mapping[str, Floats], lower: bool = True) -> tuple[str, list[str], list[str]]:
    """The best by its mean, those that cannot be told from it, and the rest, best first.

    Args:
        values: policy -> (seeds,) values with common random numbers.
    """
    order = sorted(values, key=lambda name: float(values[name].mean()) * (1 if lower else -1))
    best = order[0]
    near = [name for name in order[1:] if paired_interval(values[name], values[best]).includes_zero]
    return best, near, [name for name in order[1:] if name not in near]


def leads(values: Mapping[str, Floats], what: str, lower: bool = True) -> str:
    """Who has ``what``, the others within noise; nobody is named where nobody stands out."""
    best, near, rest = ranking(values, lower)
    if not rest and near:
        return f"noise does not tell who has {what}"
    told = f"{listed([best])} has {what}"
    return f"{told} ({listed(near)} within noise of it)" if near else told


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``, by their labels."""
    called = list(labels(names).values())
    return called[0] if len(called) == 1 else f"{', '.join(called[:-1])} and {called[-1]}"


def sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[0].upper()}{words[1:]}."


def plus_minus(interval: Interval) -> str:
    """``2.27 ±0.07`` for a sentence: the half width in one digit, in two where the first is a 1 or 2."""
    half = interval.half_width
    if not half > 0 or not math.isfinite(half):
        return f"{interval.mean:.3g}"
    places = -math.floor(math.log10(half))
    if half * 10**places < 3:
        places += 1
    shown = max(places, 0)
    # 0 is added for -0.
    return f"{round(interval.mean, places) + 0.0:.{shown}f} ±{round(half, places):.{shown}f}"


def percent(interval: Interval) -> str:
    """``61 ±4%``."""
    return f"{plus_minus(hundred(interval))}%"


def change(now: Floats, before: Floats) -> str:
    """``-26 ±5%``, or that it is within noise."""
    if paired_interval(now, before).includes_zero:
        return "no change beyond noise"
    found = percent(ratio(now - before, before))
    return found if found.startswith("-") else f"+{found}"


def hundred(share: Interval) -> Interval:
    """A share in percent."""
    return Interval(100 * share.mean, 100 * share.half_width, share.method, share.samples)


def crossing(x: Sequence[float], y: Sequence[float], level: float) -> float:
    """The first x at which y, linear between its points, reaches ``level`` from either side; nan if never."""
    for (x0, y0), (x1, y1) in zip(zip(x, y, strict=True), list(zip(x, y, strict=True))[1:], strict=False):
        if min(y0, y1) <= level <= max(y0, y1):
            return float(x0 if y0 == y1 else x0 + (level - y0) / (y1 - y0) * (x1 - x0))
    return math.nan


def kendall_tau(first: Floats, second: Floats, most: int = 1500) -> float:
    """Kendall's tau-b of two (n,) columns, by all pairs of at most so many evenly spaced rows.

    0 where a column is constant: it orders nothing.
    """
    rows = np.unique(np.linspace(0, len(first) - 1, min(len(first), most)).astype(int))
    a, b = (np.sign(np.subtract.outer(column[rows], column[rows])) for column in (first, second))
    untied = math.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / untied) if untied else 0.0


def _two(value: Interval) -> tuple[float, float]:
    return value.mean, value.half_width
