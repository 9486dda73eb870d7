"""What token signals cost beside a prefill: time of each part, throughput by batch, and peak memory.

    python benchmarks/signals.py --lengths 512 2048 --memory-lengths 512 2048 4096 8192

The yardstick is a prefill that computes the last position's logits only. Each round runs every part once, so
that a busy machine slows all of them alike; the least of the rounds is reported. On the CPU the time is CPU
time of the process, on a GPU it is elapsed time with the queue drained. Peak memory is that of a fresh
process each: resident, model included, on the CPU; allocated, on a GPU. Its growth is told from torch's own
allocations, which the allocator's slack does not blur.
"""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from predictor.backbone import EMBEDDED, load_backbone
from predictor.cost import peak_mb
from predictor.signals import attention_received, entropies, extract

RECEIVED_BOUND, ENTROPY_BOUND, MEMORY_BOUND = 0.05, 1.3, 1.1
# Growth by the token may differ so much between two pairs of lengths and still be called linear.
LINEAR_BOUND = 1.1


@dataclass(frozen=True)
class Settings:
    """`model`: embedded default, folder or hub name; `lengths`: tokens a prompt; `batch`: prompts at once.

    `memory_lengths`: where peak memory is taken; `batches` of prompts of `short` tokens show the throughput.
    """

    model: str = EMBEDDED
    lengths: tuple[int, ...] = (128, 512, 2048)
    memory_lengths: tuple[int, ...] = (512, 2048, 4096, 8192)
    batch: int = 1
    batches: tuple[int, ...] = (1, 4, 8)
    short: tuple[int, ...] = (8, 32, 128)
    rounds: int = 5
    threads: int = 1
    device: str = "cpu"
    dtype: str = "auto"


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    model = load_backbone(settings.model, settings.device, settings.dtype).model
    kind = f"{model.dtype}".removeprefix("torch.")
    print(f"{settings.model}, {kind}, {model.device}, {settings.threads} threads, {settings.batch} a batch")
    print_parts(model, settings)
    print_throughput(model, settings)
    print_memory(model, settings)
    print("\n! over its bound: received 5% of the prefill, entropy 1.3 head products, memory 1.1")


def print_parts(model: Any, settings: Settings) -> None:
    unit = "ms of CPU" if model.device.type == "cpu" else "ms"
    print(
        f"\n{unit:<15}         prefill |  received, of prefill |   entropy     head ratio | everything ratio"
    )
    print("     N tokens/s")
    for length in settings.lengths:
        ms = fastest(parts(model, length, settings.batch), settings.rounds, model.device)
        received, entropy = ms["received"] / ms["prefill"], ms["entropy"] / ms["head"]
        speed = settings.batch * length / ms["signals"] * 1e3
        print(
            f"{length:>6} {speed:>8.0f} {ms['prefill']:>15.1f} "
            f"| {ms['received']:>9.1f} {received:>11.1%}{mark(received, RECEIVED_BOUND)}"
            f"| {ms['entropy']:>9.1f} {ms['head']:>8.1f} {entropy:>5.2f}{mark(entropy, ENTROPY_BOUND)}"
            f"| {ms['signals']:>10.1f} {ms['signals'] / ms['prefill']:>5.2f}",
            flush=True,
        )


def print_throughput(model: Any, settings: Settings) -> None:
    """Tokens a second with signals, and in brackets of the bare prefill, by prompts at once."""
    heads = "".join(f"{f'batch {size}':>22}" for size in settings.batches)
    print(f"\ntokens/s with signals (of the prefill alone)\n     N{heads}{'last over first':>18}")
    for length in settings.short:
        both = {
            f"{name} {size}": run
            for size in settings.batches
            for name, run in whole(model, length, size).items()
        }
        ms = fastest(both, settings.rounds, model.device)
        speeds = [
            [size * length / ms[f"{name} {size}"] * 1e3 for size in settings.batches]
            for name in ("signals", "prefill")
        ]
        cells = "".join(f"{full:>12.0f} ({bare:>7.0f})" for full, bare in zip(*speeds, strict=True))
        print(f"{length:>6}{cells}{speeds[0][-1] / speeds[0][0]:>18.2f}", flush=True)


def print_memory(model: Any, settings: Settings) -> None:
    print("\npeak MB, and above the idle model                  |  torch's own, MB, and KB more a token")
    print("     N        prefill   with signals  ratio        |        prefill   with signals")
    context = multiprocessing.get_context("spawn")
    growth: list[list[float]] = []
    before: tuple[int, list[float]] | None = None
    for length in settings.memory_lengths:
        peaks = []
        for with_signals in (False, True):
            with context.Pool(1) as pool:
                peaks.append(pool.apply(peak_memory, (settings, length, with_signals)))
        (bare, bare_above), (full, full_above) = peaks
        own = [peak_mb(run) for run in whole(model, length, settings.batch).values()]
        if before is not None:
            growth.append([1e3 * (x - y) / (length - before[0]) for x, y in zip(own, before[1], strict=True)])
        before = (length, own)
        more = [f"({x:>5.1f})" for x in growth[-1]] if growth else ["", ""]
        print(
            f"{length:>6} {bare:>7.0f} ({bare_above:>4.0f}) {full:>7.0f} ({full_above:>4.0f}) "
            f"{full / bare:>6.3f}{mark(full / bare, MEMORY_BOUND)}       "
            f"| {own[0]:>6.0f} {more[0]:>7} {own[1]:>6.0f} {more[1]:>7}",
            flush=True,
        )
    if len(growth) > 1:
        # Below some length the scratch of the output head, which does not grow, hides the rest.
        (_, before_last), (_, last) = growth[-2:]
        print(
            f"growth with signals {'is' if last <= LINEAR_BOUND * before_last else 'is NOT'} linear in N: "
            f"{before_last:.1f} and {last:.1f} KB a token between the last three lengths"
        )


def mark(ratio: float, bound: float) -> str:
    return "!" if ratio > bound else " "


def random_ids(model: Any, length: int, batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.get_text_config().vocab_size, (batch, length), generator=generator)


def prefill(model: Any, ids: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(ids.to(model.device), use_cache=False, logits_to_keep=1)


def whole(model: Any, length: int, batch: int) -> dict[str, Callable[[], Any]]:
    """The yardstick, and the prefill with all signals."""
    ids = random_ids(model, length, batch)
    mask = torch.ones_like(ids)
    return {"prefill": lambda: prefill(model, ids), "signals": lambda: extract(model, ids, mask)}


def parts(model: Any, length: int, batch: int) -> dict[str, Callable[[], Any]]:
    """The yardstick, the whole, and each part alone on inputs of the size that the whole gives it."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    made = {"device": model.device, "dtype": model.dtype}
    query = torch.randn(batch, heads, length, size, **made)
    key = torch.randn(batch, config.num_key_value_heads, length, size, **made)
    counts = torch.full((batch,), length, device=model.device)
    ids = random_ids(model, length, batch)
    with torch.no_grad():
        hidden = model.get_decoder()(ids.to(model.device), use_cache=False).last_hidden_state.flatten(0, 1)
    head = model.get_output_embeddings()
    return {
        **whole(model, length, batch),
        "received": lambda: attention_received(query, key, counts, scale=size**-0.5),
        "head": lambda: [head(rows) for rows in hidden.split(128)],
        "entropy": lambda: entropies(model, hidden),
    }


@torch.no_grad()
def fastest(parts: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, float]:
    """Milliseconds of each part, the least of `rounds` after one round to warm up."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    best = dict.fromkeys(parts, float("inf"))
    for number in range(rounds + 1):
        for name, run in parts.items():
            drain(device)
            start = clock()
            run()
            drain(device)
            if number:
                best[name] = min(best[name], (clock() - start) * 1e3)
    return best


def drain(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_memory(settings: Settings, length: int, with_signals: bool) -> tuple[float, float]:
    """(peak, peak above the idle model) in MB of one prefill, in a process that did nothing else."""
    torch.set_num_threads(settings.threads)
    model = load_backbone(settings.model, settings.device, settings.dtype).model
    name = "signals" if with_signals else "prefill"
    whole(model, 8, settings.batch)[name]()
    run = whole(model, length, settings.batch)[name]
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        idle = torch.cuda.memory_allocated()
        run()
        peak = torch.cuda.max_memory_allocated()
        return peak / 1e6, (peak - idle) / 1e6
    idle_mb = resident_peak_mb(reset=True)
    run()
    peak_mb = resident_peak_mb()
    return peak_mb, peak_mb - idle_mb


def resident_peak_mb(reset: bool = False) -> float:
    """Peak resident memory of this process; on Linux since the last reset, elsewhere since its start."""
    status = Path("/proc/self/status")
    if not status.exists():
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / 1e6 if sys.platform == "darwin" else most / 1e3
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main(tyro.cli(Settings))
