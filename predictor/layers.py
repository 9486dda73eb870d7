"""Mean and last-token hidden state of every layer for each prompt, read once and kept in the user's cache.

Layer k is transformers' `hidden_states[k]`: 0 the token embeddings, L (the number of layers) the last hidden
state after the final norm. The states are reduced as the forward pass goes by, so that memory does not grow
with the number of layers; the output head is not run. Kept in half precision, like the signals.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from predictor.backbone import Backbone, cache_folder
from predictor.features import SHARD_PROMPTS, batch_tokens, fingerprint
from predictor.hooks import layer_inputs
from predictor.signals import batches
from predictor.stored import finished
from traces.errors import InputError
from traces.files import atomic_path


@dataclass(frozen=True, eq=False)
class LayerFeatures:
    """Features of P different prompts and the rows that they belong to.

    mean, last: (P, L + 1, d) float16, the mean over a prompt's tokens and the state of its last token.
    prompt_of: (n,) int64, the prompt of each row of the trace.
    """

    mean: Tensor
    last: Tensor
    prompt_of: NDArray[np.int64]

    @property
    def count(self) -> int:
        """L + 1: the model's layers and the embeddings."""
        return self.mean.shape[1]

    def mean_of(self, layer: int) -> Tensor:
        """(n, d) float32, in row order."""
        return self.mean[self.prompt_of, layer].float()

    def last_of(self, layer: int) -> Tensor:
        """(n, d) float32, in row order."""
        return self.last[self.prompt_of, layer].float()

    def side_by_side(self, layers: Sequence[int]) -> Tensor:
        """(n, len(layers) d) float32, in row order: the last token's states of these layers in one row.

        Raises InputError for a layer that the model has not.
        """
        for layer in layers:
            if not 0 <= layer < self.count:
                raise InputError(f"layer {layer} is not one of the model's 0..{self.count - 1}")
        return torch.cat([self.last_of(layer) for layer in layers], 1)

    def at(self, depths: Sequence[float]) -> list[int]:
        """The layers at these shares of the depth, 0 the embeddings and 1 the last hidden state."""
        return [round(share * (self.count - 1)) for share in depths]


def read_layers(
    backbone: Backbone, prompts: Sequence[str], *, folder: Path | None = None, progress: bool = True
) -> LayerFeatures:
    """Features of each prompt; equal texts are read once.

    Finished shards stay in `folder` (by default in the user's cache, named by model, precision and prompts),
    so a second call, or one after a kill, reads them back.
    """
    texts = list(dict.fromkeys(prompts))
    encoded = [backbone.encode(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: (-len(encoded[i]), i))
    shards = [order[k : k + SHARD_PROMPTS] for k in range(0, len(order), SHARD_PROMPTS)]
    folder = folder or cache_folder() / "layers" / _key(backbone, encoded)
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    with tqdm(total=sum(map(len, encoded)), unit="token", desc="layers", disable=not progress) as bar:
        for number, shard in enumerate(shards):
            file = folder / f"{number:05d}.safetensors"
            if not file.exists():
                mean, last = prompt_layers(backbone.model, [encoded[i] for i in shard])
                with atomic_path(file) as temporary:
                    save_file({"mean": mean.half(), "last": last.half()}, temporary)
            parts.append(finished(file, load_file))
            bar.update(sum(len(encoded[i]) for i in shard))
    place = np.argsort(np.array(order))
    mean, last = (torch.cat([part[name] for part in parts])[place] for name in ("mean", "last"))
    row_of = {text: i for i, text in enumerate(texts)}
    return LayerFeatures(mean, last, np.array([row_of[text] for text in prompts], dtype=np.int64))


@torch.no_grad()
def prompt_layers(
    model: Any, prompts: Sequence[Sequence[int]], budget: int | None = None
) -> tuple[Tensor, Tensor]:
    """(P, L + 1, d) float32 on the CPU, twice: mean and last token of each of P prompts (lists of token ids).

    `budget`: tokens of a batch, padding counted; by default what suits the model's device. Padding goes to the
    right, where a causal model needs no mask.
    """
    decoder = model.get_decoder()
    count, size = len(decoder.layers) + 1, model.config.get_text_config().hidden_size
    mean, last = (torch.empty(len(prompts), count, size) for _ in range(2))
    for batch in batches([len(ids) for ids in prompts], budget or batch_tokens(model.device)):
        lengths = torch.tensor([len(prompts[i]) for i in batch], device=model.device)
        ids = pad_sequence([torch.as_tensor(prompts[i]) for i in batch], batch_first=True)
        valid = (torch.arange(ids.shape[1], device=model.device) < lengths[:, None]).float()

        def reduce(k: int, states: Tensor, batch: list[int] = batch, valid: Tensor = valid) -> None:
            tokens = valid.sum(1).long()
            totals = torch.einsum("bnd,bn->bd", states.float(), valid)
            mean[batch, k] = (totals / tokens[:, None]).cpu()
            last[batch, k] = states[torch.arange(len(batch)), tokens - 1].float().cpu()

        with layer_inputs(decoder, reduce):
            final = decoder(input_ids=ids.to(model.device), use_cache=False).last_hidden_state
        reduce(count - 1, final)
    return mean, last


def _key(backbone: Backbone, encoded: list[list[int]]) -> str:
    digest = hashlib.sha256(f"{fingerprint(backbone)} {backbone.model.dtype}".encode())
    digest.update(json.dumps(encoded).encode())
    return digest.hexdigest()[:24]
