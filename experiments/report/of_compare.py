"""The report of a comparison's folder: what `estp compare --out` wrote, read back and shown."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from experiments.compare import Comparison, Setup, Workload
from experiments.labels import labels
from experiments.options import Load, Requests, Server
from experiments.report import svg
from experiments.report.page import Page, Picture, Section, Table
from experiments.report.sentences import BASELINE, caveats, findings, knows_lengths
from experiments.report_files import RECORDS, SUMMARY, read_summary
from experiments.table import BEST, NOISE, TITLES, cell, judge, table_metrics
from sim import Result
from sim.metrics import latencies
from traces.arrivals import Arrivals
from traces.errors import InputError
from traces.parquet import read_table
from traces.schema import Trace

CAPTIONS = {
    "jct": "Job completion time by policy, with 95% intervals",
    "jct_cdf": "Share of requests completed within a time, all replications",
    "padding_throughput": "Padding and throughput",
    "queue_length": "Requests waiting over time, first replication",
    "ttft_by_hit_share": "Mean time to first token by the share of the prompt found in the prefix cache",
    "predictions": "Estimated against real output lengths",
}
# Without padding, its plot shows something else.
UNPADDED = "How full batches are, and throughput (padding is not drawn: nothing is padded here)"
MOST_PROMPT = 160
EXAMPLES = 4


def page_of(folder: Path) -> Page:
    """The page of a comparison.

    Raises:
        InputError: a file is missing or of another version.
    """
    summary = read_summary(folder / SUMMARY)
    comparison = read_comparison(folder, summary)
    settings = summary["runs"][0]["settings"]
    names = settings["batching"]["name"], settings["latency"]["name"]
    policies = list(labels(comparison.setup.policies).values())
    count = len(comparison.setup.seeds)
    return Page(
        title=f"{', '.join(policies)} on {Path(summary['inputs'][0]['path']).name}",
        about=f"{len(policies)} policies, {count} replication{'s' if count > 1 else ''}, simulated by estp compare",
        findings=findings(comparison, summary["predictions"]),
        caveats=caveats(comparison, *names, settings),
        sections=[
            Section("Policies", tables=_policies(comparison), pictures=_pictures(folder, comparison)),
            Section("Requests", tables=[_trace(comparison, summary), *_changed(comparison, summary)]),
            Section("Settings", tables=[_settings(summary), *_errors(summary)]),
        ],
        commands=[
            f"estp compare --rerun {shlex.quote(str(folder / SUMMARY))}",
            command_of(summary["options"]),
        ],
    )


def read_comparison(folder: Path, summary: Mapping[str, Any]) -> Comparison:
    """The comparison that wrote the folder, without its estimates.

    Raises:
        InputError: the records are missing or do not belong to the summary.
    """
    records, _ = read_table(folder / RECORDS, "records")
    runs = {(run["policy"], run["seed"]): run for run in summary["runs"]}
    parts = {
        (str(p), int(s)): part for (p, s), part in records.group_by("policy", "seed", maintain_order=True)
    }
    if set(runs) != set(parts):
        raise InputError(
            f"{folder / RECORDS} has other runs than {folder / SUMMARY}; run the comparison again"
        )
    results = {
        key: Result(parts[key].drop("policy", "seed"), _with_nan(run["metrics"]), run["settings"])
        for key, run in runs.items()
    }
    policies, seeds = (tuple(dict.fromkeys(key[i] for key in runs)) for i in (0, 1))
    settings = summary["runs"][0]["settings"]
    setup = Setup(policies, seeds, Arrivals(**settings["arrivals"]), settings["num_prompts"])
    return Comparison(setup, results, {seed: _workload(parts[policies[0], seed]) for seed in seeds})


def command_of(options: Mapping[str, Any]) -> str:
    """The command line that says what these options of summary.json say."""
    words = ["estp", "compare"]
    for policy in options["policy"]:
        words += ["--policy", policy]
    for kind, name in ((Requests, "requests"), (Load, "load"), (Server, "server")):
        for option in dataclasses.fields(kind):
            value = options[name].get(option.name, option.default)
            value = tuple(value) if isinstance(value, list) else value
            if value == option.default or option.name == "trace":
                continue
            flag = option.name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            elif option.name == "estimates":
                words += [word for path in value for word in ("--estimates", path)]
            else:
                words += [f"--{flag}", *(value if isinstance(value, tuple) else [str(value)])]
    if options["result_format"] != "estp":
        words += ["--result-format", options["result_format"]]
    # Options that take several values would swallow the trace if it came last.
    return shlex.join([*words[:2], options["requests"]["trace"], *words[2:]])


def summary_of_trace(trace: Trace) -> list[tuple[str, str]]:
    """Counts, rate, burstiness and lengths of a trace, as texts."""
    gaps = np.diff(trace.arrival_s)
    span_s = float(trace.arrival_s[-1])
    facts = [("requests", f"{len(trace):,}"), ("from first to last arrival", f"{_amount(span_s)} s")]
    if span_s > 0:
        facts.append(("arrival rate", f"{len(gaps) / span_s:.4g} requests/s"))
        facts.append(("coefficient of variation of the gaps", f"{float(gaps.std() / gaps.mean()):.3g}"))
    for name, column in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        p50, p90, p99 = (f"{value:,.0f}" for value in np.percentile(column, (50, 90, 99)))
        facts.append((f"{name} tokens, mean", _amount(float(column.mean()))))
        facts.append((f"{name} tokens, p50 / p90 / p99 / max", f"{p50} / {p90} / {p99} / {column.max():,}"))
    return facts


def _amount(value: float) -> str:
    """Four digits, and never an exponent for what is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def pairs(value: Any) -> str:
    """Settings with a name as one text: ``static, batch_size=8``."""
    if not isinstance(value, Mapping):
        return "none" if value is None else str(value)
    inside = [f"{key}={one}" for key, one in value.items() if key not in ("name", "kind") and one is not None]
    return ", ".join([str(value.get("name", value.get("kind", ""))), *inside])


def _policies(comparison: Comparison) -> list[Table]:
    metrics, called = table_metrics(comparison), labels(comparison.setup.policies)
    judged = {metric: judge(comparison, metric) for metric in metrics}
    rows = []
    for policy in comparison.setup.policies:
        row = [called[policy]]
        for metric in metrics:
            best, within, known = judged[metric]
            mark = f" {BEST}" if policy == best else f" {NOISE}" if policy in within and known else ""
            row.append(cell(comparison.interval(policy, metric)) + mark)
        rows.append(row)
    sure = any(best and known for best, _, known in judged.values())
    noise = f"; {NOISE} within noise of it" if sure else "; one run does not tell what is noise"
    return [
        Table(
            "Means and 95% intervals",
            ["policy", *(TITLES[m] for m in metrics)],
            rows,
            notes=[f"{BEST} best{noise}."],
        )
    ]


def _pictures(folder: Path, comparison: Comparison) -> list[Picture]:
    padded = any(result.metrics["padding_ratio"] for result in comparison.results.values())
    captions = CAPTIONS if padded else CAPTIONS | {"padding_throughput": UNPADDED}
    found = ((folder / f"{stem}.svg", caption) for stem, caption in captions.items())
    return [Picture(caption, svg.from_file(path, caption)) for path, caption in found if path.is_file()]


def _trace(comparison: Comparison, summary: Mapping[str, Any]) -> Table:
    facts = summary_of_trace(comparison.workloads[comparison.setup.seeds[0]].trace)
    read = summary["inputs"][0]
    if read.get("dropped"):
        facts.append(("rows left out by the reader", f"{read['dropped']['count']:,}"))
    if read.get("reordered"):
        facts.append(("rows put in order of arrival", f"{read['reordered']:,}"))
    return Table("The requests of the first replication", ["", ""], facts)


def _settings(summary: Mapping[str, Any]) -> Table:
    settings = summary["runs"][0]["settings"]
    seeds = list(dict.fromkeys(run["seed"] for run in summary["runs"]))
    names = (
        "batching",
        "latency",
        "arrivals",
        "replicas",
        "router",
        "num_prompts",
        "goodput",
        "estimate_available",
    )
    rows = [(name, pairs(settings[name])) for name in names]
    rows += [("estimate_cost_s", f"{settings['estimate_cost_s']:g}"), ("seeds", ", ".join(map(str, seeds)))]
    rows += [(entry["path"], f"SHA-256 {entry['sha256'] or 'unknown'}") for entry in summary["inputs"]]
    return Table("Of every run", ["setting", "value"], rows, texts=2)


def _errors(summary: Mapping[str, Any]) -> list[Table]:
    rows = [
        [name, *(f"{errors[key]:.4g}" for key in ("mae_tokens", "rmse_tokens", "bias_tokens"))]
        for name, errors in summary["predictions"].items()
    ]
    return [Table("Predictors, tokens", ["predictor", "MAE", "RMSE", "bias"], rows)] if rows else []


def _changed(comparison: Comparison, summary: Mapping[str, Any]) -> list[Table]:
    """Which requests gained and lost most by the best policy that knows no real lengths."""
    others = [p for p in comparison.setup.policies if p != BASELINE and not knows_lengths(p)]
    means = {policy: comparison.interval(policy, "mean_jct_s").mean for policy in others}
    known = {policy: mean for policy, mean in means.items() if not math.isnan(mean)}
    if BASELINE not in comparison.setup.policies or not known:
        return []
    best = min(known, key=lambda policy: known[policy])
    both = _mean_jct(comparison, BASELINE).join(_mean_jct(comparison, best), on="request_id", suffix="_new")
    ranked = both.with_columns(change=pl.col("jct_new") - pl.col("jct")).sort("change", "request_id")
    chosen = pl.concat([ranked.head(EXAMPLES), ranked.tail(EXAMPLES)]).unique(maintain_order=True)
    prompts, called = _prompts(summary), labels(comparison.setup.policies)
    head = [
        "request",
        *(["prompt"] if prompts else []),
        "output tokens",
        f"JCT s, {BASELINE}",
        f"JCT s, {called[best]}",
    ]
    rows = []
    for row in chosen.iter_rows(named=True):
        prompt = [_excerpt(prompts.get(row["request_id"]))] if prompts else []
        rows.append(
            [
                str(row["request_id"]),
                *prompt,
                f"{row['output_tokens']}",
                f"{row['jct']:.4g}",
                f"{row['jct_new']:.4g}",
            ]
        )
    caption = f"Who gains and who loses most from {BASELINE} to {called[best]} (mean over replications)"
    return [Table(caption, head, rows, texts=2 if prompts else 1)]


def _mean_jct(comparison: Comparison, policy: str) -> pl.DataFrame:
    tables = [
        result.records.select(
            "request_id", "output_tokens", pl.Series("jct", latencies(result.records)["jct"])
        )
        for result in comparison.of_policy(policy)
    ]
    done = pl.concat(tables).filter(pl.col("jct").is_not_nan())
    return done.group_by("request_id", maintain_order=True).agg(
        pl.col("output_tokens").first(), pl.col("jct").mean()
    )


def _prompts(summary: Mapping[str, Any]) -> dict[Any, str]:
    """Request id -> prompt, where the trace is still there, unchanged, and has prompts."""
    from experiments.report_files import fingerprints
    from traces import read_trace

    options, read = summary["options"]["requests"], summary["inputs"][0]
    try:
        if read["sha256"] is None or fingerprints([read["path"]])[0]["sha256"] != read["sha256"]:
            return {}
        columns = dict(pair.split("=", 1) for pair in options["columns"])
        trace = read_trace(read["path"], options["format"], columns or None, on_error=options["on_error"])
    except InputError:  # The report can do without: the folder may have travelled alone.
        return {}
    if trace.prompt is None:
        return {}
    return dict(zip(trace.request_id.tolist(), trace.prompt.tolist(), strict=True))


def _excerpt(prompt: str | None) -> str:
    text = " ".join((prompt or "").split())
    return text if len(text) <= MOST_PROMPT else text[: MOST_PROMPT - 1] + "…"


def _workload(records: pl.DataFrame) -> Workload:
    arrival_s, prompts, outputs = (
        records[name].to_numpy() for name in ("arrival_s", "prompt_tokens", "output_tokens")
    )
    trace = Trace(np.arange(len(records)), arrival_s, prompts, outputs)
    return Workload(trace, {}, records["request_id"].to_numpy())


def _with_nan(metrics: Mapping[str, Any]) -> dict[str, float | int]:
    return {key: math.nan if value is None else value for key, value in metrics.items()}
