"""The picture of a trace: its rate over time, its gaps, its lengths, and how prompt and output go together."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from experiments.style import BLUE, DASHED, DOTTED, GREY, ORANGE, log_axis, new_figure, plain
from traces import Trace

RATE_BINS = 100
# A curve of every request of a long trace would be a file of many megabytes.
CURVE_POINTS = 400
# The share of gaps that are too short to be shown.
SHORT = 0.01
UNITS_S = ((86400 * 2, 86400.0, "days"), (7200, 3600.0, "hours"), (300, 60.0, "minutes"), (0, 1.0, "s"))


def trace_picture(trace: Trace) -> Figure:
    """Two panels of lengths, and above them two of arrivals where the trace has any."""
    timed = "arrivals" not in trace.metadata and len(trace) > 2 and trace.arrival_s[-1] > 0
    panels = 4 if timed else 2
    figure, axes = new_figure(rows=panels, height=0.72 * panels + 0.2)
    if timed:
        _rate(axes[0], trace.arrival_s)
        _gaps(axes[1], trace.arrival_s)
    _lengths(axes[-2], trace)
    _pairs(axes[-1], trace)
    return figure


def _rate(axes: Axes, arrival_s: NDArray[Any]) -> None:
    span_s = arrival_s[-1]
    unit_s, unit = next((unit_s, name) for least, unit_s, name in UNITS_S if span_s >= least)
    counts, edges = np.histogram(arrival_s, RATE_BINS, range=(0, span_s))
    axes.stairs(counts / (edges[1] - edges[0]), edges / unit_s, color=BLUE, fill=True, alpha=0.8)
    mean = (len(arrival_s) - 1) / span_s
    axes.axhline(mean, color="black", linestyle=DASHED, linewidth=0.9, label=f"mean, {mean:.3g}/s")
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("arrivals (requests/s)")
    axes.set_xlim(0, span_s / unit_s)
    axes.set_ylim(0)
    _legend(axes)


def _gaps(axes: Axes, arrival_s: NDArray[Any]) -> None:
    gaps = np.diff(arrival_s)
    positive = gaps[gaps > 0]
    times, share = _longer(positive, len(gaps))
    axes.plot(times, 100 * share, color=BLUE, label="trace")
    grid = np.geomspace(positive.min(), positive.max(), CURVE_POINTS)
    poisson = np.exp(-grid / gaps.mean())
    shown = poisson >= share.min() / 2
    axes.plot(
        grid[shown], 100 * poisson[shown], color=GREY, linestyle=DASHED, label="Poisson of the same rate"
    )
    _log_axes(axes, times, 100 * share)
    # Below it lie decades of nearly 100%.
    axes.set_xlim(left=float(np.quantile(positive, SHORT)) / 2)
    axes.set_xlabel("gap between arrivals (s)")
    axes.set_ylabel("gaps at least\nas long (%)")
    _legend(axes)


def _lengths(axes: Axes, trace: Trace) -> None:
    both = []
    for tokens, name, colour, dash in (
        (trace.prompt_tokens, "prompt", ORANGE, DOTTED),
        (trace.output_tokens, "output", BLUE, "-"),
    ):
        lengths, share = _longer(tokens, len(tokens))
        called = f"{name} (mean {tokens.mean():,.0f})"
        axes.plot(lengths, 100 * share, color=colour, linestyle=dash, label=called)
        both.append(lengths)
    _log_axes(axes, np.concatenate(both), 100 * share)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("requests at least\nas long (%)")
    _legend(axes)


def _pairs(axes: Axes, trace: Trace) -> None:
    mesh = axes.hexbin(
        trace.prompt_tokens,
        trace.output_tokens,
        gridsize=(45, 18),
        xscale="log",
        yscale="log",
        bins="log",
        mincnt=1,
        cmap="viridis_r",
        linewidths=0.1,
    )
    key = axes.figure.colorbar(mesh, ax=axes, label="requests in a cell", location="bottom")
    key.outline.set_visible(False)
    key.formatter = FuncFormatter(lambda value, _: plain(value))
    key.ax.xaxis.set_minor_formatter(NullFormatter())
    _log_axes(axes, trace.prompt_tokens, trace.output_tokens)
    axes.set_xlabel("prompt (tokens)")
    axes.set_ylabel("output (tokens)")


def _legend(axes: Axes) -> None:
    """Above the axes: within them it would hide one trace's lines or another's."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=2, borderaxespad=0)


def _log_axes(axes: Axes, x: NDArray[Any], y: NDArray[Any]) -> None:
    for which, values in (("x", x), ("y", y)):
        log_axis(axes, which, float(values[values > 0].min()), float(values.max()))


def _longer(values: NDArray[Any], total: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values, and the share of all that is at least as large; thinned evenly in the logarithm of the rank."""
    ordered = np.sort(values)[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), CURVE_POINTS).astype(int))
    return ordered[ranks - 1], ranks / total
