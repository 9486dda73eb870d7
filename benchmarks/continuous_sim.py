"""Continuous batching: CPU a request, as a multiple of a bare SimPy event of the same run, and its memory.

    python benchmarks/continuous_sim.py FOLDER [--rounds 7] [--million] [--only azure]

FOLDER holds the reference data (``data/1_traces/azure_2023``, ``data/1_traces/mooncake_fast25`` and
``workloads``). The bare event is one process that yields ``timeout`` again and again; it is timed right
before and after each simulation, and the median of the ratios is what counts. A simulation is everything
from the trace in memory to records and metrics.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import numpy as np
import simpy

from sim import Affine, ContinuousBatching, Memory, Result, simulate
from traces import read_trace
from traces.schema import Trace

# Llama-3.1-8B in bf16 on a card of 80 GB.
MEMORY = Memory(device_bytes=80e9, weight_bytes=16.06e9, kv_bytes_per_token=131_072)
MILLION = 1_000_000
Case = tuple[str, float | None, Trace, Callable[[Trace], Result]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--million", action="store_true", help="a million requests (some 20 s), with memory")
    arguments = parser.parse_args()
    if arguments.million:
        million(arguments.folder)
        return
    for name, bound, trace, run in cases(arguments.folder):
        if arguments.only not in name:
            continue
        ratios, costs_us = [], []
        for _ in range(arguments.rounds):
            before_us = bare_event_us()
            start = time.thread_time()
            result = run(trace)
            costs_us.append((time.thread_time() - start) / len(trace) * 1e6)
            ratios.append(costs_us[-1] / ((before_us + bare_event_us()) / 2))
        report(name, bound, statistics.median(ratios), min(costs_us), result)
    if arguments.only in "million":
        subprocess.run([sys.executable, __file__, str(arguments.folder), "--million"], check=True)


def report(name: str, bound: float | None, ratio: float, cost_us: float, result: Result) -> None:
    metrics = result.metrics
    against = "" if bound is None else f" (bound {bound:g}{'' if ratio <= bound else ': MISSED'})"
    facts = f"busy {metrics['busy_share']:.2f}, batch {metrics['mean_batch_size']:.1f}"
    if metrics["preemptions"]:
        facts += f", {metrics['preemptions']} preemptions"
    if metrics["prefix_hit_tokens"]:
        facts += f", hit rate {metrics['prefix_hit_rate']:.3f}"
    print(f"{name:38} {ratio:6.2f} events a request{against}; best {cost_us:.2f} us; {facts}", flush=True)


def cases(folder: Path) -> Iterator[Case]:
    """Name, most events a request, trace, and how it is run."""
    azure = read_trace(folder / "data/1_traces/azure_2023/AzureLLMInferenceTrace_conv.csv")
    poisson = workload(folder, "poisson5_lognormal_20000")
    # About 70% busy: steps ran in 70% of the time.
    quick, quicker = scaled(0.17), scaled(0.2)
    for cached in (False, True):
        kv = "cache" if cached else "no cache"
        yield f"azure conversations, fcfs, {kv}", 12, azure, served("fcfs", quick, cached=cached)
        yield f"poisson 20000, fcfs, {kv}", 12, poisson, served("fcfs", quicker, cached=cached)
    yield "azure, saturated", None, azure, served("fcfs", scaled(1))
    for size, bound in ((2_000, None), (10_000, 25)):
        burst = workload(folder, f"burst0_lognormal_{size}")
        for blocks, room in ((None, "roomy"), (2_000, "tight")):
            for cached in (False, True):
                most = bound and bound * (1.15 if cached else 1)
                name = f"burst {size}, sjf, {room}{', cache' if cached else ''}"
                yield name, most, burst, served("sjf", scaled(1), blocks, cached)
    shared = mooncake(folder)
    for blocks in (30_000, 300_000, 5_000_000):
        yield f"mooncake, {blocks} blocks", 60, shared, served("fcfs", scaled(0.1), blocks)


def scaled(factor: float) -> Affine:
    """A step's time: about an A100 with an 8B model at factor 1."""
    return Affine(a=6e-3 * factor, b=4e-5 * factor, c=2e-5 * factor, d=5e-9 * factor)


def served(
    policy: str, latency: Affine, blocks: int | None = None, cached: bool = True
) -> Callable[[Trace], Result]:
    batching = ContinuousBatching(num_blocks=blocks, memory=MEMORY, enable_prefix_caching=cached)
    return lambda trace: simulate(trace, policy, batching, latency)


def bare_event_us(events: int = 60_000) -> float:
    """Microseconds of CPU for one event of a process that only waits."""

    def waits(env: simpy.Environment) -> Generator[simpy.Event, None, None]:
        for _ in range(events):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(waits(env))
    start = time.thread_time()
    env.run()
    return (time.thread_time() - start) / events * 1e6


def million(folder: Path) -> None:
    """Lengths resampled from the Azure trace, Poisson arrivals at its rate; in a process of its own."""
    azure = read_trace(folder / "data/1_traces/azure_2023/AzureLLMInferenceTrace_conv.csv")
    rng = np.random.default_rng(0)
    rows = rng.integers(0, len(azure), MILLION)
    gaps_s = rng.exponential(azure.arrival_s[-1] / len(azure), MILLION)
    trace = Trace(np.arange(MILLION), np.cumsum(gaps_s), azure.prompt_tokens[rows], azure.output_tokens[rows])
    before_us = bare_event_us()
    start = time.thread_time()
    result = served("fcfs", scaled(0.17))(trace)
    cost_us = (time.thread_time() - start) / MILLION * 1e6
    ratio = cost_us / ((before_us + bare_event_us()) / 2)
    report("a million requests", 14.4, ratio, cost_us, result)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'':38} peak memory {peak_mib:.0f} MiB (bound 1024{'' if peak_mib <= 1024 else ': MISSED'})")


def workload(folder: Path, name: str) -> Trace:
    with (folder / "workloads" / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    arrivals = np.array([float(row["arrived_at"]) for row in rows])
    return Trace(
        np.arange(len(rows)),
        arrivals - arrivals[0],
        np.array([int(row["num_prefill_tokens"]) for row in rows]),
        np.array([int(row["num_decode_tokens"]) for row in rows]),
    )


def mooncake(folder: Path) -> Trace:
    path = folder / "data/1_traces/mooncake_fast25/conversation_trace.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ids = np.empty(len(rows), object)
    ids[:] = [np.array(row["hash_ids"]) for row in rows]
    return Trace(
        np.arange(len(rows)),
        np.array([row["timestamp"] / 1e3 for row in rows]),
        np.array([row["input_length"] for row in rows]),
        np.array([row["output_length"] for row in rows]),
        hash_ids=ids,
    )


if __name__ == "__main__":
    main()
