"""Attention received by each head of the last layer, read once and kept in the user's cache."""

import hashlib
import json
from collections.abc import Sequence

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm

from predictor.backbone import Backbone, cache_folder
from predictor.features import BATCH_TOKENS, SHARD_PROMPTS, fingerprint
from predictor.signals import iter_signals
from traces.files import atomic_path


def read_heads(backbone: Backbone, prompts: Sequence[str]) -> list[Tensor]:
    """(N, heads) float32 of each prompt, in order; sums over N are one. Finished shards are read back after a kill."""
    texts = list(dict.fromkeys(prompts))
    encoded = [backbone.encode(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: (-len(encoded[i]), i))
    key = hashlib.sha256(f"{fingerprint(backbone)} {backbone.model.dtype} {json.dumps(encoded)}".encode())
    folder = cache_folder() / "heads" / key.hexdigest()[:24]
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Tensor] = {}
    with tqdm(total=sum(map(len, encoded)), unit="token", desc="heads") as bar:
        for start in range(0, len(order), SHARD_PROMPTS):
            shard = order[start : start + SHARD_PROMPTS]
            batch, file = [encoded[i] for i in shard], folder / f"{start:05d}.safetensors"
            if not file.exists():
                rows = dict(iter_signals(backbone.model, batch, batch_tokens=BATCH_TOKENS))
                columns = [rows[k].received_by_head.T.cpu() for k in range(len(shard))]
                with atomic_path(file) as temporary:
                    save_file({"received": torch.cat(columns)}, temporary)
            parts = load_file(file)["received"].split([len(ids) for ids in batch])
            found.update(zip((texts[i] for i in shard), parts, strict=True))
            bar.update(sum(map(len, batch)))
    return [found[text] for text in prompts]
