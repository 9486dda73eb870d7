"""The table of a sweep: a row a cell, and over replications what can be told apart."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType
from typing import Any

import polars as pl

from experiments.compare import HIGHER, LOWER
from experiments.labels import labels
from experiments.stats import Interval, paired_interval, t_interval
from experiments.sweep.plan import SETTINGS, Cell, Plan
from experiments.table import BEST, NOISE, TITLES, cell
from traces.files import atomic_path
from traces.parquet import write_table

PARQUET, CSV = "results.parquet", "results.csv"
KEYS = ("policy", "seed")
ERROR = "error"


@dataclass(frozen=True)
class Standing:
    """How the policies of one point of the grid stand in one metric.

    Attributes:
        point: the settings of the point, without policy and seed.
        samples: policy -> seed -> value; empty where the policy failed at one of the point's seeds, as
            the rest would be the mean of other requests.
        values: policy -> its interval over the seeds (half width nan for a single one).
        best: the policy with the best mean; None where nothing is better or all are alike.
        within: policies whose paired difference from the best includes 0.
        known: whether there are replications to tell noise from.
    """

    point: dict[str, Any]
    samples: dict[str, dict[int, float]]
    values: dict[str, Interval]
    best: str | None
    within: list[str]
    known: bool

    def difference(self, policy: str, baseline: str) -> Interval:
        """The paired interval of ``policy - baseline``."""
        values, base = self.samples[policy], self.samples[baseline]
        both = [seed for seed in values if seed in base]
        return paired_interval([values[seed] for seed in both], [base[seed] for seed in both])


def results_table(plan: Plan, cells: Sequence[Cell], outcomes: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """A row a cell: what varied, the metrics (null for a failed cell), and ``error``."""
    columns = [
        pl.Series(name, [cell.varied[name] for cell in cells], dtype=_dtype(name)) for name in plan.varied()
    ]
    found = [outcome.get("metrics") for outcome in outcomes]
    names = next((list(metrics) for metrics in found if metrics), [])
    for name in names:
        values = [None if metrics is None else _number(metrics[name]) for metrics in found]
        whole = all(isinstance(value, int) for value in values if value is not None)
        columns.append(pl.Series(name, values, dtype=pl.Int64 if whole else pl.Float64, strict=False))
    errors = [outcome.get("error") for outcome in outcomes]
    return pl.DataFrame([*columns, pl.Series(ERROR, errors, dtype=pl.String)])


def write_results(table: pl.DataFrame, folder: Path) -> None:
    """Write the table as Parquet and CSV.

    Raises:
        InputError: the folder cannot be written.
    """
    write_table(table, folder / PARQUET, {"kind": "sweep results", "units": {"*_s": "seconds"}})
    with atomic_path(folder / CSV) as temporary:
        table.write_csv(temporary)


def standings(table: pl.DataFrame, metric: str) -> Iterator[Standing]:
    """How the policies stand at each point of the grid; one that failed there stands nowhere."""
    names = table.columns[: table.columns.index("seed")]
    axes = [name for name in names if name not in KEYS]
    for key, part in table.group_by(axes, maintain_order=True) if axes else [((), table)]:
        yield _standing(dict(zip(axes, key, strict=True)), part, metric)


def render(table: pl.DataFrame, metrics: Sequence[str] | None = None, rows: int = 60) -> str:
    """The points of the grid and their policies, with the best marked ``*`` and what is within noise ``~``."""
    names = list(metrics or table_metrics(table))
    by_metric = [list(standings(table, name)) for name in names]
    if not by_metric:
        return "no cell has a result"
    called = labels(list(dict.fromkeys(table["policy"].to_list())))
    head = [*by_metric[0][0].point, "policy", *(TITLES[name] for name in names)]
    lines = [head]
    for parallel_points in zip(*by_metric, strict=True):
        for policy in parallel_points[0].values:
            point = [_text(value) for value in parallel_points[0].point.values()]
            lines.append([*point, called[policy], *(_marked(one, policy) for one in parallel_points)])
    left = len(lines) - 1 - rows
    text = _aligned(lines[: rows + 1], len(head) - len(names))
    more = [f"... and {left} more rows: see {CSV}"] if left > 0 else []
    return "\n".join([*text, *more, "", *_legend([one for points in by_metric for one in points])])


def table_metrics(table: pl.DataFrame) -> list[str]:
    """What the printed table shows: padding where there is some, goodput where bounds were given."""
    metrics = ["mean_jct_s", "p99_jct_s", "mean_ttft_s", "output_throughput"]
    if "padding_ratio" not in table.columns:
        return []
    metrics.append("padding_ratio" if (table["padding_ratio"].fill_null(0) > 0).any() else "occupancy")
    goodput = table["goodput"].drop_nulls()
    return [*metrics, "goodput"] if len(goodput) and not goodput.is_nan().all() else metrics


def _standing(point: dict[str, Any], part: pl.DataFrame, metric: str) -> Standing:
    seeds = part["seed"].unique()
    done = part.filter(pl.col(ERROR).is_null())
    samples: dict[str, dict[int, float]] = {
        policy: {} for policy in part["policy"].unique(maintain_order=True)
    }
    for policy, rows in done.group_by("policy", maintain_order=True):
        if len(rows) == len(seeds):
            samples[str(policy[0])] = dict(zip(rows["seed"].to_list(), rows[metric].to_list(), strict=True))
    values = {policy: t_interval(list(by_seed.values())) for policy, by_seed in samples.items()}
    means = {policy: one.mean for policy, one in values.items() if not math.isnan(one.mean)}
    sides = (LOWER.fullmatch(metric), HIGHER.fullmatch(metric))
    if not any(sides) or len(set(means.values())) < 2:
        return Standing(point, samples, values, None, [], True)
    best = (min if sides[0] else max)(means, key=lambda policy: means[policy])
    bare = Standing(point, samples, values, best, [], True)
    gaps = {policy: bare.difference(policy, best) for policy in means if policy != best}
    known = all(not math.isnan(gap.half_width) for gap in gaps.values())
    return replace(bare, within=[policy for policy, gap in gaps.items() if gap.includes_zero], known=known)


def _marked(standing: Standing, policy: str) -> str:
    noise = policy in standing.within and standing.known
    mark = BEST if policy == standing.best else NOISE if noise else " "
    return f"{cell(standing.values[policy])} {mark}"


def _aligned(lines: list[list[str]], left: int) -> list[str]:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    texts = []
    for line in lines:
        padded = [text.ljust(width) for text, width in zip(line[:left], widths[:left], strict=True)]
        padded += [text.rjust(width) for text, width in zip(line[left:], widths[left:], strict=True)]
        texts.append("  ".join(padded).rstrip())
    return [texts[0], "-" * max(map(len, texts)), *texts[1:]]


def _legend(all_standings: Sequence[Standing]) -> list[str]:
    judged = [one for one in all_standings if one.best]
    if not judged:
        return []
    lines = [f"{BEST} best policy of its point of the grid"]
    if any(one.known for one in judged):
        lines[0] += f"   {NOISE} within noise of it (the 95% interval of the paired difference includes 0)"
        count = max(interval.samples for one in judged for interval in one.values.values())
        lines.append(f"± is a 95% t interval over {count} replications, alike for all policies.")
    else:
        lines.append("One run a point tells nothing about noise: add replications before ranking policies.")
    return lines


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> Any:
    """JSON has no nan: `null` stands for it."""
    return math.nan if value is None else value


def _dtype(setting: str) -> Any:
    hint = SETTINGS[setting]
    kinds = [kind for kind in typing.get_args(hint) if kind is not NoneType] or [hint]
    return {int: pl.Int64, float: pl.Float64, bool: pl.Boolean}.get(kinds[0], pl.String)
