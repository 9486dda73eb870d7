"""A trace in numbers: how much, how bursty, how long, and what hangs together."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.schema import Trace

Array = NDArray[Any]
QUANTILES = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
WINDOWS_S = (1, 10, 60, 600, 3600, 86400)
# A variance of counts needs some windows to be one.
LEAST_WINDOWS = 10
TAIL_SHARE = 0.05


def describe(trace: Trace) -> dict[str, Any]:
    """Facts of a trace, JSON-able.

    * ``requests``, ``span_s`` (first to last arrival), ``rate`` = (requests - 1) / span, per second
    * ``gaps`` between arrivals: ``mean_s``, ``cv`` = std / mean (Poisson: 1), ``tied``: share that is 0
    * ``windows``: for each width that fits ten times, ``dispersion`` = variance / mean of the counts
      (Poisson: 1) and ``peak`` = largest count / mean count
    * ``prompt_tokens``, ``output_tokens``: ``total``, ``mean``, ``std``, quantiles (numpy's linear ones),
      ``share_of_longest_1pct`` of all tokens, and ``tail_index``: Hill's estimate over the longest 5%
      (under 2: no finite variance; under 1: no finite mean)
    * ``correlation`` of prompt and output: ``spearman``, and ``pearson_log`` of the logarithms
    * ``sessions``: how many, ``mean_turns`` and ``longest``; ``prefixes``: ``repeated`` = share of hash
      ids (or prefix tokens) seen before, what an endless cache would hit

    Parts that a trace does not have are left out; a value that is not defined is None.
    """
    n = len(trace)
    facts: dict[str, Any] = {"requests": n}
    # Else they are absent, or a closed loop's, and follow from the server.
    if n and "arrivals" not in trace.metadata:
        span_s = float(trace.arrival_s[-1])
        facts |= {"span_s": span_s, "rate": (n - 1) / span_s if span_s > 0 else None}
        if n > 2 and span_s > 0:
            facts |= {"gaps": _gaps(trace.arrival_s), "windows": _windows(trace.arrival_s)}
    if n:
        facts |= {name: _lengths(getattr(trace, name)) for name in ("prompt_tokens", "output_tokens")}
    if n > 2:
        facts["correlation"] = correlation(trace.prompt_tokens, trace.output_tokens)
    if trace.session_id is not None and (trace.session_id >= 0).any():
        turns = np.unique(trace.session_id[trace.session_id >= 0], return_counts=True)[1]
        facts["sessions"] = {
            "sessions": len(turns),
            "mean_turns": float(turns.mean()),
            "longest": int(turns.max()),
        }
    repeated = _repeated(trace)
    if repeated is not None:
        facts["prefixes"] = {"repeated": repeated}
    return facts


def correlation(prompt_tokens: Array, output_tokens: Array) -> dict[str, float | None]:
    """Spearman's rank correlation, and Pearson's of the logarithms; None where one side is constant."""
    if prompt_tokens.min() == prompt_tokens.max() or output_tokens.min() == output_tokens.max():
        return {"spearman": None, "pearson_log": None}
    ranks = [pl.Series(column).rank("average").to_numpy() for column in (prompt_tokens, output_tokens)]
    logs = [np.log(prompt_tokens), np.log(output_tokens)]
    return {
        "spearman": float(np.corrcoef(ranks)[0, 1]),
        "pearson_log": float(np.corrcoef(logs)[0, 1]),
    }


def tail_index(tokens: Array, share: float = TAIL_SHARE) -> float | None:
    """Hill's estimate of alpha in P(X > x) ~ x^-alpha, from the longest ``share`` of the lengths.

    Whole numbers at or above a threshold u stand for lengths above u - 1/2 (Clauset et al. 2009, eq. 3.7).
    None with fewer than ten lengths in the tail, or none above the threshold.
    """
    tail = tail_of(tokens, share)
    logs = np.log(tail / (tail.min() - 0.5)) if len(tail) else np.empty(0)
    return float(len(tail) / logs.sum()) if len(tail) >= 10 and tail.max() > tail.min() else None


def tail_of(tokens: Array, share: float) -> Array:
    """The lengths at or above their 1 - ``share`` quantile."""
    if len(tokens) == 0:
        return tokens
    threshold = np.quantile(tokens, 1 - share, method="higher")
    return np.asarray(tokens[tokens >= threshold])


def _gaps(arrival_s: Array) -> dict[str, float]:
    gaps = np.diff(arrival_s)
    return {
        "mean_s": float(gaps.mean()),
        "cv": float(gaps.std() / gaps.mean()),
        "tied": float((gaps == 0).mean()),
    }


def _windows(arrival_s: Array) -> dict[str, dict[str, float]]:
    found = {}
    for width in WINDOWS_S:
        windows = int(arrival_s[-1] // width)
        if windows < LEAST_WINDOWS:
            break
        # Times of many years in windows of a second would be a table of billions, nearly all of them 0.
        hit, counts = np.unique((arrival_s // width).astype(np.int64), return_counts=True)
        counts = counts[hit < windows]
        mean = counts.sum() / windows
        variance = (counts.astype(float) ** 2).sum() / windows - mean**2
        if mean > 0:
            found[f"{width}s"] = {"dispersion": float(variance / mean), "peak": float(counts.max() / mean)}
    return found


def _lengths(tokens: Array) -> dict[str, Any]:
    longest = np.sort(tokens)[-max(len(tokens) // 100, 1) :]
    total = int(tokens.sum(dtype=np.int64))
    quantiles = np.quantile(tokens, list(QUANTILES.values())).tolist()
    return {
        "total": total,
        "mean": float(tokens.mean()),
        "std": float(tokens.std()),
        **dict(zip(QUANTILES, quantiles, strict=True)),
        "share_of_longest_1pct": float(longest.sum(dtype=np.int64) / total),
        "tail_index": tail_index(tokens),
    }


def _repeated(trace: Trace) -> float | None:
    if trace.hash_ids is not None:
        ids = np.concatenate([*trace.hash_ids, np.zeros(0, np.int64)])
        return float(1 - len(np.unique(ids)) / len(ids)) if len(ids) else None
    if trace.prefix_id is None or trace.prefix_tokens is None:
        return None
    shared = trace.prefix_id >= 0
    if not shared.any():
        return None
    _, number = np.unique(trace.prefix_id[shared], return_inverse=True)
    longest = np.zeros(number.max() + 1, np.int64)
    np.maximum.at(longest, number, trace.prefix_tokens[shared])
    total = trace.prompt_tokens.sum(dtype=np.int64)
    return float((trace.prefix_tokens[shared].sum(dtype=np.int64) - longest.sum()) / total)
