"""The plots of a comparison: each takes numbers and gives a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator
from numpy.typing import NDArray

from experiments.labels import labels
from experiments.stats import Interval, t_interval
from experiments.style import DASHES, Look, log_axis, looks, new_figure

Floats = NDArray[np.float64]
CURVE_POINTS = 400
TIME_BINS = 100
# So many markers a line of many points has.
MARKERS_A_LINE = 6
# Letters that a line has room for beside bars, and in a legend.
BESIDE, ABOVE = 18, 48
# Below this many points a cloud of dots shows each; above it, dots hide how many there are.
DOTS = 400
# From this ratio on, a linear axis shows nothing but its largest value.
LOG_FROM = 30
LOG_Y_FROM = 5
# Upper ends of the bins of requests by the share of their prompt that was found in the prefix cache.
HIT_SHARES = (0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Bars:
    """One panel of bars.

    Attributes:
        title: what is shown, with its unit.
        values: policy -> value and interval (half width nan: no interval is drawn).
        better: ``lower`` or ``higher``, said under the title; None: neither.
    """

    title: str
    values: Mapping[str, Interval]
    better: str | None


@dataclass(frozen=True)
class Curves:
    """One panel of lines.

    Attributes:
        x_label, y_label: what is shown, with its unit.
        x: (n,) where the lines have their points.
        lines: policy -> (n,) values and intervals, drawn as a band (half width nan: no band).
        log: axes that are logarithmic, "", "x", "y" or "xy"; y only if the lines span enough.
        levels: name -> a value that does not depend on x, drawn across the panel.
        points: name -> (x, value): what lies beside the lines.
        marks: policy -> an x at which something happens to it, drawn as a line across.
        x_ticks: x -> what stands there; None: as matplotlib finds good.
    """

    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[Interval]]
    log: str = ""
    levels: Mapping[str, Interval] = field(default_factory=dict)
    points: Mapping[str, tuple[float, Interval]] = field(default_factory=dict)
    marks: Mapping[str, float] = field(default_factory=dict)
    x_ticks: Mapping[float, str] | None = None


def jct_cdf(jct_s: Mapping[str, Floats]) -> Figure:
    """Share of requests completed within a time, per policy; the time on a log axis for the tail.

    Args:
        jct_s: policy -> (n,) seconds, all replications together.
    """
    figure, (axes,) = new_figure()
    levels = np.linspace(0, 1, CURVE_POINTS)
    curves = {policy: np.quantile(values, levels) for policy, values in jct_s.items() if len(values)}
    handles = _lines(axes, {policy: (points, levels) for policy, points in curves.items()})
    positive = np.concatenate(list(jct_s.values())) if jct_s else np.empty(0)
    if len(positive) and positive.min() > 0 and positive.max() / positive.min() >= LOG_FROM:
        log_axis(axes, "x", float(positive.min()), float(positive.max()))
    axes.set_xlabel("job completion time (s)")
    axes.set_ylabel("share of requests completed")
    axes.set_ylim(0, 1.01)
    _legend(figure, handles)
    return figure


def bars(panels: list[Bars]) -> Figure:
    """Panels side by side, one bar a policy, with its value and 95% interval."""
    policies = list(panels[0].values)
    look = looks(policies)
    called = {policy: fill(text, BESIDE) for policy, text in labels(policies).items()}
    lines = max(2, *(text.count("\n") + 1 for text in called.values()))
    figure, all_axes = new_figure(len(panels), height=0.45 + 0.053 * lines * len(policies), sharey=True)
    places = np.arange(len(policies))[::-1]
    for axes, panel in zip(all_axes, panels, strict=True):
        means = np.array([panel.values[policy].mean for policy in policies])
        halves = np.array([panel.values[policy].half_width for policy in policies])
        shown = np.nan_to_num(means)
        axes.barh(places, shown, color=[look[policy].colour for policy in policies], height=0.66)
        known = np.isfinite(halves) & (halves > 0)
        axes.errorbar(
            shown[known],
            places[known],
            xerr=halves[known],
            fmt="none",
            ecolor="black",
            elinewidth=0.9,
            capsize=2,
        )
        wide = np.nan_to_num(halves)
        low, high = float(np.min(shown - wide, initial=0.0)), float(np.max(shown + wide, initial=0.0))
        span = high - low or 1.0
        for place, mean, half in zip(places, means, wide, strict=True):
            text = "none" if np.isnan(mean) else (f"{mean:,.0f}" if mean >= 1000 else f"{mean:.3g}")
            end = max(np.nan_to_num(mean) + half, 0.0)
            axes.text(end + 0.03 * span, place, text, va="center", fontsize=7)
        axes.set_xlim(low, high + 0.35 * span)
        title = panel.title if len(panel.title) < BESIDE else panel.title.replace(" (", "\n(")
        axes.set_xlabel(f"{title}\n({panel.better} is better)" if panel.better else title)
        axes.set_yticks(places, [called[policy] for policy in policies])
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=4)
    return figure


def ttft_by_hit_share(found: Mapping[str, Sequence[tuple[Floats, Floats]]]) -> Curves:
    """Mean TTFT of the requests by the share of their prompt that the prefix cache held.

    Args:
        found: policy -> a pair (hit share between 0 and 1, TTFT in seconds), (n,) each, a replication;
            a request that was never admitted is nan in both.
    """
    means = {name: np.array([_mean_in_bins(*run) for run in runs]) for name, runs in found.items()}
    some = np.flatnonzero(np.any([np.isfinite(table).any(axis=0) for table in means.values()], axis=0))
    # A replication without such requests tells nothing about them; the others do.
    lines = {
        name: [t_interval(column[np.isfinite(column)]) for column in table.T[some]]
        for name, table in means.items()
    }
    ends = [f"{100 * end:g}" for end in HIT_SHARES]
    called = ["0", *(f"{low}–{high}" for low, high in zip(["0", *ends[:-1]], ends, strict=True))]
    return Curves(
        "of the prompt found in the prefix cache (%)",
        "mean TTFT (s)",
        list(range(len(some))),
        lines,
        log="y",
        x_ticks={place: called[i] for place, i in enumerate(some)},
    )


def _mean_in_bins(share: Floats, values: Floats) -> Floats:
    """Mean of the values with a share of 0 and of those up to each of ``HIT_SHARES``; nan where there are none."""
    place = np.where(share > 0, 1 + np.searchsorted(HIT_SHARES, share), 0)
    known = np.isfinite(share) & np.isfinite(values)
    count = np.bincount(place[known], minlength=len(HIT_SHARES) + 1)
    total = np.bincount(place[known], values[known], minlength=len(HIT_SHARES) + 1)
    return np.asarray(np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0))


def curves(panels: Sequence[Curves], rows: int = 1) -> Figure:
    """Panels of lines with bands, row by row; a policy has one look and one entry in the legend.

    Panels of one row that show the same thing share its axis and its label, and so do those of a column.
    """
    columns = len(panels) // rows
    alike_x = all(panel.x_label == panels[i % columns].x_label for i, panel in enumerate(panels))
    alike_y = all(panel.y_label == panels[i - i % columns].y_label for i, panel in enumerate(panels))
    one_x = columns > 1 and len({panel.x_label for panel in panels}) == 1
    figure, grid = new_figure(
        columns,
        height=(0.6 if columns > 1 else 0.85) * rows + 0.1,
        rows=rows,
        sharex="col" if alike_x else False,
        sharey="row" if alike_y else False,
    )
    names = list(dict.fromkeys(name for p in panels for name in (*p.lines, *p.levels, *p.points)))
    look = looks(names)
    handles: dict[str, Any] = {}
    for i, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        _draw(axes, panel, look, handles)
        if "x" in panel.log:
            log_axis(axes, "x", min(panel.x), max(panel.x))
        drawn = [v.mean for values in panel.lines.values() for v in values]
        # What spans little is read more easily off an even axis.
        if "y" in panel.log and max(drawn) >= LOG_Y_FROM * min(drawn) > 0:
            log_axis(axes, "y", min(drawn), max(drawn))
        if panel.x_ticks is not None:
            axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()))
            axes.xaxis.set_minor_locator(NullLocator())
        if not one_x and (not alike_x or i >= len(panels) - columns):
            axes.set_xlabel(panel.x_label)
        if not alike_y or i % columns == 0:
            axes.set_ylabel(panel.y_label)
    if one_x:
        figure.supxlabel(panels[0].x_label, fontsize=matplotlib.rcParams["axes.labelsize"])
    _legend(figure, {name: handles[name] for name in names})
    return figure


def _draw(axes: Axes, panel: Curves, look: Mapping[str, Look], handles: dict[str, Any]) -> None:
    """What a panel shows; the first drawing of each name goes to ``handles``."""
    for name, level in panel.levels.items():
        line = axes.axhline(level.mean, linewidth=1.0, color=look[name].colour, linestyle=look[name].dash)
        handles.setdefault(name, line)
        if level.half_width > 0:
            axes.axhspan(level.low, level.high, alpha=0.13, linewidth=0, color=look[name].colour)
    for name, values in panel.lines.items():
        mean, half = (np.array([getattr(value, key) for value in values]) for key in ("mean", "half_width"))
        (line,) = axes.plot(panel.x, mean, linewidth=1.1, **look[name].line)
        handles.setdefault(name, line)
        colour = look[name].colour
        axes.fill_between(panel.x, mean - half, mean + half, alpha=0.15, linewidth=0, color=colour)
    for name, x in panel.marks.items():
        axes.axvline(x, linewidth=0.8, color=look[name].colour, linestyle=look[name].dash)
    for name, (x, value) in panel.points.items():
        half_width = value.half_width if value.half_width > 0 else None
        keys: Any = {"markersize": 4, "linestyle": "none", "elinewidth": 0.8, "zorder": 3}
        handles.setdefault(name, axes.errorbar(x, value.mean, half_width, **keys, **look[name].point))


def predicted_against_true(
    predictions: Mapping[str, Floats], true_tokens: NDArray[Any], errors: Mapping[str, float]
) -> Figure:
    """One panel a predictor: estimated against real output tokens, both on log axes.

    Args:
        predictions: predictor -> (n,) tokens.
        true_tokens: (n,) tokens.
        errors: predictor -> mean absolute error, tokens, for the title.
    """
    names = list(predictions)
    columns = min(2, len(names))
    rows = -(-len(names) // columns)
    height = (1.0 if columns == 1 else 0.64) * rows + 0.1
    # The key of the shades stands above.
    height += 0.2 * (len(true_tokens) > DOTS)
    figure, cells = new_figure(columns, rows=rows, height=height)
    shown, look = cells[: len(names)], looks(names)
    for empty in cells[len(names) :]:
        empty.set_axis_off()
    every = np.concatenate([true_tokens, *predictions.values()]).astype(np.float64)
    high = 1.1 * float(every.max(initial=1.0))
    low = 0.9 * max(0.5, float(every[every > 0].min(initial=high)))
    clouds = []
    for i, (axes, name) in enumerate(zip(shown, names, strict=True)):
        estimate = np.maximum(predictions[name], low)
        if len(true_tokens) <= DOTS:
            axes.scatter(true_tokens, estimate, s=5, alpha=0.6, color=look[name].colour, linewidths=0)
        else:
            extent = (np.log10(low), np.log10(high)) * 2
            hexagons: Any = {"gridsize": 32, "mincnt": 1, "xscale": "log", "yscale": "log", "linewidths": 0.1}
            clouds.append(axes.hexbin(true_tokens, estimate, extent=extent, cmap="viridis_r", **hexagons))
        axes.plot([low, high], [low, high], color="black", linewidth=0.8, linestyle=DASHES[1])
        for which in ("x", "y"):
            log_axis(axes, which, low, high, most=4)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_title(f"{name}:\nMAE {errors[name]:.4g} tokens")
        axes.tick_params(labelbottom=i + columns >= len(names), labelleft=i % columns == 0)
        if i + columns >= len(names):
            axes.set_xlabel("real (tokens)")
        if i % columns == 0:
            axes.set_ylabel("estimated (tokens)")
    if clouds:
        # One scale for all panels, so that their shades compare.
        norm = LogNorm(1, max(2.0, *(float(cloud.get_array().max()) for cloud in clouds)))
        for cloud in clouds:
            cloud.set_norm(norm)
        key = figure.colorbar(clouds[-1], ax=list(shown), label="requests in a cell", location="top")
        key.outline.set_visible(False)
        key.formatter = FuncFormatter(lambda value, _: f"{value:g}")
        key.ax.xaxis.set_minor_formatter(NullFormatter())
    return figure


def queue_length(arrival_s: Mapping[str, Floats], scheduled_s: Mapping[str, Floats]) -> Figure:
    """Requests that have arrived and not yet been scheduled, averaged over stretches of time, per policy.

    Args:
        arrival_s, scheduled_s: policy -> (n,) seconds of one run; nan where never scheduled.
    """
    figure, (axes,) = new_figure()
    policies = list(arrival_s)
    last = [np.nanmax(np.concatenate([arrival_s[p], scheduled_s[p]]), initial=0.0) for p in policies]
    edges = np.linspace(0, max([*last, 1e-9]), TIME_BINS + 1)
    middles = (edges[1:] + edges[:-1]) / 2
    waiting = {policy: mean_waiting(arrival_s[policy], scheduled_s[policy], edges) for policy in policies}
    handles = _lines(axes, {policy: (middles, values) for policy, values in waiting.items()})
    peak = max((float(values.max()) for values in waiting.values()), default=0.0)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("requests waiting")
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(0, max(1.0, peak * 1.05))
    _legend(figure, handles)
    return figure


def mean_waiting(arrival_s: Floats, scheduled_s: Floats, edges: Floats) -> Floats:
    """Time average of the requests waiting within each bin, (bins,), exact."""

    def integral(times: Floats) -> Floats:
        """Of how many have happened, from time 0 to each edge."""
        happened = np.sort(times[np.isfinite(times)])
        count = np.searchsorted(happened, edges, side="right")
        summed: Floats = np.concatenate([[0.0], np.cumsum(happened)])[count]
        return count * edges - summed

    area: Floats = np.diff(integral(arrival_s) - integral(scheduled_s))
    # The difference of two long sums may fall a rounding error below 0.
    return np.maximum(area / np.diff(edges), 0.0)


def _lines(axes: Axes, lines: Mapping[str, tuple[Floats, Floats]]) -> dict[str, Any]:
    """Draw lines of many points, with a few markers each, beside those of the others; their handles by name."""
    look, called = looks(list(lines)), labels(list(lines))
    handles: dict[str, Any] = {}
    for i, (name, (x, y)) in enumerate(lines.items()):
        step = max(1, len(x) // MARKERS_A_LINE)
        start = step * (i + 1) // (len(lines) + 1)
        keys: Any = {"linewidth": 1.0, "label": called[name], "markevery": (start, step), **look[name].line}
        (handles[name],) = axes.plot(x, y, **keys)
    return handles


def _legend(figure: Figure, handles: Mapping[str, Any]) -> None:
    """Above the axes, where it hides no line; the figure grows by the rows that it takes."""
    called = [fill(text, ABOVE) for text in labels(list(handles)).values()]
    longest = max((len(line) for text in called for line in text.split("\n")), default=1)
    across = max(1, min(len(called), 58 // (longest + 8)))
    figure.legend(list(handles.values()), called, loc="outside upper center", ncols=across)
    lines = max((text.count("\n") + 1 for text in called), default=1)
    rows = -(-len(called) // across) * lines
    figure.set_figheight(figure.get_figheight() + 0.13 * (rows - 1))
