"""Replay a trace on a simulated GPU: ``python examples/replay_a_trace.py [TRACE]``.

Without a trace of yours, it replays real answers of the embedded LLM that arrive at 7 requests a second.
"""

import sys

import numpy as np

from predictor.embedded import read_rollout
from sim import ContinuousBatching, StaticBatching, simulate
from traces import read_trace
from traces.arrivals import Arrivals

LATENCY = "roofline,model=smollm2-135m,device=l4"


def main(path: str | None = None) -> None:
    if path is None:
        trace = Arrivals("poisson", rate=7.0).apply(
            read_rollout(), np.random.default_rng(0), num_requests=500
        )
    else:
        trace = read_trace(path)
    print(f"{len(trace)} requests in {trace.arrival_s[-1]:.0f} s, {trace.output_tokens.sum()} output tokens")
    for batching in (StaticBatching(batch_size=8), ContinuousBatching(max_num_seqs=64)):
        metrics = simulate(trace, "fcfs", batching, LATENCY).metrics
        print(
            f"{batching.name:10}  mean JCT {metrics['mean_jct_s']:6.2f} s   p99 {metrics['p99_jct_s']:6.2f} s   "
            f"TTFT {metrics['mean_ttft_s']:5.2f} s   {metrics['output_throughput']:5.0f} tokens/s   "
            f"padding {metrics['padding_ratio']:.2f}"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
