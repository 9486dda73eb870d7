"""The files of a comparison: summary, records and plots, written so that none is ever half there."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from experiments import plots
from experiments.compare import HIGHER, LOWER, Comparison
from experiments.style import plot_style, save_figure
from experiments.table import judge
from sim import Result
from sim.metrics import latencies
from traces.errors import InputError
from traces.parquet import write_table

SUMMARY, RECORDS = "summary.json", "records.parquet"
SCHEMA_VERSION = 1
PLOTS = ("jct_cdf", "jct", "padding_throughput", "queue_length", "predictions", "ttft_by_hit_share")


def check_folder(out: Path | None, option: str = "--out") -> None:
    """See, before any work is done, that results can be written there.

    Raises:
        InputError: the path, or one that it lies in, is a file or may not be written.
    """
    if out is None:
        return
    nearest = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{option} {out}: {nearest} is a file; name a folder")
    if not os.access(nearest, os.W_OK):
        raise InputError(f"{option} {out}: {nearest} may not be written; name another folder")


def fingerprints(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Path, size and SHA-256 of each input file; standard input has neither."""
    found: list[dict[str, Any]] = []
    for path in paths:
        if path == "-":
            found.append({"path": path, "bytes": None, "sha256": None})
            continue
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise InputError(f"there is no file {path}") from None
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}") from error
        found.append({"path": path, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return found


def check_same(found: list[dict[str, Any]], summary: Path) -> None:
    """See that a rerun reads what the first run read.

    Raises:
        InputError: a file has changed.
    """
    expected = {entry["path"]: entry["sha256"] for entry in read_summary(summary)["inputs"]}
    for entry in found:
        if expected.get(entry["path"]) != entry["sha256"]:
            raise InputError(
                f"{entry['path']} is not the file that {summary} was made from; its content differs"
            )


def read_summary(path: Path) -> dict[str, Any]:
    """A summary of this version, with the options and inputs that a rerun needs.

    Raises:
        InputError: the file is missing, or is no such summary.
    """
    try:
        summary = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable as JSON: {error}") from error
    if not isinstance(summary, dict) or summary.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path} is no summary.json of estp compare, version {SCHEMA_VERSION}")
    if not isinstance(summary.get("options"), dict) or not isinstance(summary.get("inputs"), list):
        raise InputError(f"{path} lacks the options it was made with, so it cannot be run again")
    return summary


def write(
    comparison: Comparison, out: Path, options: dict[str, Any], inputs: list[dict[str, Any]], vllm: bool
) -> None:
    """Write everything beside ``out`` first, and move it there when it is complete.

    A new folder appears whole; in a folder that exists, files of these names are replaced one by
    one, the summary last, and plots that this comparison does not have are removed.
    """
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.absolute().parent))
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from error
    try:
        _write_plots(comparison, part)
        write_table(_records(comparison), part / RECORDS, {"kind": "records", "units": {"*_s": "seconds"}})
        if vllm:
            _write_vllm(comparison, part, options)
        _write_json(part / SUMMARY, summary(comparison, options, inputs))
        _move(part, out)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def summary(comparison: Comparison, options: dict[str, Any], inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """What summary.json holds: every run, and every judged metric with intervals and differences."""
    runs = []
    for (policy, seed), result in comparison.results.items():
        settings = {
            **result.settings,
            "arrivals": vars(comparison.setup.arrivals),
            "num_prompts": comparison.setup.num_requests,
            "inputs": inputs,
        }
        runs.append({"policy": policy, "seed": seed, "settings": settings, "metrics": result.metrics})
    return {
        "schema_version": SCHEMA_VERSION,
        "options": options,
        "inputs": inputs,
        "runs": runs,
        "comparison": _judgements(comparison),
        "predictions": _prediction_errors(comparison),
    }


def _judgements(comparison: Comparison) -> dict[str, Any]:
    judged: dict[str, Any] = {}
    for metric in comparison.metric_names():
        if not (LOWER.fullmatch(metric) or HIGHER.fullmatch(metric)):
            continue
        best, within, known = judge(comparison, metric)
        policies = {}
        for policy in comparison.setup.policies:
            own = comparison.interval(policy, metric)
            entry: dict[str, Any] = {"mean": own.mean, "half_width": own.half_width}
            if best and policy != best:
                gap = comparison.difference(policy, best, metric)
                entry["difference_from_best"] = {"mean": gap.mean, "half_width": gap.half_width}
                entry["within_noise"] = policy in within if known else None
            policies[policy] = entry
        first = comparison.interval(comparison.setup.policies[0], metric)
        judged[metric] = {
            "better": "lower" if LOWER.fullmatch(metric) else "higher",
            "best": best or None,
            "interval": {"confidence": 0.95, "method": first.method, "samples": first.samples},
            "policies": policies,
        }
    return judged


def _prediction_errors(comparison: Comparison) -> dict[str, dict[str, float]]:
    workload = comparison.workloads[comparison.setup.seeds[0]]
    true = workload.trace.output_tokens
    errors = {}
    for name, one in workload.estimates.items():
        off = one.mean - true
        errors[name] = {
            "mae_tokens": float(np.abs(off).mean()),
            "rmse_tokens": float(np.sqrt((off**2).mean())),
            "bias_tokens": float(off.mean()),
        }
    return errors


def _records(comparison: Comparison) -> pl.DataFrame:
    tables = []
    for (policy, seed), result in comparison.results.items():
        ids = pl.Series("request_id", comparison.workloads[seed].source_id.tolist())
        head = [pl.lit(policy).alias("policy"), pl.lit(seed).alias("seed")]
        tables.append(result.records.with_columns(ids).select(*head, pl.all()))
    return pl.concat(tables)


def _write_plots(comparison: Comparison, folder: Path) -> None:
    policies, seeds = comparison.setup.policies, comparison.setup.seeds
    jct: dict[str, Any] = {}
    arrival: dict[str, Any] = {}
    scheduled: dict[str, Any] = {}
    for policy in policies:
        values = np.concatenate([latencies(result.records)["jct"] for result in comparison.of_policy(policy)])
        jct[policy] = values[~np.isnan(values)]
        records = comparison.results[policy, seeds[0]].records
        arrival[policy] = records["arrival_s"].to_numpy()
        scheduled[policy] = records["first_scheduled_s"].to_numpy()

    def panel(title: str, metric: str) -> plots.Bars:
        values = {policy: comparison.interval(policy, metric) for policy in policies}
        better = "lower" if LOWER.fullmatch(metric) else "higher" if HIGHER.fullmatch(metric) else None
        return plots.Bars(title, values, better)

    with plot_style():
        save_figure(plots.jct_cdf(jct), folder, "jct_cdf")
        panels = [panel("mean JCT (s)", "mean_jct_s"), panel("p99 JCT (s)", "p99_jct_s")]
        save_figure(plots.bars(panels), folder, "jct")
        padded = any(result.metrics["padding_ratio"] for result in comparison.results.values())
        # Where nothing is padded, how full the batches are is what tells policies apart.
        first = panel("padding ratio", "padding_ratio") if padded else panel("batch occupancy", "occupancy")
        panels = [first, panel("throughput (tokens/s)", "output_throughput")]
        save_figure(plots.bars(panels), folder, "padding_throughput")
        save_figure(plots.queue_length(arrival, scheduled), folder, "queue_length")
        if any(result.metrics["prefix_hit_tokens"] for result in comparison.results.values()):
            hits = {
                policy: [hit_shares(result) for result in comparison.of_policy(policy)] for policy in policies
            }
            save_figure(plots.curves([plots.ttft_by_hit_share(hits)]), folder, "ttft_by_hit_share")
        workload = comparison.workloads[seeds[0]]
        if workload.estimates:
            means = {name: one.mean for name, one in workload.estimates.items()}
            errors = {name: error["mae_tokens"] for name, error in _prediction_errors(comparison).items()}
            figure = plots.predicted_against_true(means, workload.trace.output_tokens, errors)
            save_figure(figure, folder, "predictions")


def hit_shares(result: Result) -> tuple[NDArray[Any], NDArray[Any]]:
    """Share of each prompt that was found in the prefix cache, and the TTFT in seconds."""
    records = result.records
    share = records["prefix_hit_tokens"].to_numpy() / records["prompt_tokens"].to_numpy()
    return share, latencies(records)["ttft"]


def _write_vllm(comparison: Comparison, folder: Path, options: dict[str, Any]) -> None:
    for i, ((_, seed), result) in enumerate(comparison.results.items()):
        policy = i % len(comparison.setup.policies)
        arrivals = comparison.setup.arrivals
        facts = {
            "request_rate": math.inf if arrivals.rate is None else arrivals.rate,
            "burstiness": arrivals.burstiness,
            "max_concurrency": result.settings["max_concurrency"],
        }
        name = _file_name(comparison.setup.policies, policy)
        _write_json(folder / f"vllm-{name}-seed{seed}.json", result.vllm(**facts))


def write_timelines(comparison: Comparison, folder: Path) -> list[Path]:
    """Run each policy's first replication again with its steps logged, and write it for ui.perfetto.dev.

    Raises:
        InputError: the batching keeps no step log, or the folder cannot be written.
    """
    from sim.timeline import write_timeline

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    policies = comparison.setup.policies
    return [
        write_timeline(comparison.logged(policy), folder / f"timeline-{_file_name(policies, i)}.json.gz")
        for i, policy in enumerate(policies)
    ]


def _file_name(policies: Sequence[str], number: int) -> str:
    return f"{number}-" + "".join(c if c.isalnum() else "-" for c in policies[number])


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """The same with null for nan and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _move(part: Path, out: Path) -> None:
    part.chmod(0o755)
    try:
        if not out.exists():
            os.replace(part, out)
            return
        for stem in PLOTS:
            for suffix in ("png", "svg"):
                if not (part / f"{stem}.{suffix}").exists():
                    (out / f"{stem}.{suffix}").unlink(missing_ok=True)
        for file in sorted(part.iterdir(), key=lambda file: file.name == SUMMARY):
            os.replace(file, out / file.name)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror or error}") from error
