"""The plots of a comparison: each takes numbers and gives a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from experiments.labels import labels
from experiments.stats import Interval, t_interval
from experiments.style import colours, dashes, markers, new_figure

Floats = NDArray[np.float64]
CURVE_POINTS = 400
TIME_BINS = 100
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
    tint, dash, called = colours(list(jct_s)), dashes(list(jct_s)), labels(list(jct_s))
    levels = np.linspace(0, 1, CURVE_POINTS)
    for policy, values in jct_s.items():
        if len(values):
            points = np.quantile(values, levels)
            axes.plot(points, levels, label=called[policy], color=tint[policy], linestyle=dash[policy])
    positive = np.concatenate(list(jct_s.values())) if jct_s else np.empty(0)
    if len(positive) and positive.min() > 0 and positive.max() / positive.min() >= LOG_FROM:
        _log_axis(axes, "x", float(positive.min()), float(positive.max()))
    axes.set_xlabel("job completion time (s)")
    axes.set_ylabel("share of requests completed")
    axes.set_ylim(0, 1.01)
    _legend(figure, list(jct_s))
    return figure


def bars(panels: list[Bars]) -> Figure:
    """Panels side by side, one bar a policy, with its value and 95% interval."""
    policies = list(panels[0].values)
    height = 0.42 + 0.105 * len(policies)
    figure, all_axes = new_figure(
        len(panels), width=1.0 if len(panels) < 3 else 1.5, height=height, sharey=True
    )
    tint, called = colours(policies), labels(policies)
    places = np.arange(len(policies))[::-1]
    for axes, panel in zip(all_axes, panels, strict=True):
        means = np.array([panel.values[policy].mean for policy in policies])
        halves = np.array([panel.values[policy].half_width for policy in policies])
        shown = np.nan_to_num(means)
        axes.barh(places, shown, color=[tint[policy] for policy in policies], height=0.66)
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
        top = float(np.max(shown + np.nan_to_num(halves), initial=0.0)) or 1.0
        for place, mean, half in zip(places, means, np.nan_to_num(halves), strict=True):
            text = "none" if np.isnan(mean) else (f"{mean:,.0f}" if mean >= 1000 else f"{mean:.3g}")
            axes.text(np.nan_to_num(mean) + half + 0.03 * top, place, text, va="center", fontsize=7)
        axes.set_xlim(0, 1.3 * top)
        axes.set_xlabel(f"{panel.title}\n({panel.better} is better)" if panel.better else panel.title)
        axes.set_yticks(places, [called[policy].replace(" (", "\n(") for policy in policies])
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
    look = {"color": colours(names), "linestyle": dashes(names), "marker": markers(names)}
    handles: dict[str, Any] = {}
    for i, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        _draw(axes, panel, look, handles)
        if "x" in panel.log:
            _log_axis(axes, "x", min(panel.x), max(panel.x))
        drawn = [v.mean for values in panel.lines.values() for v in values]
        # What spans little is read more easily off an even axis.
        if "y" in panel.log and max(drawn) >= LOG_Y_FROM * min(drawn) > 0:
            _log_axis(axes, "y", min(drawn), max(drawn))
        if panel.x_ticks is not None:
            axes.set_xticks(list(panel.x_ticks), list(panel.x_ticks.values()))
            axes.xaxis.set_minor_locator(NullLocator())
        if not one_x and (not alike_x or i >= len(panels) - columns):
            axes.set_xlabel(panel.x_label)
        if not alike_y or i % columns == 0:
            axes.set_ylabel(panel.y_label)
    if one_x:
        figure.supxlabel(panels[0].x_label, fontsize=matplotlib.rcParams["axes.labelsize"])
    _legend(figure, names, [handles[name] for name in names])
    return figure


def _draw(axes: Axes, panel: Curves, look: Mapping[str, Mapping[str, Any]], handles: dict[str, Any]) -> None:
    """What a panel shows; the first drawing of each name goes to ``handles``."""

    def style(name: str, *keys: str) -> Any:
        return {key: look[key][name] for key in ("color", *keys)}

    for name, level in panel.levels.items():
        line = axes.axhline(level.mean, linewidth=1.0, **style(name, "linestyle"))
        handles.setdefault(name, line)
        if level.half_width > 0:
            axes.axhspan(level.low, level.high, alpha=0.13, linewidth=0, **style(name))
    for name, values in panel.lines.items():
        mean, half = (np.array([getattr(value, key) for value in values]) for key in ("mean", "half_width"))
        (line,) = axes.plot(panel.x, mean, markersize=3, linewidth=1.1, **style(name, "linestyle", "marker"))
        handles.setdefault(name, line)
        axes.fill_between(panel.x, mean - half, mean + half, alpha=0.15, linewidth=0, **style(name))
    for name, x in panel.marks.items():
        axes.axvline(x, linewidth=0.8, **style(name, "linestyle"))
    for name, (x, value) in panel.points.items():
        half_width = value.half_width if value.half_width > 0 else None
        keys: Any = {
            "markersize": 4,
            "linestyle": "none",
            "elinewidth": 0.8,
            "zorder": 3,
            "markeredgewidth": 0,
        }
        drawn = axes.errorbar(x, value.mean, half_width, **keys, **style(name, "marker"))
        handles.setdefault(name, drawn)


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
    figure, all_axes = new_figure(
        len(names), width=max(1.0, 0.62 * len(names)), height=0.95, sharex=True, sharey=True
    )
    tint = colours(names)
    low = max(1.0, float(true_tokens.min()))
    high = float(true_tokens.max())
    for name in names:
        inside = predictions[name][predictions[name] > 0]
        low = min(low, float(inside.min(initial=low)))
        high = max(high, float(inside.max(initial=high)))
    low, high = max(low, 0.5) * 0.9, high * 1.1
    clouds = []
    for axes, name in zip(all_axes, names, strict=True):
        estimate = np.maximum(predictions[name], low)
        if len(true_tokens) <= DOTS:
            axes.scatter(true_tokens, estimate, s=5, alpha=0.6, color=tint[name], linewidths=0)
        else:
            extent = (np.log10(low), np.log10(high)) * 2
            cells: Any = {"gridsize": 32, "mincnt": 1, "xscale": "log", "yscale": "log", "linewidths": 0.1}
            clouds.append(axes.hexbin(true_tokens, estimate, extent=extent, cmap="viridis_r", **cells))
        axes.plot([low, high], [low, high], color="black", linewidth=0.8, linestyle=(0, (4, 2)))
        for which in ("x", "y"):
            _log_axis(axes, which, low, high)
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_aspect("equal")
        axes.set_title(f"{name}: MAE {errors[name]:.4g} tokens")
        axes.set_xlabel("real output (tokens)")
    all_axes[0].set_ylabel("estimated output (tokens)")
    if clouds:
        # One scale for all panels, so that their shades compare.
        norm = LogNorm(1, max(2.0, *(float(cloud.get_array().max()) for cloud in clouds)))
        for cloud in clouds:
            cloud.set_norm(norm)
        key = figure.colorbar(clouds[-1], ax=list(all_axes), label="requests in a cell", shrink=0.8)
        key.outline.set_visible(False)
        key.formatter = FuncFormatter(lambda value, _: f"{value:g}")
        key.ax.yaxis.set_minor_formatter(NullFormatter())
    return figure


def queue_length(arrival_s: Mapping[str, Floats], scheduled_s: Mapping[str, Floats]) -> Figure:
    """Requests that have arrived and not yet been scheduled, averaged over stretches of time, per policy.

    Args:
        arrival_s, scheduled_s: policy -> (n,) seconds of one run; nan where never scheduled.
    """
    figure, (axes,) = new_figure()
    policies = list(arrival_s)
    tint, called = colours(policies), labels(policies)
    last = [np.nanmax(np.concatenate([arrival_s[p], scheduled_s[p]]), initial=0.0) for p in policies]
    edges = np.linspace(0, max([*last, 1e-9]), TIME_BINS + 1)
    peak = 0.0
    for policy in policies:
        waiting = mean_waiting(arrival_s[policy], scheduled_s[policy], edges)
        peak = max(peak, float(waiting.max()))
        # Solid: dashes are lost in a jagged line.
        axes.stairs(waiting, edges, baseline=None, label=called[policy], color=tint[policy], linewidth=1.0)
    axes.set_xlabel("time (s)")
    axes.set_ylabel("requests waiting")
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(0, max(1.0, peak * 1.05))
    _legend(figure, policies)
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


def _legend(figure: Figure, policies: list[str], handles: list[Any] | None = None) -> None:
    """Above the axes, where it hides no line; the figure grows by the rows that it takes."""
    called = labels(policies)
    longest = max((len(text) for text in called.values()), default=1)
    across = max(1, min(len(policies), 58 // (longest + 6)))
    if handles is None:
        figure.legend(loc="outside upper center", ncols=across)
    else:
        names = [called[policy] for policy in policies]
        figure.legend(handles, names, loc="outside upper center", ncols=across, columnspacing=1.2)
    rows = -(-len(policies) // across)
    figure.set_figheight(figure.get_figheight() + 0.13 * (rows - 1))


def _log_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """A log axis whose ticks are plain numbers, with enough of them where it spans little."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    wanted = (1, 2, 5) if high / low < 50 else (1, 3) if high / low < 1000 else (1,)
    axis.set_major_locator(LogLocator(base=10, subs=wanted, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
