"""Token signals of a prompt from one prefill: hidden states, next-token entropy, attention received.

The backbone runs with its own fast attention. Only the last layer is given another attention function, one
that forwards to the fast one and also reduces that layer's queries and keys (as the layer itself made them:
norms, rotary embedding, scale, soft cap, window, grouped heads) to column sums, block by block. Entropies
come from the hidden states, some rows at a time, through the output head. So neither an N x N attention of
all layers nor N x V logits ever exist, and memory is linear in N.

Padding always goes to the right, whatever side the caller had it on: there a causal model needs no mask, so
the fast kernels stay in use and a prompt's numbers do not depend on its batch.

On a GPU the host only launches work: what goes up is pinned, nothing on the device is looked at within a batch,
and what comes down is one run of copies that an event closes, while the next batch is under way already.
"""

import copy
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import masking_utils
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from predictor.hooks import layer_inputs
from traces.errors import InputError

_TAPPED = "estp_received"


@dataclass(frozen=True, eq=False)
class Signals:
    """What one prompt of N valid tokens shows in the backbone's prefill.

    hidden: (N, d), the backbone's dtype if no other was asked for, after the final norm (transformers'
        `hidden_states[-1]`).
    entropy: (N,) float32, nats, of the next-token distribution over the full vocabulary.
    received: (N,) float32, S_j = (1/N) sum_i A_ij, A the last layer's self-attention averaged over heads
        (arXiv 2608.15592, eq. 1). It sums to one.
    received_by_head: (heads, N) float32, the same before the average.
    window: the last layer's sliding window in tokens (a query sees itself and window - 1 before it), or None.
    layers: {k: (N, d)}, transformers' `hidden_states[k]` of the layers that were asked for.

    Tensors are views into those of the batch: keeping one prompt's hidden states keeps its batch's.
    """

    hidden: Tensor
    entropy: Tensor
    received: Tensor
    received_by_head: Tensor
    window: int | None = None
    layers: Mapping[int, Tensor] = field(default_factory=dict)


def extract(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    *,
    query_block: int = 64,
    logit_rows: int = 128,
    layers: Sequence[int] = (),
) -> list[Signals]:
    """Signals of one batch; the results stay on the model's device.

    `model`: a transformers causal LM; `input_ids`, `attention_mask`: (B, N), best on the CPU (from a GPU they
    cost one wait before the batch), padded on either side. `query_block` and `logit_rows` bound the scratch
    memory (B x heads x query_block x N and logit_rows x V floats), not the result.
    Raises InputError for a prompt without tokens, a mask with holes, and a model that cannot be read.
    """
    mask = attention_mask.cpu().bool()
    edges = torch.nn.functional.pad(mask.int(), (1, 1)).diff(dim=1).abs().sum(1)
    for row in torch.nonzero(edges != 2)[:, 0].tolist():
        raise InputError(f"prompt {row} of the batch needs one unbroken run of tokens in its attention mask")
    prompts = [ids[valid] for ids, valid in zip(input_ids.cpu(), mask, strict=True)]
    return _prefill(model, prompts, _Reading(query_block, logit_rows, layers)).signals


def iter_signals(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 4096,
    device: torch.device | str | None = None,
    hidden_dtype: torch.dtype | None = None,
    query_block: int = 64,
    logit_rows: int = 128,
    layers: Sequence[int] = (),
) -> Iterator[tuple[int, Signals]]:
    """Yield (index, Signals) of many prompts (lists of token ids), longest first, each index once.

    Prompts of like length share a batch of at most `batch_tokens` tokens, padding counted (a longer prompt is
    a batch of its own). `device` is where the results go: by default they stay on the model's device; from a GPU
    to "cpu" they come in pinned memory, at the cost of one wait a batch, and one batch runs ahead of what is
    yielded. `hidden_dtype`: of `hidden` and `layers`, cast before they travel; by default the model's.
    Raises InputError, before any work, for an empty or too long prompt, a token id outside the vocabulary and a
    model that cannot be read.
    """
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    for index, ids in enumerate(prompts):
        if not len(ids) or (limit and len(ids) > limit):
            raise InputError(f"prompt {index} has {len(ids)} tokens; the model takes 1 to {limit}")
        if min(ids) < 0 or max(ids) >= config.vocab_size:
            raise InputError(f"prompt {index} has a token outside 0..{config.vocab_size - 1}")
    if prompts:
        check_model(model)
    reading = _Reading(query_block, logit_rows, layers, device, hidden_dtype)
    ahead = 1 if device is not None and torch.device(device).type != model.device.type else 0
    under_way: deque[tuple[list[int], _Launched]] = deque()
    for batch in batches([len(ids) for ids in prompts], batch_tokens):
        under_way.append((batch, _prefill(model, [torch.as_tensor(prompts[i]) for i in batch], reading)))
        if len(under_way) > ahead:
            yield from _finished(under_way)
    while under_way:
        yield from _finished(under_way)


def _finished(under_way: "deque[tuple[list[int], _Launched]]") -> Iterator[tuple[int, Signals]]:
    """The first of the batches, once it has arrived."""
    batch, launched = under_way.popleft()
    if launched.arrived is not None:
        launched.arrived.synchronize()
    return zip(batch, launched.signals, strict=True)


def batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices cut into batches, longest first (ties: smaller index), padded size at most `batch_tokens`."""
    out: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if out and (len(out[-1]) + 1) * lengths[out[-1][0]] <= batch_tokens:
            out[-1].append(index)
        else:
            out.append([index])
    return out


def check_model(model: Any) -> None:
    """Raise InputError unless this model's entropies and attention can be read rightly, seen on eight tokens.

    Families differ in what they do between the last hidden state and the logits (caps, scales); one of which
    this file knows nothing would give wrong entropies without a sign.
    """
    ids = torch.arange(8)[None].remainder(model.config.get_text_config().vocab_size)
    (signals,) = extract(model, ids, torch.ones_like(ids))
    with torch.no_grad():
        logits = model(ids.to(model.device), use_cache=False).logits[0].float()
    logs = logits.log_softmax(-1)
    wanted = -(logs.exp() * logs).sum(-1)
    tolerance = 1e-3 if signals.hidden.dtype == torch.float32 else 0.1
    if not torch.allclose(signals.entropy, wanted, atol=tolerance, rtol=tolerance):
        raise InputError(f"{type(model).__name__} changes its logits in a way that is not supported here")


def attention_received(
    query: Tensor,
    key: Tensor,
    lengths: Tensor,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    query_block: int = 64,
) -> Tensor:
    """(B, heads, N) float32: (1/n) sum over the n valid queries i of A_ij, per head.

    `query`: (B, heads, N, size), `key`: (B, key heads, N, size), after rotary embedding; `lengths`: (B,)
    valid tokens of right-padded rows. A is causal, and limited to `window` keys where that is given.
    """
    batch, heads, width, size = query.shape
    kv_heads = key.shape[1]
    key = key.float()
    received = torch.zeros(batch, kv_heads, heads // kv_heads, width, device=query.device)
    position = torch.arange(width, device=query.device)
    for start in range(0, width, query_block):
        stop = min(start + query_block, width)
        low = 0 if window is None else max(0, start - window + 1)
        # The heads that share a key head lie side by side, so one product serves them all.
        rows = query[:, :, start:stop].float().mul(scale).reshape(batch, kv_heads, -1, size)
        scores = rows @ key[:, :, low:stop].mT
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        age = position[start:stop, None] - position[low:stop]
        unseen = age < 0 if window is None else (age < 0) | (age >= window)
        scores = scores.view(batch, kv_heads, -1, stop - start, stop - low).masked_fill_(unseen, -torch.inf)
        weight = (position[start:stop] < lengths[:, None]) / lengths[:, None]
        received[..., low:stop] += (weight[:, None, None, None] @ scores.softmax(-1)).squeeze(-2)
    return received.flatten(1, 2)


def entropies(model: Any, hidden: Tensor, logit_rows: int = 128) -> Tensor:
    """(M,) float32, nats: entropy of the next-token distribution at each of (M, d) final hidden states."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    cap = getattr(config, "final_logit_softcapping", None)
    # Cohere multiplies its logits, Granite divides them.
    factor = getattr(config, "logit_scale", 1.0) / getattr(config, "logits_scaling", 1.0)
    out = torch.empty(len(hidden), device=hidden.device)
    for start in range(0, len(hidden), logit_rows):
        rows = slice(start, start + logit_rows)
        # A function, so that its scratch is free before the next rows claim theirs.
        out[rows] = _entropy(head(hidden[rows]).float(), factor, cap)
    return out


def _entropy(logits: Tensor, factor: float, cap: float | None) -> Tensor:
    """(M, V) -> (M,), in place: log sum_v w_v - sum_v w_v l_v / sum_v w_v, with w = exp(l) and l <= 0."""
    if factor != 1.0:
        logits.mul_(factor)
    if cap is not None:
        logits.div_(cap).tanh_().mul_(cap)
    logits -= logits.amax(-1, keepdim=True)
    weights = logits.exp()
    total = weights.sum(-1)
    return total.log() - weights.mul_(logits).sum(-1) / total


@dataclass(frozen=True)
class _Reading:
    """How to read a batch, and where to put what was read."""

    query_block: int
    logit_rows: int
    layers: Sequence[int] = ()
    device: torch.device | str | None = None
    hidden_dtype: torch.dtype | None = None


@dataclass(frozen=True)
class _Launched:
    """Signals of a batch that may still be on their way to the host; `arrived`: the event that ends it."""

    signals: list[Signals]
    arrived: torch.cuda.Event | None


@torch.no_grad()
def _prefill(model: Any, prompts: list[Tensor], reading: _Reading) -> _Launched:
    counts = [len(ids) for ids in prompts]
    ids = _upload(pad_sequence(prompts, batch_first=True), model.device)
    width = ids.shape[1]
    valid = _upload(torch.cat([torch.arange(n) + b * width for b, n in enumerate(counts)]), model.device)
    lengths = _upload(torch.tensor(counts), model.device)
    decoder = model.get_decoder()
    for k in reading.layers:
        if not 0 <= k <= len(decoder.layers):
            raise InputError(f"layer {k} is not one of the model's 0..{len(decoder.layers)}")
    middle: dict[int, Tensor] = {}

    def keep(k: int, states: Tensor) -> None:
        if k in reading.layers:
            middle[k] = states

    with _tapped(decoder, lengths, reading.query_block) as tap, layer_inputs(decoder, keep):
        # Without a mask, and where nothing is packed, transformers builds no N x N mask.
        padded = decoder(input_ids=ids, use_cache=False).last_hidden_state
    middle[len(decoder.layers)] = padded
    if tap.received is None:
        raise InputError(f"{type(model).__name__} does not use transformers' attention interface")
    hidden = padded.flatten(0, 1)[valid]
    entropy = entropies(model, hidden, reading.logit_rows)
    dtype = reading.hidden_dtype or hidden.dtype
    states = [hidden.to(dtype), *(middle[k].flatten(0, 1)[valid].to(dtype) for k in reading.layers)]
    tensors, arrived = _download([entropy, tap.received, tap.received.mean(1), *states], reading.device)
    entropy, by_head, received, *states = tensors
    rows = zip(*(x.split(counts) for x in (entropy, *states)), strict=True)
    signals = [
        Signals(
            h, e, received[b, :n], by_head[b, :, :n], tap.window, dict(zip(reading.layers, own, strict=True))
        )
        for b, (n, (e, h, *own)) in enumerate(zip(counts, rows, strict=True))
    ]
    return _Launched(signals, arrived)


def _download(
    tensors: list[Tensor], device: torch.device | str | None
) -> tuple[list[Tensor], torch.cuda.Event | None]:
    """The tensors on `device`; from a GPU to the host they are there only when the event has come."""
    if device is None:
        return tensors, None
    # To the host torch takes pinned memory by itself; of other devices it does not say when such a copy has ended.
    to_host = tensors[0].is_cuda and torch.device(device).type == "cpu"
    moved = [x.to(device, non_blocking=to_host) for x in tensors]
    return moved, torch.cuda.current_stream(tensors[0].device).record_event() if to_host else None


def _upload(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass
class _Tap:
    config: Any
    lengths: Tensor
    query_block: int
    window: int | None = None
    received: Tensor | None = None


_TAP: ContextVar[_Tap] = ContextVar("tap")


@contextmanager
def _tapped(decoder: Any, lengths: Tensor, query_block: int) -> Iterator[_Tap]:
    """Let the last layer's attention, and no other, run through `_forward_and_reduce`."""
    attention = getattr(decoder.layers[decoder.config.num_hidden_layers - 1], "self_attn", None)
    if attention is None or not getattr(attention, "is_causal", True):
        raise InputError(f"the last layer of {type(decoder).__name__} has no causal self-attention to read")
    tap = _Tap(attention.config, lengths, query_block)
    token = _TAP.set(tap)
    attention.config = copy.copy(attention.config)
    attention.config._attn_implementation_internal = _TAPPED
    try:
        yield tap
    finally:
        attention.config = tap.config
        _TAP.reset(token)


def _forward_and_reduce(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> Any:
    tap = _TAP.get()
    module.config = tap.config  # the flash kernels look their own name up in it
    if options.get("s_aux") is not None or options.get("position_bias") is not None:
        raise InputError(f"{type(module).__name__} adds sinks or a bias to its attention: not supported here")
    tap.window = options.get("sliding_window")
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    tap.received = attention_received(
        query, key, tap.lengths, scale=scale, window=tap.window, softcap=options.get("softcap"),
        query_block=tap.query_block,
    )  # fmt: skip
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    forward = ALL_ATTENTION_FUNCTIONS.get_interface(tap.config._attn_implementation, eager)
    return forward(module, query, key, value, attention_mask, **options)


ALL_ATTENTION_FUNCTIONS.register(_TAPPED, _forward_and_reduce)

_packed_sequences = masking_utils.find_packed_sequence_indices


def _none_packed(position_ids: Tensor) -> Tensor | None:
    """Rows are never packed here, and to look whether they are would wait for the GPU in every batch."""
    packed: Tensor | None = None if _TAP.get(None) else _packed_sequences(position_ids)
    return packed


masking_utils.find_packed_sequence_indices = _none_packed
