"""What token signals cost beside a prefill: time of each part, and peak memory, at several prompt lengths.

    python benchmarks/signals.py --lengths 128 512 2048

The yardstick is a prefill that computes the last position's logits only. Each round runs every part once, so
that a busy machine slows all of them alike; the least of the rounds is reported. On the CPU the time is CPU
time of the process, on a GPU it is elapsed time with the queue drained. Peak memory is that of a fresh
process each: resident, model included, on the CPU; allocated, on a GPU.
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
from predictor.signals import attention_received, entropies, extract

RECEIVED_BOUND, ENTROPY_BOUND, MEMORY_BOUND = 0.05, 1.3, 1.1


@dataclass(frozen=True)
class Settings:
    """`model`: embedded default, folder or hub name; `lengths`: tokens a prompt; `batch`: prompts at once."""

    model: str = EMBEDDED
    lengths: tuple[int, ...] = (128, 512, 2048)
    batch: int = 1
    rounds: int = 5
    threads: int = 1
    device: str = "cpu"
    dtype: str = "auto"


def main(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    model = load_backbone(settings.model, settings.device, settings.dtype).model
    kind = f"{model.dtype}".removeprefix("torch.")
    print(f"{settings.model}, {kind}, {model.device}, {settings.threads} threads, {settings.batch} a batch")
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
    print("\npeak MB, and above the idle model\n     N        prefill   with signals  ratio")
    context = multiprocessing.get_context("spawn")
    for length in settings.lengths:
        peaks = []
        for with_signals in (False, True):
            with context.Pool(1) as pool:
                peaks.append(pool.apply(peak_memory, (settings, length, with_signals)))
        (bare, bare_above), (full, full_above) = peaks
        print(
            f"{length:>6} {bare:>7.0f} ({bare_above:>4.0f}) {full:>7.0f} ({full_above:>4.0f}) "
            f"{full / bare:>6.3f}{mark(full / bare, MEMORY_BOUND)}",
            flush=True,
        )
    print("\n! over its bound: received 5% of the prefill, entropy 1.3 head products, memory 1.1")


def mark(ratio: float, bound: float) -> str:
    return "!" if ratio > bound else " "


def random_ids(model: Any, length: int, batch: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.get_text_config().vocab_size, (batch, length), generator=generator)


def prefill(model: Any, ids: torch.Tensor) -> Any:
    with torch.no_grad():
        return model(ids.to(model.device), use_cache=False, logits_to_keep=1)


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
    mask = torch.ones_like(ids)
    with torch.no_grad():
        hidden = model.get_decoder()(ids.to(model.device), use_cache=False).last_hidden_state.flatten(0, 1)
    head = model.get_output_embeddings()
    return {
        "prefill": lambda: prefill(model, ids),
        "signals": lambda: extract(model, ids, mask),
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
    ids = random_ids(model, length, settings.batch)

    def run(ids: torch.Tensor) -> None:
        if with_signals:
            extract(model, ids, torch.ones_like(ids))
        else:
            prefill(model, ids)

    run(ids[:, :8])
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        idle = torch.cuda.memory_allocated()
        run(ids)
        peak = torch.cuda.max_memory_allocated()
        return peak / 1e6, (peak - idle) / 1e6
    idle_mb = resident_peak_mb(reset=True)
    run(ids)
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
