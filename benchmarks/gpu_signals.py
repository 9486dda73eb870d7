"""Token signals on a GPU: what each part costs, tokens a second by token budget, and what pinned transfers save.

    python benchmarks/gpu_signals.py --model Qwen/Qwen2.5-7B-Instruct

Without a GPU `--device cpu` runs the same lines on a small model, to see that they run. Prompts have lognormal
lengths from a fixed seed. Times are elapsed, the least of the rounds; throughput counts everything from token ids
on the host to signals on the host, half precision, as `estp predict` reads them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro
from signals import drain, fastest, parts, random_ids

from predictor.backbone import EMBEDDED, load_backbone
from predictor.features import GPU_BATCH_TOKENS
from predictor.signals import batches, extract, iter_signals
from traces.errors import InputError


@dataclass(frozen=True)
class Settings:
    """`budgets`: tokens a batch, padding counted; `prompts`: how many, of `median` tokens in the middle."""

    model: str = EMBEDDED
    lengths: tuple[int, ...] = (512, 2048, 8192)
    budgets: tuple[int, ...] = (1024, 4096, GPU_BATCH_TOKENS, 65_536)
    prompts: int = 512
    median: int = 400
    rounds: int = 5
    device: str = "cuda"
    dtype: str = "auto"


def main(settings: Settings) -> None:
    model = load_backbone(settings.model, settings.device, settings.dtype).model
    kind = f"{model.dtype}".removeprefix("torch.")
    name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else model.device
    print(f"{settings.model}, {kind}, {name}, torch {torch.__version__}")
    print_parts(model, settings)
    print_blocks(model, settings)
    print_budgets(model, settings)
    print_transfers(model, settings)


def print_parts(model: Any, settings: Settings) -> None:
    print(f"\n{'ms':>6} | {'prefill':>9} | {'received':>9} {'of it':>6} | {'entropy':>9} {'head':>9} ratio "
          f"| {'signals':>9} ratio | MB: prefill  signals  ratio")  # fmt: skip
    for length in settings.lengths:
        runs = parts(model, length, 1)
        ms = fastest(runs, settings.rounds, model.device)
        bare, full = (peak_mb(runs[name], model.device) for name in ("prefill", "signals"))
        print(
            f"{length:>6} | {ms['prefill']:>9.2f} | {ms['received']:>9.2f} {ms['received'] / ms['prefill']:>6.1%} "
            f"| {ms['entropy']:>9.2f} {ms['head']:>9.2f} {ms['entropy'] / ms['head']:>5.2f} "
            f"| {ms['signals']:>9.2f} {ms['signals'] / ms['prefill']:>5.2f} "
            f"| {bare:>11.0f} {full:>8.0f} {full / bare:>6.3f}",
            flush=True,
        )


def print_blocks(model: Any, settings: Settings) -> None:
    """Whether larger blocks than the CPU's pay: fewer launches against more scratch memory."""
    length = settings.lengths[-1]
    ids = random_ids(model, length, 1)
    print(f"\nN {length}: query block, logit rows, ms, peak MB")
    for query_block, logit_rows in ((64, 128), (128, 512), (256, 1024), (512, 2048)):

        def run(query_block: int = query_block, logit_rows: int = logit_rows) -> None:
            extract(model, ids, torch.ones_like(ids), query_block=query_block, logit_rows=logit_rows)

        ms = fastest({"all": run}, settings.rounds, model.device)["all"]
        print(f"{query_block:>6} {logit_rows:>6} {ms:>10.2f} {peak_mb(run, model.device):>10.0f}", flush=True)


def print_budgets(model: Any, settings: Settings) -> None:
    prompts = drawn_prompts(model, settings)
    lengths = [len(ids) for ids in prompts]
    tokens = sum(lengths)
    print(f"\n{len(prompts)} prompts, {tokens} tokens, longest {max(lengths)}")
    print("budget  batches  padding  tokens/s with signals  of the decoder alone  ratio")
    for budget in settings.budgets:
        cut = batches(lengths, budget)
        padded = sum(len(batch) * lengths[batch[0]] for batch in cut)

        def bare(cut: list[list[int]] = cut) -> None:
            for batch in cut:
                ids = random_ids(model, lengths[batch[0]], len(batch))
                with torch.no_grad():
                    model.get_decoder()(input_ids=ids.to(model.device), use_cache=False)

        def full(budget: int = budget) -> None:
            for _ in read(model, prompts, budget):
                pass

        s = {name: elapsed(run, settings, model.device) for name, run in (("full", full), ("bare", bare))}
        print(
            f"{budget:>6} {len(cut):>8} {1 - tokens / padded:>8.1%} {tokens / s['full']:>22.0f} "
            f"{tokens / s['bare']:>21.0f} {s['full'] / s['bare']:>6.2f}",
            flush=True,
        )


def print_transfers(model: Any, settings: Settings) -> None:
    """One batch ahead in pinned memory, against results that are fetched one by one as they are needed."""
    prompts = drawn_prompts(model, settings)

    def fetched() -> None:
        for _, signals in iter_signals(model, prompts, batch_tokens=GPU_BATCH_TOKENS):
            for x in (signals.hidden, signals.entropy, signals.received):
                x.cpu()

    def pinned() -> None:
        for _ in read(model, prompts, GPU_BATCH_TOKENS):
            pass

    print("\nms for all prompts, results on the host")
    for name, run in (("fetched one by one", fetched), ("pinned, one batch ahead", pinned)):
        print(f"{name:<24} {1e3 * elapsed(run, settings, model.device):>10.1f}", flush=True)


def read(model: Any, prompts: list[list[int]], budget: int) -> Any:
    return iter_signals(model, prompts, batch_tokens=budget, device="cpu", hidden_dtype=torch.float16)


def drawn_prompts(model: Any, settings: Settings) -> list[list[int]]:
    """Random token ids; lengths are lognormal around the median (sigma 0.8), no longer than the longest measured."""
    rng = np.random.default_rng(0)
    drawn = settings.median * rng.lognormal(0, 0.8, settings.prompts)
    vocab = model.config.get_text_config().vocab_size
    return [
        rng.integers(vocab, size=n).tolist() for n in drawn.round().clip(1, max(settings.lengths)).astype(int)
    ]


def elapsed(run: Callable[[], Any], settings: Settings, device: torch.device) -> float:
    """Seconds, the least of the rounds after one to warm up."""
    best = float("inf")
    for number in range(settings.rounds + 1):
        drain(device)
        start = time.perf_counter()
        run()
        drain(device)
        if number:
            best = min(best, time.perf_counter() - start)
    return best


def peak_mb(run: Callable[[], Any], device: torch.device) -> float:
    """Most memory that torch had allocated on the GPU, model included; nan elsewhere."""
    if device.type != "cuda":
        return float("nan")
    torch.cuda.reset_peak_memory_stats(device)
    run()
    return torch.cuda.max_memory_allocated(device) / 1e6


if __name__ == "__main__":
    try:
        main(tyro.cli(Settings))
    except InputError as error:
        raise SystemExit(f"gpu_signals: {error}") from error
