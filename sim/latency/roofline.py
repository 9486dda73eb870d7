"""A step's time from the shape of the model and the peaks of the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.latency.presets import Device, Model, find_device, find_model
from sim.latency.protocol import search_steps
from traces.errors import InputError

GIB = 2**30


@dataclass(frozen=True)
class Roofline:
    """``max(compute, memory) + communication + overhead`` seconds a step (roofline: Williams, CACM 2009).

    With T = prefill tokens + decoding requests, and t devices that share each layer:

    * compute: 2 FLOPs a token and layer weight, 2 a decoding request and weight of the output head,
      and attention of the decoding requests, 4 * layers * heads * head_size FLOPs a context token;
      over t * flops * compute_efficiency.
    * memory: all weights once (of a mixture of experts: those that some token is sent to, expected of an
      even choice), the keys and values of the context tokens (read) and of the T tokens (written); over
      t * bytes_per_s * memory_efficiency.
    * communication, if t > 1: two all-reduces a layer of T * hidden activations, each
      ``all_reduce_s`` + 2 (t - 1) / t * bytes / (link_bytes_per_s * link_efficiency), as in a ring.

    Left out: the attention of prefill tokens among themselves, which the number of tokens alone does
    not tell (for an 8B model about 3% of a prompt's FLOPs at 2,048 tokens, 13% at 8,192).

    Attributes:
        model: a preset's name (`sim.latency.presets.MODELS`) or a `Model`.
        device: a preset's name (`sim.latency.presets.DEVICES`) or a `Device`.
        tensor_parallel_size: devices that share each layer.
        step_overhead_s: scheduling, launches and sampling of a step.
        all_reduce_s: latency of one all-reduce.

    Raises:
        InputError: an unknown name, or a setting out of its range.
    """

    model: str | Model | Mapping[str, Any] = "llama-3.1-8b"
    device: str | Device | Mapping[str, Any] = "h100"
    tensor_parallel_size: int = 1
    step_overhead_s: float = 1e-3
    all_reduce_s: float = 10e-6

    def __post_init__(self) -> None:
        model, device, devices = find_model(self.model), find_device(self.device), self.tensor_parallel_size
        if devices < 1 or model.heads % devices:
            raise InputError(
                f"roofline: tensor_parallel_size = {devices} must divide the model's {model.heads} "
                "attention heads"
            )
        for name in ("step_overhead_s", "all_reduce_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(
                    f"roofline: {name} = {getattr(self, name)} must be a number of seconds, at least 0"
                )
        quick = device.flops_8bit is not None and model.weight_bytes <= 1
        flops = devices * (device.flops_8bit if quick and device.flops_8bit else device.flops)
        flops *= device.compute_efficiency
        bytes_per_s = device.bytes_per_s * device.memory_efficiency
        kv_s = model.kv_bytes_per_token(devices) / bytes_per_s
        shared = model.attention_weights + model.head_weights
        weight_s = model.weight_bytes / devices / bytes_per_s
        token_link_s = all_reduces_s = 0.0
        if devices > 1:
            # Activations are bf16 whatever the weights are.
            sent = 2 * (devices - 1) / devices * model.hidden * 2
            token_link_s = 2 * model.layers * sent / (device.link_bytes_per_s * device.link_efficiency)
            all_reduces_s = 2 * model.layers * self.all_reduce_s
        seconds = {
            "_token_compute_s": 2 * model.layer_weights / flops,
            "_head_compute_s": 2 * model.head_weights / flops,
            "_context_compute_s": 4 * model.layers * model.heads * model.head_size / flops,
            "_weights_s": (shared + (model.expert_weights if model.experts == 1 else 0)) * weight_s,
            "_expert_s": model.expert_weights * weight_s if model.experts > 1 else 0.0,
            "_kv_s": kv_s,
            "_token_link_s": token_link_s,
            "_fixed_s": self.step_overhead_s + all_reduces_s,
        }
        for name, value in seconds.items():
            object.__setattr__(self, name, value)

    def step_time(self, prefill_tokens: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of one step (`Latency.step_time`)."""
        tokens = prefill_tokens + decode_requests
        compute_s, memory_s = self._compute_and_memory_s(tokens, decode_requests, context_tokens)
        excess_s = memory_s - compute_s
        if isinstance(excess_s, np.ndarray):
            busy_s: Any = compute_s + np.maximum(excess_s, 0.0)
        else:
            busy_s = memory_s if excess_s > 0 else compute_s
        return busy_s + self._fixed_s + self._token_link_s * tokens

    def advance(self, k: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of ``k`` decode steps (`Latency.advance`), in closed form.

        Compute and memory both grow by a constant a step, so their larger one changes sides once.
        """
        first_s, memory_s = self._compute_and_memory_s(decode_requests, decode_requests, context_tokens)
        growth_s = self._context_compute_s * decode_requests
        steady_s = first_s + self._fixed_s + self._token_link_s * decode_requests
        excess_s = self._excess(
            k, memory_s - first_s, (self._kv_s - self._context_compute_s) * decode_requests
        )
        return k * (steady_s + 0.5 * growth_s * (k - 1)) + excess_s

    def steps_until(self, seconds: float, decode_requests: int, context_tokens: int) -> int:
        """The least number of decode steps that last ``seconds`` (`Latency.steps_until`)."""
        return search_steps(self, seconds, decode_requests, context_tokens)

    def kv_blocks(
        self,
        block_size: int = 16,
        gpu_memory_utilization: float = 0.9,
        reserved_gib: float = 1.5,
        expert_devices: int | None = None,
    ) -> int:
        """KV blocks that fit beside the weights, by vLLM's names.

        ``(memory * gpu_memory_utilization - weights / t - reserved) / (block_size * KV bytes a token)``
        on each of the t devices; the reserve stands for activations and CUDA graphs, and brings the
        figure within 2% of what vLLM 0.19 found on an RTX 4090 with Llama-3.1-8B. ``expert_devices``: over
        how many devices the experts are spread, if not over the t.

        Raises:
            InputError: the weights leave no room for a block.
        """
        model, device, devices = find_model(self.model), find_device(self.device), self.tensor_parallel_size
        experts = model.experts * model.expert_weights
        spread = experts / (expert_devices or devices) + (model.parameters - experts) / devices
        weights = spread * model.weight_bytes
        free = (device.memory_gib * gpu_memory_utilization - reserved_gib) * GIB - weights
        blocks = int(free // (block_size * model.kv_bytes_per_token(devices)))
        if blocks < 1:
            raise InputError(
                f"{weights / GIB:.1f} GiB of weights a device leave no room for KV blocks in "
                f"{device.memory_gib:g} GiB; take a larger device, fewer bytes a weight, or more devices"
            )
        return blocks

    def _compute_and_memory_s(
        self, tokens: Any, decode_requests: Any, context_tokens: Any
    ) -> tuple[Any, Any]:
        compute_s = (
            self._token_compute_s * tokens
            + self._head_compute_s * decode_requests
            + self._context_compute_s * context_tokens
        )
        weights_s: Any = self._weights_s
        if self._expert_s:
            weights_s = weights_s + self._expert_s * find_model(self.model).experts_read(tokens)
        return compute_s, weights_s + self._kv_s * (context_tokens + tokens)

    def _excess(self, k: Any, first: Any, growth: Any) -> Any:
        """Sum over i < k of max(first + growth * i, 0).

        The sign of ``growth`` is that of KV reading against attention, so it is the same for every batch.
        """
        if isinstance(k, np.ndarray) or isinstance(first, np.ndarray):
            ceil: Any = np.ceil
            most: Any = np.maximum
            least: Any = np.minimum
        else:
            ceil, most, least = math.ceil, max, min
        if self._kv_s > self._context_compute_s:
            skipped = ceil(most(-first / growth, 0.0))
            n = most(k - skipped, 0)
            return n * (first + growth * skipped + 0.5 * growth * (n - 1))
        if self._kv_s < self._context_compute_s:
            n = least(k, ceil(most(first / -growth, 0.0)))
            return n * (first + 0.5 * growth * (n - 1))
        return k * most(first, 0.0)

    _token_compute_s = _head_compute_s = _context_compute_s = 0.0
    _weights_s = _expert_s = _kv_s = _token_link_s = _fixed_s = 0.0
