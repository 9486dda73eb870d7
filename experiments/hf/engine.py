"""Padded batches for real: one prefill, then decode steps until the longest output, each step timed."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Protocol

import numpy as np
import torch

from predictor.backbone import Backbone
from predictor.generate import cache_argument, make_cache

REFERENCE_SIZE = 384
REFERENCE_REPEATS = 60


@dataclass(frozen=True)
class BatchTimes:
    """Seconds: of the prefill, and of each decode step."""

    prefill_s: float
    decode_s: tuple[float, ...]


class Engine(Protocol):
    """What runs padded batches; `PaddedEngine`, or one whose times are known."""

    def run(self, prompts: Sequence[Sequence[int]], steps: int) -> BatchTimes:
        """Compute ``steps`` tokens for each of the prompts (lists of token ids), padded to the longest."""
        ...

    def reference_s(self) -> float:
        """Seconds of a fixed piece of arithmetic: how fast the machine is just now."""
        ...

    def prompt(self, tokens: int, rng: np.random.Generator) -> list[int]:
        """Any prompt of so many tokens."""
        ...


@dataclass(frozen=True, eq=False)
class PaddedEngine:
    """A causal LM of transformers. Every slot is computed in every step, finished or not.

    Attributes:
        backbone: the model and its tokenizer.
        clock: seconds, monotonic.
    """

    backbone: Backbone
    clock: Callable[[], float] = time.perf_counter

    @torch.inference_mode()
    def run(self, prompts: Sequence[Sequence[int]], steps: int) -> BatchTimes:
        """Greedy tokens; the times hold the whole step, building its inputs and reading its tokens included."""
        model, width, began_s = self.backbone.model, max(map(len, prompts)), self.clock()
        padded = [[0] * (width - len(p)) + list(p) for p in prompts]
        kept = [[0] * (width - len(p)) + [1] * len(p) for p in prompts]
        ids, mask = (torch.tensor(rows, device=model.device) for rows in (padded, kept))
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache: dict[str, Any] = {cache_argument(model): make_cache(model.config)}
        ends_s = []
        for _ in range(steps):
            logits = model(
                ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1, **cache
            ).logits[:, -1]
            ids = logits.argmax(-1, keepdim=True)
            ids.tolist()  # waits for the device
            positions = positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
            ends_s.append(self.clock())
        spans = np.diff([began_s, *ends_s]).tolist()
        return BatchTimes(spans[0], tuple(spans[1:]))

    def reference_s(self) -> float:
        """The median of repeated float32 matrix products on the model's device."""
        square = torch.ones(REFERENCE_SIZE, REFERENCE_SIZE, device=self.backbone.device)
        times = []
        for _ in range(REFERENCE_REPEATS):
            began_s = self.clock()
            (square @ square)[0, 0].item()
            times.append(self.clock() - began_s)
        return float(np.median(times))

    def prompt(self, tokens: int, rng: np.random.Generator) -> list[int]:
        """Random ids of the vocabulary: the time of a step does not depend on which."""
        size = self.backbone.model.config.get_text_config().vocab_size
        return [int(token) for token in rng.integers(0, size, tokens)]

    def about(self) -> dict[str, Any]:
        """What runs, and on what: no host names or paths."""
        device = self.backbone.device
        machine = {"cpu": cpu_name(), "threads": torch.get_num_threads()}
        if device.type == "cuda":
            machine["gpu"] = torch.cuda.get_device_name(device)
        return {
            "engine": "hf",
            "model": self.backbone.name.rstrip("/").rpartition("/")[2],
            "dtype": str(self.backbone.model.dtype).removeprefix("torch."),
            "device": device.type,
            "machine": machine,
            "versions": {
                "python": platform.python_version(),
                **{name: metadata.version(name) for name in ("torch", "transformers")},
            },
        }


def cpu_name() -> str:
    """The processor's model, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
