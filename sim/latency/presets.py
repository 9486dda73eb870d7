"""Shapes of models and figures of devices, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from sim.plugins import unknown
from traces.errors import InputError

Preset = TypeVar("Preset")


@dataclass(frozen=True)
class Model:
    """A decoder with gated MLPs, dense or a mixture of experts, from its ``config.json``.

    Attributes:
        layers, hidden, heads, kv_heads, head_size, intermediate, vocabulary: counts; of one expert's
            ``intermediate`` where there are experts.
        tied: the output head is the embedding.
        weight_bytes, kv_bytes: bytes a weight and a cached value; 2 is bf16, 1 is fp8.
        experts: MLPs of a layer. experts_per_token: of them, those that a token is sent to.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    experts: int = 1
    experts_per_token: int = 1

    @property
    def attention_weights(self) -> int:
        """Weights of the attention in all layers."""
        return self.layers * 2 * self.hidden * (self.heads + self.kv_heads) * self.head_size

    @property
    def expert_weights(self) -> int:
        """Weights of one expert in all layers; of the MLP, where there is only one."""
        return self.layers * 3 * self.hidden * self.intermediate

    @property
    def layer_weights(self) -> int:
        """Weights that every token is multiplied with in the layers: attention, and MLP or experts."""
        return self.attention_weights + self.experts_per_token * self.expert_weights

    @property
    def head_weights(self) -> int:
        """Weights of the output head."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """All weights; norms, biases and the choice of experts, some 0.1% of them, are left out."""
        layers = self.attention_weights + self.experts * self.expert_weights
        return layers + self.head_weights * (1 if self.tied else 2)

    def experts_read(self, tokens: Any) -> Any:
        """Experts of a layer that at least one of ``tokens`` tokens is sent to, expected of an even random choice."""
        return self.experts * (1 - (1 - self.experts_per_token / self.experts) ** np.asarray(tokens))

    def kv_bytes_per_token(self, tensor_parallel_size: int = 1) -> float:
        """Bytes of one token's keys and values on one device; KV heads are copied where they are too few."""
        heads = max(self.kv_heads / tensor_parallel_size, 1)
        return 2 * self.layers * heads * self.head_size * self.kv_bytes


@dataclass(frozen=True)
class Device:
    """One accelerator by its datasheet (dense, no sparsity), and how much of that is reached.

    Attributes:
        flops: FLOP/s in bf16 with fp32 accumulation.
        flops_8bit: FLOP/s for 8-bit weights; None: no faster than bf16.
        bytes_per_s: memory bandwidth.
        memory_gib: memory.
        link_bytes_per_s: to the other devices, one way.
        compute_efficiency, memory_efficiency, link_efficiency: reached share of the three peaks. The
            defaults were chosen on the published H100 measurements of aiconfigurator (Llama-3.1-8B,
            TensorRT-LLM) and are assumed for the other devices.
    """

    flops: float
    flops_8bit: float | None
    bytes_per_s: float
    memory_gib: float
    link_bytes_per_s: float
    compute_efficiency: float = 0.6
    memory_efficiency: float = 0.8
    link_efficiency: float = 0.5


MODELS: dict[str, Model] = {
    # huggingface.co/Qwen/Qwen2.5-0.5B, -3B, -7B: config.json
    "qwen2.5-0.5b": Model(24, 896, 14, 2, 64, 4864, 151936, tied=True),
    "qwen2.5-3b": Model(36, 2048, 16, 2, 128, 11008, 151936, tied=True),
    "qwen2.5-7b": Model(28, 3584, 28, 4, 128, 18944, 152064, tied=False),
    # huggingface.co/meta-llama/Llama-3.2-1B, -3B, Llama-3.1-8B: config.json
    "llama-3.2-1b": Model(16, 2048, 32, 8, 64, 8192, 128256, tied=True),
    "llama-3.2-3b": Model(28, 3072, 24, 8, 128, 8192, 128256, tied=True),
    "llama-3.1-8b": Model(32, 4096, 32, 8, 128, 14336, 128256, tied=False),
    # huggingface.co/Qwen/Qwen3-8B, -32B: config.json
    "qwen3-8b": Model(36, 4096, 32, 8, 128, 12288, 151936, tied=False),
    "qwen3-32b": Model(64, 5120, 64, 8, 128, 25600, 151936, tied=False),
    # huggingface.co/Qwen/Qwen3-30B-A3B-Instruct-2507: config.json
    "qwen3-30b-a3b": Model(48, 2048, 32, 4, 128, 768, 151936, tied=False, experts=128, experts_per_token=8),
    # huggingface.co/mistralai/Mixtral-8x7B-v0.1: config.json
    "mixtral-8x7b": Model(32, 4096, 32, 8, 128, 14336, 32000, tied=False, experts=8, experts_per_token=2),
    # huggingface.co/HuggingFaceTB/SmolLM2-135M: config.json
    "smollm2-135m": Model(30, 576, 9, 3, 64, 1536, 49152, tied=True),
}

DEVICES: dict[str, Device] = {
    # NVIDIA A100 datasheet, 80GB SXM: 312 TFLOPS, 2,039 GB/s, NVLink 600 GB/s both ways.
    "a100-80g": Device(312e12, None, 2.039e12, 80, 300e9),
    # NVIDIA H100 datasheet, SXM: 1,979 (bf16) and 3,958 (fp8) TFLOPS with sparsity, 3.35 TB/s,
    # NVLink 900 GB/s both ways.
    "h100": Device(989.5e12, 1979e12, 3.35e12, 80, 450e9),
    # NVIDIA H200 datasheet, SXM: as H100 but for 4.8 TB/s and 141 GB.
    "h200": Device(989.5e12, 1979e12, 4.8e12, 141, 450e9),
    # NVIDIA L4 datasheet: 242 (bf16) and 485 (fp8) TFLOPS with sparsity, 300 GB/s, PCIe Gen4 x16 64 GB/s.
    "l4": Device(121e12, 242.5e12, 300e9, 24, 32e9),
    # NVIDIA Ada GPU architecture whitepaper, RTX 4090: 165.2 TFLOPS (fp16, fp32 accumulate), 330.3 (fp8,
    # fp32 accumulate), 1,008 GB/s; PCIe Gen4 x16.
    "rtx-4090": Device(165.2e12, 330.3e12, 1.008e12, 24, 32e9),
    # NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet: 96 GB, 1,597 GB/s, PCIe Gen5 x16, 120 TFLOPS in
    # fp32; bf16 with fp32 accumulation is four times, fp8 eight times that (RTX Blackwell PRO whitepaper).
    "rtx-pro-6000": Device(480e12, 960e12, 1.597e12, 96, 64e9),
}


def preset_called(name: str, presets: Mapping[str, Preset]) -> Preset | None:
    """The preset of that name, whatever its case and hyphens (``RTX4090`` is ``rtx-4090``); None: there is none.

    Further words may follow (``Qwen3-30B-A3B-Instruct-2507`` is ``qwen3-30b-a3b``); the longest match counts.
    """
    plain = {_plain(known): preset for known, preset in presets.items()}
    ends = [len(name), *(i for i in reversed(range(len(name))) if not name[i].isalnum())]
    return next((plain[_plain(name[:end])] for end in ends if _plain(name[:end]) in plain), None)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def find_model(model: str | Model | Mapping[str, Any]) -> Model:
    """The model of that name or with these fields; raises InputError, with the nearest names."""
    found: Model = _find(model, MODELS, Model, "model")
    return found


def find_device(device: str | Device | Mapping[str, Any]) -> Device:
    """The device of that name or with these fields; raises InputError, with the nearest names."""
    found: Device = _find(device, DEVICES, Device, "device")
    return found


def _find(given: Any, known: Mapping[str, Any], cls: type[Any], kind: str) -> Any:
    if isinstance(given, str):
        if given.lower() not in known:
            raise InputError(unknown(given, list(known), kind))
        return known[given.lower()]
    if isinstance(given, Mapping):
        return cls(**given)
    return given
