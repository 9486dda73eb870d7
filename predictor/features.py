"""Signals of many prompts, read once and kept in the user's cache, and the features pooled from them.

Hidden states are kept in half precision, and rounded so before every pooling, whether they come from the
cache or straight from the backbone: a head sees the same numbers in training and in use.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from predictor.backbone import Backbone, cache_folder
from predictor.pooling import PoolingSettings, PositionTrend, pool
from predictor.signals import Signals, iter_signals
from predictor.stored import finished
from predictor.threads import one_thread
from traces.files import atomic_path

SHARD_PROMPTS = 64
BATCH_TOKENS = 1024
GPU_BATCH_TOKENS = 16_384


@dataclass(frozen=True, eq=False)
class PromptSignals:
    """One prompt of N tokens: hidden (N, d) float16, entropy and received (N,) float32, on the CPU.

    last: {k: (d,) float16}, the last token's state in each layer k that was asked for.
    """

    hidden: Tensor
    entropy: Tensor
    received: Tensor
    window: int | None
    last: Mapping[int, Tensor] = field(default_factory=dict)


def of(signals: Signals) -> PromptSignals:
    """The part that poolings need, copied out of its batch."""
    return PromptSignals(
        signals.hidden.to("cpu", torch.float16, copy=True),
        signals.entropy.to("cpu", copy=True),
        signals.received.to("cpu", copy=True),
        signals.window,
        {k: states[-1].to("cpu", torch.float16, copy=True) for k, states in signals.layers.items()},
    )


def batch_tokens(device: torch.device) -> int:
    """How many tokens, padding counted, share a forward pass on this device."""
    return BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS


def iter_prompt_signals(
    backbone: Backbone, encoded: Sequence[Sequence[int]], layers: Sequence[int] = ()
) -> Iterator[tuple[int, PromptSignals]]:
    """Yield (index, signals) of many prompts (lists of token ids), longest first, in batches that suit the device.

    `layers`: those whose last token's state is kept as well, 0 the embeddings.
    """
    read = iter_signals(
        backbone.model,
        encoded,
        batch_tokens=batch_tokens(backbone.device),
        device="cpu",
        hidden_dtype=torch.float16,
        layers=layers,
    )
    for index, signals in read:
        yield index, of(signals)


def read_signals(
    backbone: Backbone, prompts: Sequence[str], *, folder: Path | None = None, progress: bool = True
) -> list[PromptSignals]:
    """Signals of each prompt, in order; equal texts are read once.

    Finished shards stay in `folder` (by default in the user's cache, named by model, precision and prompts),
    so a second call, or one after a kill, reads them back.
    """
    texts = list(dict.fromkeys(prompts))
    encoded = [backbone.encode(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: (-len(encoded[i]), i))
    shards = [order[k : k + SHARD_PROMPTS] for k in range(0, len(order), SHARD_PROMPTS)]
    folder = folder or cache_folder() / "signals" / _key(backbone, encoded)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, PromptSignals] = {}
    total = sum(map(len, encoded))
    with tqdm(total=total, unit="token", desc="prefill", disable=not progress, leave=False) as bar:
        for number, shard in enumerate(shards):
            file = folder / f"{number:05d}.safetensors"
            if not file.exists():
                batch = [encoded[i] for i in shard]
                rows = dict(iter_prompt_signals(backbone, batch))
                with atomic_path(file) as temporary:
                    save_file(_pack([rows[k] for k in range(len(batch))]), temporary)
            for i, signals in zip(shard, finished(file, _read), strict=True):
                found[texts[i]] = signals
            bar.update(sum(len(encoded[i]) for i in shard))
    return [found[text] for text in prompts]


def pooled_features(
    signals: Sequence[PromptSignals],
    settings: Sequence[PoolingSettings],
    trend: PositionTrend | None,
    prompts: Sequence[str],
) -> Tensor:
    """(G, n, d) float32 features of n prompts under G settings; a prompt that comes again is pooled once.

    The permutation of `permuted` settings is seeded by the prompt's text, so it is the same in every split.
    """
    done: dict[str, Tensor] = {}
    with one_thread():
        for text, one in zip(prompts, signals, strict=True):
            if text not in done:
                done[text] = pool(
                    one.hidden,
                    settings,
                    one.entropy,
                    one.received,
                    trend=trend,
                    window=one.window,
                    rng=prompt_rng(text),
                )
    return torch.stack([done[text] for text in prompts], 1)


def prompt_rng(text: str) -> np.random.Generator:
    """The generator that draws a prompt's permutation, the same wherever the prompt comes up."""
    return np.random.default_rng(zlib.crc32(text.encode()))


def fit_trend(signals: Sequence[PromptSignals], prompts: Sequence[str]) -> PositionTrend:
    """The position trend of the attention received over the given (training) prompts, each counted once."""
    once = dict(zip(prompts, signals, strict=True))
    window = next(iter(once.values())).window if once else None
    return PositionTrend.fit((one.received for one in once.values()), window)


def fingerprint(backbone: Backbone) -> str:
    """Short hash of the model's configuration and of a few of its weights: is it the same model?"""
    config = {k: v for k, v in backbone.model.config.to_dict().items() if not k.startswith(("_", "transf"))}
    parameters = list(backbone.model.parameters())
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for tensor in parameters[:: max(1, len(parameters) // 8)]:
        digest.update(tensor.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def _key(backbone: Backbone, encoded: list[list[int]]) -> str:
    digest = hashlib.sha256(f"{fingerprint(backbone)} {backbone.model.dtype}".encode())
    digest.update(json.dumps(encoded).encode())
    return digest.hexdigest()[:24]


def _pack(rows: list[PromptSignals]) -> dict[str, Tensor]:
    return {
        "hidden": torch.cat([r.hidden for r in rows]),
        "entropy": torch.cat([r.entropy for r in rows]),
        "received": torch.cat([r.received for r in rows]),
        "lengths": torch.tensor([len(r.entropy) for r in rows]),
        "window": torch.tensor(-1 if rows[0].window is None else rows[0].window),
    }


def _read(file: Path) -> list[PromptSignals]:
    stored = load_file(file)
    lengths = stored["lengths"].tolist()
    window = int(stored["window"])
    parts = [stored[name].split(lengths) for name in ("hidden", "entropy", "received")]
    return [PromptSignals(h, e, r, None if window < 0 else window) for h, e, r in zip(*parts, strict=True)]
