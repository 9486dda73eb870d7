"""Static batching: microseconds of CPU a request, and as a multiple of a bare SimPy event, in one run.

    python benchmarks/static_sim.py [requests]

The bare event is one process that yields ``timeout`` again and again. Lengths are lognormal, arrivals
Poisson at a load of about 0.8; everything from the trace in memory to records and metrics is counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator

import numpy as np
import simpy

from sim import Affine, StaticBatching, simulate
from traces.schema import Trace


def bare_event_us(events: int = 200_000) -> float:
    """Microseconds of CPU for one event of a process that only waits."""

    def waits(env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(events):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(waits(env))
    start = time.process_time()
    env.run()
    return (time.process_time() - start) / events * 1e6


def made(requests: int) -> Trace:
    """Poisson arrivals at 4 a second; prompts and outputs lognormal with means of about 250 and 200."""
    rng = np.random.default_rng(0)
    return Trace(
        request_id=np.arange(requests),
        arrival_s=np.cumsum(rng.exponential(1 / 4, requests)),
        prompt_tokens=np.ceil(rng.lognormal(5.0, 1.0, requests)).astype(np.int32),
        output_tokens=np.ceil(rng.lognormal(5.0, 0.7, requests)).astype(np.int32),
    )


def main() -> None:
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    trace, latency = made(requests), Affine(a=2e-3, b=5e-6, c=1e-4, d=2e-8)
    unit = min(bare_event_us() for _ in range(3))
    print(f"bare SimPy event          {unit:7.3f} us")
    for policy, replicas, router, release in (
        ("fcfs", 1, "round_robin", "batch"),
        ("sjf", 1, "round_robin", "batch"),
        ("sjf", 1, "round_robin", "token"),
        ("fcfs", 4, "join_shortest_queue", "batch"),
    ):
        batching = StaticBatching(batch_size=8, release=release)
        start = time.process_time()
        metrics = simulate(trace, policy, batching, latency, replicas, router=router).metrics
        cost = (time.process_time() - start) / requests * 1e6
        print(
            f"{policy:5} {replicas} replica(s) {release:6} {cost:7.3f} us a request = {cost / unit:5.2f} events"
            f"   busy {metrics['busy_share']:.2f}, padding {metrics['padding_ratio']:.2f}"
        )


if __name__ == "__main__":
    main()
