"""A step's time as the sum of its layers, each measured alone on a GPU, and of what the engine adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sim.latency.interpolation import Floats, sum_steps
from sim.latency.layers import Layers, read_layers
from sim.latency.presets import DEVICES, MODELS, preset_called
from sim.latency.protocol import search_steps
from sim.latency.roofline import Roofline
from traces.errors import InputError

MIXED = ("together", "apart")


@dataclass(frozen=True)
class Profile:
    """``layers + a + b * tokens`` seconds a step, from the times in LLMServingSim's layout (`sim.latency.layers`).

    The decoding requests of a step count as equally long, and the chunks of several prompts as one chunk
    behind as many cached tokens as make the same number of query-key pairs (`chunk_time`).

    Attributes:
        dir: a ``tp<N>`` folder, or one above it.
        a: seconds a step that the layers do not explain: scheduling, launches, sampling, and the latency
            of communication.
        b: seconds a token of the step on top: input preparation, detokenisation, and communication.
        tensor_parallel_size: which ``tp<N>`` to take, where there are several.
        mixed: the attention of a step with both prefill and decode: "together", as the one kernel that was
            measured for it, or "apart", as one for each. Which of them a server runs depends on its
            attention backend.
        layers: decoder layers, where neither a ``config.json`` nor a preset tells them.
        expert_parallel_size: devices over which the experts of a mixture are spread, whole (vLLM's
            ``enable_expert_parallel``: tensor times data parallel size). Replicas among them share their
            experts, and count as equally busy.

    Raises:
        InputError: the folder is not of that layout (`read_layers`), or a setting is out of its range.
    """

    dir: str
    a: float = 0.0
    b: float = 0.0
    tensor_parallel_size: int | None = None
    mixed: str = "together"
    layers: int | None = None
    expert_parallel_size: int = 1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.a) and math.isfinite(self.b)):
            raise InputError(
                f"latency profile: a = {self.a} and b = {self.b} must be finite numbers of seconds"
            )
        if self.mixed not in MIXED:
            raise InputError(f"latency profile: mixed = {self.mixed!r} must be one of {', '.join(MIXED)}")
        if self.b < 0 or self.step_time(0, 1, 1) <= 0:
            raise InputError(
                f"latency profile: with a = {self.a} and b = {self.b} a step could take no time; raise them"
            )

    @cached_property
    def measured(self) -> Layers:
        """The times of the layers; read once a folder."""
        return read_layers(str(self.dir), self.tensor_parallel_size, self.layers, self.expert_parallel_size)

    def step_time(self, prefill_tokens: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of one step (`Latency.step_time`); the prefill is that of one prompt from its start."""
        requests = np.asarray(decode_requests)
        context = context_tokens / np.maximum(requests, 1)
        sequences = requests + (np.asarray(prefill_tokens) > 0)
        seconds = self._layers_s(prefill_tokens, 0, requests, context, sequences)
        seconds = seconds + self.a + self.b * np.add(prefill_tokens, requests)
        return seconds if np.ndim(seconds) else float(seconds)

    def chunk_time(
        self, chunks: Sequence[tuple[int, int]], decode_requests: int, context_tokens: int
    ) -> float:
        """Seconds of one step with ``chunks`` of prefill (`ChunkLatency.chunk_time`).

        A token attends to what lies before it, so a chunk of c tokens behind k cached ones is
        c (k + c / 2) pairs. Chunks of C tokens in total are priced as one behind
        sum(c (k + c / 2)) / C - C / 2 tokens, which is below 0 for many short ones.
        """
        total = sum([tokens for tokens, _ in chunks])
        pairs = sum([tokens * (cached + 0.5 * tokens) for tokens, cached in chunks])
        cached = pairs / total - 0.5 * total if total else 0.0
        context = context_tokens / max(decode_requests, 1)
        sequences = decode_requests + len(chunks)
        seconds = self._layers_s(total, cached, decode_requests, context, sequences)
        return float(seconds) + self.a + self.b * (total + decode_requests)

    def advance(self, k: Any, decode_requests: Any, context_tokens: Any) -> Any:
        """Seconds of ``k`` decode steps (`Latency.advance`): each straight piece in closed form."""
        if isinstance(decode_requests, int):
            knots, at_knots = self._decode_line(decode_requests)
        else:
            requests = np.asarray(decode_requests)[..., None]
            knots = requests * self.measured.axes[3]
            at_knots = self.step_time(0, requests, knots)
        total = sum_steps(k, context_tokens, decode_requests, knots, at_knots)
        return total if total.ndim else float(total)

    def steps_until(self, seconds: float, decode_requests: int, context_tokens: int) -> int:
        """The least number of decode steps that last ``seconds`` (`Latency.steps_until`)."""
        return search_steps(self, seconds, decode_requests, context_tokens)

    def kv_blocks(self, block_size: int = 16) -> int:
        """KV blocks that fit beside the weights (`Roofline.kv_blocks`), if model and GPU are known presets.

        Raises:
            InputError: one of them is not.
        """
        measured = self.measured
        model = preset_called(measured.model.rpartition("/")[2], MODELS)
        device = preset_called(measured.gpu, DEVICES)
        if model is None or device is None:
            missing = f"the model {measured.model!r}" if model is None else f"the GPU {measured.gpu!r}"
            raise InputError(
                f"latency profile: there is no preset of {missing}, so the KV cache's size is not known; "
                "give num_blocks"
            )
        size = measured.tensor_parallel_size
        spread = max(self.expert_parallel_size, size)
        return Roofline(model, device, size).kv_blocks(block_size, expert_devices=spread)

    def _layers_s(self, chunk: Any, cached: Any, requests: Any, context: Any, sequences: Any) -> Any:
        measured = self.measured
        replicas = max(self.expert_parallel_size // measured.tensor_parallel_size, 1)
        apart = self.mixed == "apart"
        return measured.step_s(chunk, cached, requests, context, sequences, apart, replicas)

    def _decode_line(self, requests: int) -> tuple[Floats, Floats]:
        """Context tokens, and the seconds of a decode step there; straight in between."""
        line = self._lines.get(requests)
        if line is None:
            knots = requests * self.measured.axes[3]
            line = self._lines[requests] = knots, np.asarray(self.step_time(0, requests, knots))
        return line

    @cached_property
    def _lines(self) -> dict[int, tuple[Floats, Floats]]:
        return {}
