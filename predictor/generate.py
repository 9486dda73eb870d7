"""Sampling answers in batches with a plain decode loop, reproducible request by request.

A request's token at step t is the inverse of the model's cumulative distribution at its own t-th uniform
number. So its randomness does not depend on who shares the batch; only the rounding of the matrix products
does. Rows that have ended leave the batch, keys and values are kept in buffers that grow by blocks.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.cache_utils import DynamicCache, DynamicLayer

GROW = 64


class _BufferedLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer that appends in place: `torch.cat` in every step costs a third of the decoding time."""

    keys: torch.Tensor
    values: torch.Tensor
    buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        need = held + key_states.shape[-2]
        if self.buffers is None or need > self.buffers[0].shape[-2]:
            shape = (*key_states.shape[:-2], need + GROW, key_states.shape[-1])
            grown = key_states.new_zeros(shape), value_states.new_zeros((*shape[:-1], value_states.shape[-1]))
            if held:
                grown[0][..., :held, :] = self.keys
                grown[1][..., :held, :] = self.values
            self.buffers = grown
        self.buffers[0][..., held:need, :] = key_states
        self.buffers[1][..., held:need, :] = value_states
        self.keys, self.values = (b[..., :need, :] for b in self.buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self.buffers is not None:
            held = self.get_seq_length()
            self.buffers = (self.buffers[0][indices], self.buffers[1][indices])
            self.keys, self.values = (b[..., :held, :] for b in self.buffers)


@dataclass(frozen=True)
class Answer:
    """One sampled answer: its token ids, the stop token included, and whether it was cut at the limit."""

    token_ids: list[int]
    censored: bool


def make_cache(config: Any) -> DynamicCache:
    """A cache for `config` whose full-attention layers append in place."""
    cache = DynamicCache(config=config)
    cache.layers = [_BufferedLayer() if type(x) is DynamicLayer else x for x in cache.layers]
    return cache


def cache_argument(model: Any) -> str:
    """The name of the cache argument of `forward`, which was renamed within transformers 5."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@torch.inference_mode()
def sample(
    model: Any,
    prompts: list[list[int]],
    temperatures: NDArray[np.float64],
    uniforms: NDArray[np.float64],
    stop_ids: tuple[int, ...],
    pad_id: int,
    top_k: int = 50,
    top_p: float = 0.9,
) -> list[Answer]:
    """Sample one answer to each prompt, in one batch.

    `prompts`: B lists of token ids; `temperatures`: (B,), 0 is greedy; `uniforms`: (B, limit) numbers in
    [0, 1), one a token, so their width is the limit in tokens. An answer ends with the first of `stop_ids`
    (which is counted: the engine spends a step on it), or is cut at the limit and marked as censored.
    """
    device = model.device
    width = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (width - len(p)) + p for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    heat = torch.tensor(temperatures, device=device, dtype=torch.float32)[:, None]
    draws = torch.tensor(uniforms, device=device, dtype=torch.float32)
    stop = torch.tensor(stop_ids, device=device)
    limit = uniforms.shape[1]
    cache = {cache_argument(model): make_cache(model.config)}
    answers: list[list[int]] = [[] for _ in prompts]
    rows = torch.arange(len(prompts), device=device)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    for step in range(limit):
        logits = model(
            ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1, **cache
        ).logits[:, -1]
        token = _draw(logits, heat[rows], draws[rows, step : step + 1], top_k, top_p)
        for row, done, value in zip(rows.tolist(), ended.tolist(), token[:, 0].tolist(), strict=True):
            if not done:
                answers[row].append(value)
        ended |= torch.isin(token[:, 0], stop)
        if bool(ended.all()):
            break
        ids, positions = token, positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        if int(ended.sum()) * 8 >= len(rows):
            keep = torch.nonzero(~ended)[:, 0]
            next(iter(cache.values())).batch_select_indices(keep)
            ids, positions, mask = ids[keep], positions[keep], mask[keep]
            rows, ended = rows[keep], ended[keep]
    return [Answer(a, a[-1] not in stop_ids) for a in answers]


def _draw(
    logits: torch.Tensor, temperature: torch.Tensor, uniform: torch.Tensor, top_k: int, top_p: float
) -> torch.Tensor:
    """(B, V) logits, (B, 1) temperatures and uniforms -> (B, 1) token ids by the inverse distribution.

    Kept are the `top_k` likeliest tokens (0: all), of these the fewest whose probabilities reach `top_p`.
    """
    kept, ids = logits.float().topk(top_k or logits.shape[1], dim=-1)
    probabilities = torch.softmax(kept / temperature.clamp(min=1e-6), -1)
    before = probabilities.cumsum(-1) - probabilities
    cumulative = torch.where(before < top_p, probabilities, 0.0).cumsum(-1)
    picked = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    picked = picked.clamp(max=ids.shape[1] - 1)
    return ids.gather(1, torch.where(temperature > 0, picked, 0))
