"""The one table of a comparison on the terminal, and the sentences under it."""

from __future__ import annotations

import math

from experiments.compare import Comparison
from experiments.labels import labels
from experiments.stats import Interval

TITLES = {
    "mean_jct_s": "mean JCT s",
    "p99_jct_s": "p99 JCT s",
    "mean_ttft_s": "mean TTFT s",
    "mean_slowdown": "slowdown",
    "output_throughput": "tokens/s",
    "request_throughput": "requests/s",
    "padding_ratio": "padding",
    "occupancy": "occupancy",
    "goodput": "goodput/s",
}
BEST, NOISE = "*", "~"


def table_metrics(comparison: Comparison) -> list[str]:
    """What the table shows: padding where there may be some, goodput where bounds were given."""
    metrics = ["mean_jct_s", "p99_jct_s", "mean_ttft_s", "mean_slowdown", "output_throughput"]
    padded = any(
        comparison.interval(policy, "padding_ratio").mean > 0 for policy in comparison.setup.policies
    )
    metrics.append("padding_ratio" if padded else "occupancy")
    if any(not math.isnan(comparison.interval(p, "goodput").mean) for p in comparison.setup.policies):
        metrics.append("goodput")
    return metrics


def render(comparison: Comparison) -> str:
    """Policies by row, metrics by column, the best marked ``*`` and what is within noise of it ``~``."""
    policies, metrics = comparison.setup.policies, table_metrics(comparison)
    called = labels(policies)
    rows = [["policy", *(TITLES[metric] for metric in metrics)]]
    marked: dict[str, tuple[str, list[str], bool]] = {}
    for metric in metrics:
        marked[metric] = judge(comparison, metric)
    for policy in policies:
        cells = [called[policy]]
        for metric in metrics:
            best, within, known = marked[metric]
            mark = BEST if policy == best else NOISE if policy in within and known else " "
            cells.append(f"{cell(comparison.interval(policy, metric))} {mark}")
        rows.append(cells)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        first = row[0].ljust(widths[0])
        lines.append(
            "  ".join([first, *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        )
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join([*lines, *_notes(comparison, marked)])


def judge(comparison: Comparison, metric: str) -> tuple[str, list[str], bool]:
    """The best policy ("" if none), those that cannot be told from it, and whether noise is known at all."""
    best = comparison.best(metric)
    if best is None:
        return "", [], True
    others = [policy for policy in comparison.setup.policies if policy != best]
    gaps = {policy: comparison.difference(policy, best, metric) for policy in others}
    known = all(not math.isnan(gap.half_width) for gap in gaps.values())
    return best, [policy for policy, gap in gaps.items() if gap.includes_zero], known


def cell(interval: Interval) -> str:
    """``12.3 ±0.4``: the half width in two digits, the value to the same place."""
    if math.isnan(interval.mean):
        return "-"
    if math.isnan(interval.half_width) or interval.half_width <= 0:
        return f"{interval.mean:.4g}" if abs(interval.mean) < 10_000 else f"{interval.mean:.0f}"
    places = max(0, 1 - math.floor(math.log10(interval.half_width)))
    return f"{interval.mean:.{places}f} ±{interval.half_width:.{places}f}"


def _notes(comparison: Comparison, marked: dict[str, tuple[str, list[str], bool]]) -> list[str]:
    seeds = len(comparison.setup.seeds)
    known = any(best and sure for best, _, sure in marked.values())
    notes = [""]
    if seeds > 1:
        drawn = "their order" if comparison.setup.arrivals.kind == "burst" else "their arrivals and order"
        whole = comparison.setup.num_requests is None
        what = f"the same requests, {drawn} drawn anew" if whole else f"other requests, {drawn} drawn anew"
        notes.append(f"± is a 95% t interval over {seeds} replications ({what}; alike for all policies).")
    elif known:
        notes.append(
            "± is a 95% interval by batch means of one recorded run: too narrow where the queue's memory "
            "is longer than a batch."
        )
    legend = f"{BEST} best of the column"
    if known and len(comparison.setup.policies) > 1:
        legend += (
            f"   {NOISE} within noise of the best (the 95% interval of the paired difference includes 0)"
        )
    notes.append(legend)
    unsure = [metric for metric, (best, _, sure) in marked.items() if best and not sure]
    if unsure and not known:
        notes.append(
            "One run tells nothing about noise: draw arrivals with --replications 5 before ranking policies."
        )
    elif unsure:
        names = ", ".join(TITLES[metric] for metric in unsure)
        notes.append(f"Not known from one run whether a difference in {names} is noise.")
    best, within, sure = marked["mean_jct_s"]
    if within and sure:
        called = labels(comparison.setup.policies)
        names = ", ".join(called[policy] for policy in within)
        notes.append(f"Mean JCT: {names} within noise of {called[best]}.")
    return notes
