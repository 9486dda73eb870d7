"""From what the replicas wrote, by request number, to the table of a result, by row of the trace."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim.metrics import Totals
from sim.replica import Batching, Replica, Run
from traces.schema import Trace


def table(
    trace: Trace, number_to_row: NDArray[np.int64], run: Run, servers: list[Replica], batching: Batching
) -> pl.DataFrame:
    """Records in the order of the trace, without what lies at or beyond the horizon."""
    n, ids = len(trace), trace.request_id
    row_to_number = np.empty(n, np.int64)
    row_to_number[number_to_row] = np.arange(n)
    replica = np.full(n, -1)
    for server in servers:
        replica[server.assigned] = server.number
    times = {}
    for name in ("first_scheduled_s", "first_token_s", "completion_s"):
        seconds = np.array(getattr(run.records, name), np.float64)
        seconds[seconds >= run.horizon_s] = math.nan
        times[name] = seconds[row_to_number]
    status = np.where(np.isnan(times["completion_s"]), 2, 0)
    status[number_to_row[run.records.rejected]] = 1
    names = pl.Series(["completed", "rejected", "unfinished"])
    alone_s = batching.alone_s(
        trace.prompt_tokens.astype(np.int64), trace.output_tokens.astype(np.int64), run.latency
    )
    return pl.DataFrame(
        {
            "request_id": ids if ids.dtype != object else pl.Series(ids.tolist()),
            "replica": pl.Series(replica[row_to_number], dtype=pl.Int32).replace(-1, None),
            "status": names.gather(status),
            "arrival_s": trace.arrival_s if run.closed is None else run.requests.arrival_s[row_to_number],
            **times,
            "prompt_tokens": trace.prompt_tokens,
            "output_tokens": trace.output_tokens,
            "preemptions": np.array(run.records.preemptions)[row_to_number],
            "recomputed_tokens": np.array(run.records.recomputed_tokens)[row_to_number],
            "prefix_hit_tokens": np.where(
                np.isnan(times["first_scheduled_s"]),
                0,
                np.array(run.records.prefix_hit_tokens)[row_to_number],
            ),
            "alone_s": alone_s,
        }
    )


def total(servers: list[Replica], batching: Batching, run: Run) -> Totals:
    """What the replicas counted, in sum."""
    return Totals(
        replicas=len(servers),
        slots=batching.slots,
        busy_s=sum(server.busy_s for server in servers),
        slot_s=sum(server.slot_s for server in servers),
        padded_tokens=sum(server.padded_tokens for server in servers),
        batched_tokens=sum(server.batched_tokens for server in servers),
        peak_kv_blocks=max(server.peak_kv_blocks for server in servers),
        horizon_s=run.horizon_s,
    )
