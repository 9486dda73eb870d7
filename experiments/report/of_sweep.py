"""The report of a sweep's folder: the points of the grid, along its axes."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from experiments import plots
from experiments.compare import HIGHER, LOWER
from experiments.labels import labels
from experiments.plots import Curves
from experiments.report import svg
from experiments.report.page import Page, Picture, Section, Table
from experiments.report.sentences import BASELINE, PHRASES
from experiments.stats import Interval
from experiments.stress.answer import listed
from experiments.style import plot_style
from experiments.sweep.run import SCHEMA_VERSION, SUMMARY
from experiments.sweep.table import ERROR, PARQUET, Standing, standings, table_metrics
from experiments.table import BEST, NOISE, TITLES, cell
from traces.errors import InputError
from traces.parquet import read_table

# Panels of a figure: points that differ in other axes than the one that is drawn along.
MOST_PANELS = 6
LOG_FROM = 8
UNITS = {"mean_jct_s": "mean JCT (s)", "p99_jct_s": "p99 JCT (s)", "mean_ttft_s": "mean TTFT (s)"} | {
    "output_throughput": "throughput (tokens/s)",
    "padding_ratio": "padding ratio",
    "occupancy": "batch occupancy",
    "goodput": "goodput (requests/s)",
}

# What stands under an axis along which a setting varies; what is not here has no unit.
AXES = {
    "request_rate": "request rate (requests/s)",
    "num_prompts": "requests in the run",
    "batch_size": "batch size (requests)",
    "batch_timeout_s": "batch timeout (s)",
    "max_num_seqs": "most requests at once",
    "max_num_batched_tokens": "most tokens in a step",
    "max_model_len": "longest request (tokens)",
    "block_size": "KV block size (tokens)",
    "num_blocks": "KV cache (blocks)",
    "long_prefill_token_threshold": "long prefill threshold (tokens)",
    "max_concurrency": "most users at once",
    "think_s": "think time (s)",
    "cv": "coefficient of variation of the gaps",
    "estimate_cost_s": "cost of an estimate (s)",
    "estimate_cost_per_token_s": "cost of an estimate (s a prompt token)",
    "horizon_s": "horizon (s)",
}


def page_of(folder: Path) -> Page:
    """The page of a sweep.

    Raises:
        InputError: the results are missing, as some cells have not run, or are of another version.
    """
    summary = _read_summary(folder)
    if not (folder / PARQUET).is_file():
        raise InputError(
            f"{folder} has no {PARQUET}: some cells have not run; run estp sweep with --out {folder}"
        )
    table, _ = read_table(folder / PARQUET, "sweep results")
    metrics = table_metrics(table)
    by_metric = {metric: list(standings(table, metric)) for metric in metrics}
    failed = table.filter(pl.col(ERROR).is_not_null())
    plan = yaml.safe_dump(as_yaml(summary), sort_keys=False, allow_unicode=True, width=100)
    seeds = table["seed"].n_unique()
    return Page(
        title=f"Sweep of {Path(summary['source']).name}",
        about=f"{len(table)} cells, {seeds} seed{'s' if seeds > 1 else ''} a point, simulated by estp sweep",
        findings=findings(table, by_metric) + _failures(failed),
        caveats=_caveats(table),
        sections=[
            Section("Along the grid", _left_out(by_metric), _pictures(by_metric)),
            Section("Points of the grid", tables=[_points(table, by_metric)] if metrics else []),
            *([Section("Cells that failed", tables=[_failed(failed)])] if len(failed) else []),
            Section("Settings", ["The sweep as YAML:"], code=plan, tables=[_inputs(summary)]),
        ],
        commands=[f"estp sweep {shlex.quote(summary['source'])} --out {shlex.quote(str(folder))}"],
    )


def findings(table: pl.DataFrame, by_metric: Mapping[str, Sequence[Standing]]) -> list[str]:
    """What holds over the points of the grid: who is best where, and where that is within noise."""
    if table["policy"].n_unique() < 2:
        return [_range(metric, points) for metric, points in by_metric.items()]
    judged = [point for points in by_metric.values() for point in points if point.best]
    if judged and not any(point.known for point in judged):
        return ["Each point was run once, so no policy can be told from another: add replications."]
    found = [_best(metric, points) for metric, points in by_metric.items() if metric in PHRASES]
    return [found[0], *_against_baseline(by_metric["mean_jct_s"]), *found[1:]] if found else []


def as_yaml(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep's settings and grid as its YAML file may have had them."""
    grid = {
        axis: [value[axis] if list(value) == [axis] else value for value in values]
        for axis, values in summary["grid"].items()
    }
    return {**summary["settings"], **({"grid": grid} if grid else {})}


def _best(metric: str, points: Sequence[Standing]) -> str:
    side = "lowest" if LOWER.fullmatch(metric) else "highest"
    alone: dict[str, int] = {}
    alike = sum(point.best is None for point in points)
    for point in points:
        if point.best and point.known and not point.within:
            alone[point.best] = alone.get(point.best, 0) + 1
    called = labels([*dict.fromkeys(policy for point in points for policy in point.values)])
    parts = [
        f"{called[policy]} has the {side} at {alone[policy]} of {len(points)} points, beyond noise"
        for policy in sorted(alone, key=lambda policy: -alone[policy])
    ]
    shared = len(points) - alike - sum(alone.values())
    if shared:
        parts.append(f"at {shared} the best cannot be told from another policy")
    if alike:
        parts.append(f"at {alike} all are alike")
    return f"{_phrase(metric)}: {'; '.join(parts)}."


def _against_baseline(points: Sequence[Standing]) -> list[str]:
    """How often, and where most, each policy's mean JCT differs from that of FCFS."""
    found = []
    policies = list(dict.fromkeys(policy for point in points for policy in point.values))
    called = labels(policies)
    for policy in policies if BASELINE in policies else ():
        both = [point for point in points if point.samples[policy] and point.samples.get(BASELINE)]
        if policy == BASELINE or not both:
            continue
        gaps = [(point, point.difference(policy, BASELINE)) for point in both]
        lower = [(point, gap) for point, gap in gaps if not gap.includes_zero and gap.mean < 0]
        higher = [(point, gap) for point, gap in gaps if not gap.includes_zero and gap.mean > 0]
        parts = [_most(side, part) for side, part in (("lower", lower), ("higher", higher)) if part]
        left = len(both) - len(lower) - len(higher)
        parts += [f"not to be told from it at {left}"] if left else []
        text = "; ".join(parts)
        found.append(
            f"Against {BASELINE}, {called[policy]}'s mean job completion time is, of {len(both)} points, {text}."
        )
    return found


def _most(side: str, gaps: Sequence[tuple[Standing, Interval]]) -> str:
    def share(point: Standing, gap: Interval) -> float:
        return 100 * abs(gap.mean) / point.values[BASELINE].mean

    point, gap = max(gaps, key=lambda one: share(*one))
    where = ", ".join(f"{name}={_text(value)}" for name, value in point.point.items() if value is not None)
    at = f" (at {where})" if where else ""
    return f"{side} at {len(gaps)}, most by {share(point, gap):.0f}%{at}"


def _range(metric: str, points: Sequence[Standing]) -> str:
    values = [one for point in points for one in point.values.values() if not math.isnan(one.mean)]
    if not values:
        return f"{_phrase(metric)}: unknown, as every cell failed."
    low, high = min(values, key=lambda one: one.mean), max(values, key=lambda one: one.mean)
    return f"{_phrase(metric)}: from {cell(low)} to {cell(high)} over {len(points)} points of the grid."


def _phrase(metric: str) -> str:
    name, unit = PHRASES.get(metric, (TITLES[metric], ""))
    return f"{name[0].upper()}{name[1:]}{f' ({unit.strip()})' if unit in (' s', ' tokens/s') else ''}"


def _failures(failed: pl.DataFrame) -> list[str]:
    if not len(failed):
        return []
    policies = listed(list(dict.fromkeys(failed["policy"].to_list())))
    return [
        f"{len(failed)} cells failed, all under {policies}; it is left out of what is said of those points."
    ]


def _caveats(table: pl.DataFrame) -> list[str]:
    rejected = int(table["rejected"].fill_null(0).to_numpy().max()) if "rejected" in table.columns else 0
    found = [
        "All policies of a point meet the same requests; differences are judged by 95% intervals of paired seeds.",
        "With many points some differences look real by chance: one in twenty, where there are none.",
    ]
    return (
        [*found, f"Up to {rejected} requests of a cell did not fit the server and were rejected."]
        if rejected
        else found
    )


def _points(table: pl.DataFrame, by_metric: Mapping[str, Sequence[Standing]]) -> Table:
    called = labels(list(dict.fromkeys(table["policy"].to_list())))
    axes = list(next(iter(by_metric.values()))[0].point)
    rows = []
    for points in zip(*by_metric.values(), strict=True):
        for policy in points[0].values:
            row = [_text(value) for value in points[0].point.values()]
            rows.append([*row, called[policy], *(_marked(point, policy) for point in points)])
    notes = [f"{BEST} best policy of its point; {NOISE} within noise of it."]
    head = [*axes, "policy", *(TITLES[metric] for metric in by_metric)]
    return Table("Means over the seeds, with 95% intervals", head, rows, len(axes) + 1, notes)


def _marked(point: Standing, policy: str) -> str:
    noise = policy in point.within and point.known
    return cell(point.values[policy]) + (f" {BEST}" if policy == point.best else f" {NOISE}" if noise else "")


def _failed(failed: pl.DataFrame) -> Table:
    names = failed.columns[: failed.columns.index("seed") + 1]
    rows = [[_text(row[name]) for name in (*names, ERROR)] for row in failed.iter_rows(named=True)]
    return Table("With the sentence that says why", [*names, ERROR], rows, len(names) + 1)


def _inputs(summary: Mapping[str, Any]) -> Table:
    rows = [
        [one["path"], _text(one.get("requests")), f"SHA-256 {one['sha256']}"] for one in summary["inputs"]
    ]
    return Table("Input files", ["file", "requests", "content"], rows, 3)


def _pictures(by_metric: Mapping[str, Sequence[Standing]]) -> list[Picture]:
    points = next(iter(by_metric.values()), [])
    axis = _axis_to_draw_along(points)
    if axis is None:
        return []
    pictures = []
    with plot_style():
        for metric, standing in by_metric.items():
            panels = {
                other: panel
                for other, panel in _panels(metric, standing, axis).items()
                if not _all_zero(chain.from_iterable(panel.lines.values()))
            }
            caption = f"{UNITS[metric]} along {axis}, with 95% intervals"
            if len(panels) > MOST_PANELS:
                caption += f" (the first {MOST_PANELS} of {len(panels)} combinations of the other settings)"
                panels = dict(list(panels.items())[:MOST_PANELS])
            for i, (other, panel) in enumerate(panels.items()):
                about = f"{caption}; {other}" if other else caption
                figure = plots.curves([panel])
                pictures.append(Picture(about, svg.from_figure(figure, f"{metric}-{i}", about)))
    return pictures


def _all_zero(values: Iterable[Interval]) -> bool:
    known = [value.mean for value in values if not math.isnan(value.mean)]
    return bool(known) and not any(known)


def _left_out(by_metric: Mapping[str, Sequence[Standing]]) -> list[str]:
    """Why some plots are missing."""
    found = []
    for metric, points in by_metric.items():
        zero = sum(_all_zero(point.values.values()) for point in points)
        if zero:
            where = "everywhere" if zero == len(points) else f"at {zero} of {len(points)} points"
            why = ", for continuous batching pads nothing" if metric == "padding_ratio" else ""
            name = PHRASES.get(metric, (TITLES[metric], ""))[0]
            found.append(f"The {name} is 0 {where}{why}; plots of nothing but zeros are left out.")
    return found


def _axis_to_draw_along(points: Sequence[Standing]) -> str | None:
    """The first setting that is a number with several values, else the first with several values at all."""
    values = {name: {point.point[name] for point in points} for name in (points[0].point if points else ())}
    several = {name: found for name, found in values.items() if len(found) > 1}
    numbers = [name for name, found in several.items() if all(_is_number(value) for value in found)]
    return next(iter([*numbers, *several]), None)


def _panels(metric: str, standing: Sequence[Standing], axis: str) -> dict[str, Curves]:
    groups: dict[str, list[Standing]] = {}
    for point in standing:
        other = ", ".join(
            f"{name}={_text(v)}" for name, v in point.point.items() if name != axis and v is not None
        )
        groups.setdefault(other, []).append(point)
    return {other: _curves(metric, points, axis) for other, points in groups.items()}


def _curves(metric: str, points: Sequence[Standing], axis: str) -> Curves:
    numeric = all(_is_number(point.point[axis]) for point in points)
    if numeric:
        points = sorted(points, key=lambda point: float(point.point[axis]))
    x = [float(point.point[axis]) if numeric else float(i) for i, point in enumerate(points)]
    policies = dict.fromkeys(policy for point in points for policy in point.values)
    unknown = Interval(math.nan, math.nan, "none", 0)
    lines = {policy: [point.values.get(policy, unknown) for point in points] for policy in policies}
    wide = numeric and min(x) > 0 and max(x) / min(x) >= LOG_FROM
    judged = LOWER.fullmatch(metric) or HIGHER.fullmatch(metric)
    side = "" if not judged else "\n(lower is better)" if LOWER.fullmatch(metric) else "\n(higher is better)"
    ticks = {value: _tick(point.point[axis]) for value, point in zip(x, points, strict=True)}
    few = len(x) <= 8 and not (numeric and np.ptp(x) == 0)
    return Curves(
        AXES.get(axis, axis),
        UNITS[metric] + side,
        x,
        lines,
        log="xy" if wide else "y",
        x_ticks=ticks if few else None,
    )


def _tick(value: Any) -> str:
    return _text(value).replace(",", ",\n")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _read_summary(folder: Path) -> dict[str, Any]:
    path = folder / SUMMARY
    try:
        summary = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(summary, dict) or summary.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path} is no sweep.json of estp sweep, version {SCHEMA_VERSION}")
    return summary
