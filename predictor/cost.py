"""What a prediction costs: milliseconds and megabytes a prompt, measured, one prompt at a time.

The figures are of the machine and the moment, unlike every other figure of an evaluation. `prefill` is what the
server pays anyway (no output head but for the last token); `signals` and `layers` are what reading the states adds
to it; a method's own cost is from there to its forecast. A method with an encoder of its own pays for that alone.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from predictor.backbone import Backbone
from predictor.layers import prompt_layers
from predictor.methods import Data, Method
from predictor.signals import extract
from predictor.train import Split

REPEATS = 3


def measure_cost(
    backbone: Backbone | None, data: Data, methods: Sequence[Method], split: Split, prompts: int = 16
) -> list[dict[str, Any]]:
    """Rows (what, ms, mb): medians over test prompts of the time and of the peak of torch's allocations.

    The first rows are the LLM's, if a method reads it. Training is not counted; the methods are fitted here.
    """
    rows = []
    chosen = _different(data, split)[:prompts]
    if backbone is not None:
        model, encoded = backbone.model, [backbone.encode(data.prompts[i]) for i in chosen]
        with torch.no_grad():
            prefill = _measured([partial(_prefill, model, ids) for ids in encoded])
            signals = _measured([partial(_signals, model, ids) for ids in encoded])
            layers = _measured([partial(prompt_layers, model, [ids]) for ids in encoded])
        rows.append({"what": "prefill", "ms": prefill[0], "mb": prefill[1]})
        for name, (ms, mb) in {"signals": signals, "layers": layers}.items():
            rows.append({"what": f"reading {name}", "ms": ms - prefill[0], "mb": mb - prefill[1]})
    for method in methods:
        predict = method.fit(data, split, 0)
        ms, mb = _measured([partial(predict, np.array([i])) for i in chosen])
        rows.append({"what": method.name, "ms": ms, "mb": mb, "reads": sorted(method.reads)})
    return rows


def _different(data: Data, split: Split) -> list[int]:
    """One test row of each prompt, spread over the test part."""
    first = {data.prompts[i]: int(i) for i in reversed(split.test)}
    return [int(i) for i in np.random.default_rng(0).permutation(sorted(first.values()))]


def _measured(calls: Sequence[Callable[[], Any]]) -> tuple[float, float]:
    """Medians over the calls: least milliseconds of three, and the peak of allocations in MB of a fourth."""
    times, peaks = [], []
    for call in calls:
        least = np.inf
        for _ in range(REPEATS):
            start = time.perf_counter()
            call()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            least = min(least, time.perf_counter() - start)
        times.append(1e3 * least)
        peaks.append(peak_mb(call))
    return float(np.median(times)), float(np.median(peaks))


def peak_mb(call: Callable[[], Any]) -> float:
    """Peak of torch's allocations during a call, in MB: those on the GPU once this process has used one."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return float((torch.cuda.max_memory_allocated() - before) / 1e6)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    found = seen.profiler.kineto_results.events() if seen.profiler else []
    changes = sorted((e.start_ns(), e.nbytes()) for e in found if e.name() == "[memory]")
    return float(max(np.cumsum([size for _, size in changes]), default=0) / 1e6)


def _signals(model: Any, ids: list[int]) -> Any:
    # Not `iter_signals`, which first tries a model out on eight tokens: once a run, not once a prompt.
    tokens = torch.tensor([ids])
    return extract(model, tokens, torch.ones_like(tokens))


def _prefill(model: Any, ids: list[int]) -> Any:
    hidden = model.get_decoder()(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    return model.get_output_embeddings()(hidden.last_hidden_state[:, -1])
