"""The picture of a trace: its rate over time, its gaps, its lengths, and how prompt and output go together."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.style import BLUE, GREY, ORANGE, new_figure
from traces import Trace

RATE_BINS = 100
# A curve of every request of a long trace would be a file of many megabytes.
CURVE_POINTS = 400
UNITS_S = ((86400 * 2, 86400.0, "days"), (7200, 3600.0, "hours"), (300, 60.0, "minutes"), (0, 1.0, "s"))


def trace_picture(trace: Trace) -> Figure:
    """Two panels of lengths, and before them two of arrivals where the trace has any."""
    timed = "arrivals" not in trace.metadata and len(trace) > 2 and trace.arrival_s[-1] > 0
    panels = 4 if timed else 2
    figure, axes = new_figure(panels, width=0.85 * panels)
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
    axes.axhline((len(arrival_s) - 1) / span_s, color=GREY, linestyle="--", linewidth=0.8)
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("requests per second")
    axes.set_title("arrivals, and their mean rate")


def _gaps(axes: Axes, arrival_s: NDArray[Any]) -> None:
    gaps = np.diff(arrival_s)
    positive = gaps[gaps > 0]
    times, share = _longer(positive, len(gaps))
    axes.plot(times, share, color=BLUE, label="trace")
    grid = np.geomspace(positive.min(), positive.max(), CURVE_POINTS)
    poisson = np.exp(-grid / gaps.mean())
    shown = poisson >= share.min() / 2
    axes.plot(grid[shown], poisson[shown], color=GREY, linestyle="--", label="Poisson, same rate")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("gap between arrivals (s)")
    axes.set_ylabel("share of gaps at least as long")
    axes.legend(loc="lower left")


def _lengths(axes: Axes, trace: Trace) -> None:
    for tokens, name, colour, dash in (
        (trace.prompt_tokens, "prompt", ORANGE, "--"),
        (trace.output_tokens, "output", BLUE, "-"),
    ):
        lengths, share = _longer(tokens, len(tokens))
        axes.plot(lengths, share, color=colour, linestyle=dash, label=f"{name}, mean {tokens.mean():,.0f}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("share at least as long")
    axes.legend(loc="lower left")


def _pairs(axes: Axes, trace: Trace) -> None:
    mesh = axes.hexbin(
        trace.prompt_tokens,
        trace.output_tokens,
        gridsize=30,
        xscale="log",
        yscale="log",
        bins="log",
        mincnt=1,
        cmap="Blues",
        linewidths=0,
    )
    axes.figure.colorbar(mesh, ax=axes, label="requests")
    axes.set_xlabel("prompt (tokens)")
    axes.set_ylabel("output (tokens)")


def _longer(values: NDArray[Any], total: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values, and the share of all that is at least as large; thinned evenly in the logarithm of the rank."""
    ordered = np.sort(values)[::-1]
    ranks = np.unique(np.geomspace(1, len(ordered), CURVE_POINTS).astype(int))
    return ordered[ranks - 1], ranks / total
