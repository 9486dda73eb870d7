"""``estp rollout``: real output lengths, sampled once."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL


@dataclass(frozen=True)
class Rollout:
    """Sample an LLM's answers to prompts and write them as a trace with real output lengths.

    A killed rollout goes on where it stopped.
    """

    prompts: Annotated[Positional[Path], arg(metavar="PROMPTS")]
    """JSON lines with a field prompt; prompt_id, scenario, samples, temperature if wanted."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """The trace to write (Parquet); OUT.parts beside it holds what is finished."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name for transformers, or the server's model name."""
    backend: Literal["hf", "openai"] = "hf"
    """hf: transformers in this process; openai: a server such as vLLM."""
    base_url: str = "http://localhost:8000/v1"
    """Of the server."""
    max_tokens: int = 512
    """Answers are cut there and marked as censored."""
    top_k: int = 50
    """Sample from the likeliest so many tokens; 0: from all."""
    top_p: float = 0.9
    samples: int = 1
    """Answers a prompt, where the file does not say."""
    temperature: float = 1.0
    """Where the file does not say."""
    batch_size: int = 64
    seed: int = 0
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str = "auto"
    """float32, bfloat16, float16, or auto: bfloat16 on CUDA, else float32."""
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here (hf)."""
    shard: tuple[int, int] = (0, 1)
    """I N: do every N-th batch, the I-th; whoever finishes last writes OUT."""

    def run(self) -> int:
        """Sample, or go on sampling; exit code 0."""
        from predictor import rollout
        from predictor.backbone import load_backbone, pick_device, pick_dtype
        from predictor.openai_backend import openai_backend
        from predictor.prompts.files import read_prompts
        from traces.errors import InputError

        if not 0 <= self.shard[0] < self.shard[1]:
            raise InputError(f"--shard {self.shard[0]} {self.shard[1]}: give I N with 0 <= I < N")
        prompts = read_prompts(self.prompts, self.samples, self.temperature)
        dtype = "server"
        if self.backend == "hf":
            dtype = str(pick_dtype(self.dtype, pick_device(self.device))).removeprefix("torch.")
        settings = rollout.RolloutSettings(
            self.model,
            self.max_tokens,
            self.top_k,
            self.top_p,
            self.batch_size,
            self.seed,
            dtype,
            self.backend,
        )
        if self.backend == "hf":
            backbone = load_backbone(self.model, self.device, dtype, self.trust_remote_code)
            backend = rollout.hf_backend(backbone, settings)
        else:
            backend = openai_backend(settings, self.base_url)
        trace = rollout.rollout(prompts, settings, backend, self.out, self.shard)
        if trace is None:
            print(f"shard {self.shard[0]} of {self.shard[1]} is done; others are not yet", file=sys.stderr)
            return 0
        cut = int(trace.extra["censored"].sum())
        print(
            f"wrote {len(trace)} answers to {self.out}: {trace.output_tokens.sum()} tokens, "
            f"mean {trace.output_tokens.mean():.1f}, {cut} cut at {self.max_tokens}"
        )
        return 0
