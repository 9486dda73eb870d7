"""Every metric, once.

Over the completed requests, in seconds, each as mean, p50, p90, p95 and p99 (numpy's linear percentiles):

* ``jct`` = completion - arrival (vLLM's E2EL)
* ``ttft`` = first token - arrival
* ``tpot`` = (completion - first token) / (output - 1); a request of one token has none
* ``queueing`` = first scheduled - arrival
* ``itl`` = gaps between the tokens of a request, pooled; nan unless the run recorded them (``itl=True``)

Single numbers:

* ``mean_slowdown`` = mean of JCT / JCT alone on an idle server of the same batching
* ``max_queueing_s``; ``starved_share`` = share of the completed whose queueing exceeds ``starvation_s``
* ``duration_s`` = last completion - first arrival; of a run that a horizon stopped with work left,
  horizon - first arrival
* ``output_throughput`` = output tokens of the completed / duration
* ``request_throughput`` = completed / duration
* ``goodput`` = completed requests that meet all given bounds / duration; ``goodput_share`` = their
  share of all arrivals. A request of one token has a TPOT of 0 here, as in vLLM. nan if no bound is given
* ``padding_ratio`` = padded tokens / output tokens over all batches that ended (0 where nothing is
  padded); ``effective_share`` = 1 / (1 + padding ratio)
* ``busy_share`` = seconds in which steps ran / (replicas * duration)
* ``occupancy`` = mean share of a batch's slots that are held by requests, over the busy time;
  ``mean_batch_size`` = occupancy * slots
* counts: ``arrivals`` = ``completed`` + ``rejected`` + ``unfinished``; ``preemptions``,
  ``recomputed_tokens``, ``peak_kv_blocks`` (most in use on one replica)
* ``prefix_hit_tokens`` = tokens found in the prefix cache when requests were first admitted;
  ``prefix_hit_rate`` = their share of the prompt tokens of the requests that were

A run that was stopped with requests unfinished would favour the short ones, so the means and
percentiles of such a run are nan unless ``partial=True``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import InputError

PERCENTILES = (50, 90, 95, 99)
GOODPUT_BOUNDS = ("ttft", "tpot", "e2el")

Floats = NDArray[np.float64]
Gaps = Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Totals:
    """What replicas count, summed over them (the peak: its largest), and what bounds the run.

    Units as in `sim.replica.Replica`; ``slots`` is the most requests in a batch.
    """

    replicas: int
    slots: int
    busy_s: float
    slot_s: float
    padded_tokens: int
    batched_tokens: int
    peak_kv_blocks: int
    horizon_s: float


def measure(
    records: pl.DataFrame,
    totals: Totals,
    *,
    goodput: dict[str, float] | None = None,
    starvation_s: float = 60.0,
    partial: bool = False,
    gaps: Gaps | None = None,
) -> dict[str, float | int]:
    """All metrics of a run, by the formulas at the head of this file.

    Args:
        records: the table of `sim.simulate.Result`.
        totals: of all replicas.
        goodput: bounds in seconds, from `parse_goodput`.
        starvation_s: a request that waits longer counts as starved.
        partial: give means even of a run that was stopped with requests unfinished.
        gaps: (seconds, count) pairs, if recorded.
    """
    done = records.filter(pl.col("status") == "completed")
    times = latencies(done)
    unfinished = int((records["status"] == "unfinished").sum())
    whole = partial or not unfinished
    duration_s = _duration_s(records, done, totals, unfinished)
    metrics: dict[str, float | int] = {}
    for name, seconds in times.items():
        metrics |= _spread(name, seconds[~np.isnan(seconds)] if whole else np.empty(0))
    metrics |= _spread("itl", *_pool(gaps or []) if whole else (np.empty(0), None))
    slowdown = times["jct"] / done["alone_s"].to_numpy()
    queueing = times["queueing"]
    ratio = totals.padded_tokens / totals.batched_tokens if totals.batched_tokens else 0.0
    good = int(meets(done, goodput).sum()) if goodput else math.nan
    occupancy = _divide(totals.slot_s, totals.busy_s * totals.slots)
    metrics |= {
        "mean_slowdown": float(slowdown.mean()) if whole and len(done) else math.nan,
        "max_queueing_s": float(queueing.max()) if whole and len(done) else math.nan,
        "starved_share": float((queueing > starvation_s).mean()) if whole and len(done) else math.nan,
        "output_throughput": _divide(int(done["output_tokens"].sum()), duration_s),
        "request_throughput": _divide(len(done), duration_s),
        "goodput": _divide(good, duration_s),
        "goodput_share": _divide(good, len(records)),
        "padding_ratio": ratio,
        "effective_share": 1 / (1 + ratio),
        "duration_s": duration_s,
        "busy_share": _divide(totals.busy_s, totals.replicas * duration_s),
        "occupancy": occupancy,
        "mean_batch_size": occupancy * totals.slots,
        "arrivals": len(records),
        "completed": len(done),
        "rejected": int((records["status"] == "rejected").sum()),
        "unfinished": unfinished,
        "preemptions": int(records["preemptions"].sum()),
        "recomputed_tokens": int(records["recomputed_tokens"].sum()),
        "peak_kv_blocks": totals.peak_kv_blocks,
        "prefix_hit_tokens": int(records["prefix_hit_tokens"].sum()),
        "prefix_hit_rate": _divide(int(records["prefix_hit_tokens"].sum()), _admitted_tokens(records)),
    }
    assert metrics["completed"] + metrics["rejected"] + unfinished == len(records)
    return metrics


def _admitted_tokens(records: pl.DataFrame) -> int:
    return int(records.filter(pl.col("first_scheduled_s").is_not_nan())["prompt_tokens"].sum())


def latencies(records: pl.DataFrame) -> dict[str, Floats]:
    """``jct``, ``ttft``, ``tpot`` and ``queueing``, (n,) seconds each, nan where a request has none."""
    column = {
        name: records[name].to_numpy()
        for name in ("arrival_s", "first_scheduled_s", "first_token_s", "completion_s")
    }
    later_tokens = records["output_tokens"].to_numpy() - 1.0
    later_tokens[later_tokens == 0] = math.nan
    return {
        "jct": column["completion_s"] - column["arrival_s"],
        "ttft": column["first_token_s"] - column["arrival_s"],
        "tpot": (column["completion_s"] - column["first_token_s"]) / later_tokens,
        "queueing": column["first_scheduled_s"] - column["arrival_s"],
    }


def parse_goodput(bounds: str | Iterable[str]) -> dict[str, float]:
    """Bounds in vLLM's syntax, ``ttft:500 tpot:50 e2el:20000`` (milliseconds), as seconds by name.

    Raises:
        InputError: not of that form, an unknown name, or a negative bound.
    """
    parsed: dict[str, float] = {}
    for bound in bounds.replace(",", " ").split() if isinstance(bounds, str) else bounds:
        name, _, text = bound.partition(":")
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = math.nan
        if name not in GOODPUT_BOUNDS or not milliseconds >= 0 or name in parsed:
            raise InputError(
                f"goodput bound {bound!r} must be name:milliseconds, at least 0, each name once, "
                f"with the name one of {', '.join(GOODPUT_BOUNDS)}"
            )
        parsed[name] = milliseconds / 1000
    return parsed


def meets(records: pl.DataFrame, bounds: dict[str, float]) -> NDArray[np.bool_]:
    """Which completed requests (n,) meet all ``bounds`` (seconds, from `parse_goodput`)."""
    times = latencies(records)
    values = {"ttft": times["ttft"], "tpot": np.nan_to_num(times["tpot"]), "e2el": times["jct"]}
    met = np.ones(len(records), bool)
    for name, bound in bounds.items():
        met &= values[name] <= bound
    return met


def vllm_result(
    records: pl.DataFrame,
    metrics: dict[str, float | int],
    gaps: Gaps | None = None,
    *,
    goodput: dict[str, float] | None = None,
    model_id: str = "",
    request_rate: float = math.inf,
    burstiness: float = 1.0,
    max_concurrency: int | None = None,
    detailed: bool = False,
) -> dict[str, Any]:
    """What ``vllm bench serve --save-result`` writes (its keys; milliseconds where the key says so).

    Keys as in vllm/benchmarks/serve.py. ``date`` is empty, since a simulation has none;
    ``max_output_tokens_per_s`` is None, since tokens are not stamped one by one. The lists of
    ``--save-detailed`` come with ``detailed``.
    """
    done = records.filter(pl.col("status") == "completed")
    times = latencies(done)
    prompts, outputs = int(done["prompt_tokens"].sum()), int(done["output_tokens"].sum())
    result: dict[str, Any] = {
        "date": "",
        "endpoint_type": "simulated",
        "backend": "simulated",
        "label": None,
        "model_id": model_id,
        "tokenizer_id": model_id,
        "num_prompts": len(records),
        "request_rate": request_rate if math.isfinite(request_rate) else "inf",
        "burstiness": burstiness,
        "max_concurrency": max_concurrency,
        "duration": metrics["duration_s"],
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": metrics["request_throughput"],
        "request_goodput": metrics["goodput"] if goodput else None,
        "output_throughput": metrics["output_throughput"],
        "total_token_throughput": _divide(prompts + outputs, float(metrics["duration_s"])),
        "max_output_tokens_per_s": None,
        "max_concurrent_requests": _most_at_once(done),
        "rtfx": 0.0,
    }
    pooled = _pool(gaps or [])
    for name, seconds, counts in (
        ("ttft", times["ttft"], None),
        ("tpot", times["tpot"][~np.isnan(times["tpot"])], None),
        ("itl", *pooled),
        ("e2el", times["jct"], None),
    ):
        result |= _vllm_spread(name, seconds, counts)
    if detailed:
        result |= {
            "input_lens": records["prompt_tokens"].to_list(),
            "output_lens": records["output_tokens"].to_list(),
            "ttfts": latencies(records)["ttft"].tolist(),
            "latencies": latencies(records)["jct"].tolist(),
            "start_times": records["arrival_s"].to_list(),
            "errors": ["" if status == "completed" else status for status in records["status"]],
        }
    return result


def _duration_s(records: pl.DataFrame, done: pl.DataFrame, totals: Totals, unfinished: int) -> float:
    first_s = float(records["arrival_s"].to_numpy().min())
    if unfinished:
        return max(totals.horizon_s - first_s, 0.0)
    return float(done["completion_s"].to_numpy().max()) - first_s if len(done) else math.nan


def _pool(gaps: Gaps) -> tuple[Floats, NDArray[np.int64]]:
    """Gaps (m,) in rising order and how often each occurred (m,)."""
    if not gaps:
        return np.empty(0), np.empty(0, np.int64)
    seconds = np.concatenate([np.atleast_1d(seconds) for seconds, _ in gaps])
    counts = np.concatenate([np.atleast_1d(count) for _, count in gaps])
    order = np.argsort(seconds, kind="stable")
    return seconds[order].astype(np.float64), counts[order].astype(np.int64)


def _percentiles(values: Floats, counts: NDArray[np.int64] | None, levels: Sequence[float]) -> list[float]:
    """numpy's linear percentiles; of values in rising order repeated ``counts`` times, if given."""
    if counts is None:
        return [float(value) for value in np.percentile(values, levels)]
    ends = np.cumsum(counts)
    position = np.asarray(levels) / 100 * (ends[-1] - 1)
    low = values[np.searchsorted(ends, np.floor(position), side="right")]
    high = values[np.searchsorted(ends, np.ceil(position), side="right")]
    return [float(value) for value in low + (high - low) * (position - np.floor(position))]


def _spread(name: str, values: Floats, counts: NDArray[np.int64] | None = None) -> dict[str, float]:
    keys = [f"mean_{name}_s", *(f"p{level}_{name}_s" for level in PERCENTILES)]
    if not len(values) or (counts is not None and not counts.sum()):
        return dict.fromkeys(keys, math.nan)
    mean = float(np.average(values, weights=counts))
    return dict(zip(keys, [mean, *_percentiles(values, counts, PERCENTILES)], strict=True))


def _vllm_spread(name: str, values: Floats, counts: NDArray[np.int64] | None) -> dict[str, float | None]:
    keys = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms", f"p99_{name}_ms"]
    if not len(values) or (counts is not None and not counts.sum()):
        return dict.fromkeys(keys)
    mean = np.average(values, weights=counts)
    std = math.sqrt(np.average((values - mean) ** 2, weights=counts))
    median, p99 = _percentiles(values, counts, (50, 99))
    return {key: float(value) * 1000 for key, value in zip(keys, (mean, median, std, p99), strict=True)}


def _most_at_once(done: pl.DataFrame) -> int:
    """Most requests in the system at once; one that completes makes room for one that arrives then."""
    arrivals = np.sort(done["arrival_s"].to_numpy())
    gone = np.searchsorted(np.sort(done["completion_s"].to_numpy()), arrivals, side="right")
    return int((np.arange(1, len(arrivals) + 1) - gone).max()) if len(arrivals) else 0


def _divide(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else math.nan
