"""Jobs for a real vLLM engine in an environment of its own, and the runs that come back.

Nothing of vLLM is imported here: ``PYTHON -P runner.py JOB OUT`` runs in that environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.vllm.recording import Recording, read_recording
from traces import Estimates, Trace
from traces.errors import InputError

RUNNER = Path(__file__).with_name("runner.py")
# Of the run itself; anything that the user has set stays.
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_WAIT_POLICY": "active"}
GRID_BATCHES = (0, 1, 2, 4, 8, 16, 32)
GRID_CONTEXTS = (64, 512)
GRID_PREFILLS = (16, 64, 128, 256)
GRID_REPEATS = 2
GRID_DECODE_STEPS = 16
MIXED_REQUESTS = 24


@dataclass(frozen=True)
class EngineSettings:
    """What is run, and its limits; names and meanings are vLLM's.

    Attributes:
        model: folder of the model.
        enforce_eager: without torch.compile.
    """

    model: Path
    dtype: str = "bfloat16"
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 256
    max_model_len: int = 2048
    block_size: int = 32
    enforce_eager: bool = True

    def arguments(self, policy: str) -> dict[str, Any]:
        """Keyword arguments of vLLM's EngineArgs."""
        return {
            "model": str(self.model),
            "dtype": self.dtype,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "block_size": self.block_size,
            "enforce_eager": self.enforce_eager,
            "scheduling_policy": policy,
            "seed": 0,
        }


def replay_job(
    trace: Trace, policy: str, estimates: Mapping[str, Estimates], settings: EngineSettings, repeat: int = 0
) -> dict[str, Any]:
    """The job that replays a trace with its arrivals, first come first served or by a predictor's estimates.

    Raises:
        InputError: the policy is neither fcfs, sjf nor a predictor, or a request is too long for the engine.
    """
    from predictor.priority import priorities, values_of

    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    if longest > settings.max_model_len:
        raise InputError(
            f"a request of {longest} tokens does not fit into max_model_len = {settings.max_model_len}"
        )
    numbers = priorities(np.asarray(values_of(policy, dict(estimates), trace)[1], np.float64))
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens, numbers)
    requests = [
        dict(zip(("id", "arrival_s", "prompt_tokens", "output_tokens", "priority"), row, strict=True))
        for row in zip(range(len(trace)), *(column.tolist() for column in columns), strict=True)
    ]
    return {
        "label": {"policy": policy, "repeat": repeat},
        "engine": settings.arguments("fcfs" if policy == "fcfs" else "priority"),
        "requests": requests,
    }


def calibration_job(settings: EngineSettings, seed: int) -> dict[str, Any]:
    """The job that measures steps: a grid of batches, contexts and prefills, then mixed requests to judge by.

    The mixed requests are drawn by ``seed``; they are none of a trace, so a validation never meets them.
    """
    rng = np.random.default_rng(seed)
    longest = settings.max_model_len // 4
    prompts = np.clip(rng.lognormal(4.2, 0.8, MIXED_REQUESTS), 8, longest).astype(int)
    outputs = np.clip(rng.lognormal(4.2, 0.8, MIXED_REQUESTS), 2, longest).astype(int)
    arrivals = np.cumsum(rng.exponential(0.5, MIXED_REQUESTS))
    requests = [
        {"id": i, "arrival_s": a, "prompt_tokens": p, "output_tokens": o, "priority": 0}
        for i, (a, p, o) in enumerate(zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    ]
    grid = {
        "decode_requests": sorted({min(batch, settings.max_num_seqs) for batch in GRID_BATCHES}),
        "context_tokens": [tokens for tokens in GRID_CONTEXTS if 2 * tokens <= settings.max_model_len],
        "prefill_tokens": [tokens for tokens in GRID_PREFILLS if tokens <= settings.max_num_batched_tokens],
        "repeats": GRID_REPEATS,
        "decode_steps": GRID_DECODE_STEPS,
    }
    return {
        "label": {"policy": "fcfs", "repeat": seed},
        "engine": settings.arguments("fcfs"),
        "grid": grid,
        "requests": requests,
    }


def run_job(job: dict[str, Any], python: Path | None, out: Path) -> Recording:
    """Run a job in the environment of ``python`` and read what it recorded into ``out``.

    A record that is already there is not made again: that is how a killed command goes on.

    Raises:
        InputError: there is no such interpreter, vLLM fails (with its last line), or ``out`` is the
            record of another job.
    """
    if out.exists():
        recording = read_recording(out)
        if not _same(job, recording.case):
            raise InputError(f"{out} is the record of another job; name another folder or delete it")
        return recording
    if python is None:
        raise InputError(f"{out} is not there; to run vLLM for it, name its interpreter with --python")
    if not python.is_file():
        raise InputError(
            f"there is no interpreter {python}; tools/vllm_env.sh makes an environment with vLLM"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job))
        command = [str(python), "-P", str(RUNNER), str(file), str(out.resolve())]
        done = subprocess.run(command, env=ENVIRONMENT | dict(os.environ), stderr=subprocess.PIPE, text=True)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(f"vLLM failed (exit code {done.returncode}): {lines[-1] if lines else 'no message'}")
    return read_recording(out)


def _same(job: dict[str, Any], case: dict[str, Any]) -> bool:
    """Whether a record is of this job: the same model, requests, limits and label."""
    asked = [{**request, "arrival_s": round(request["arrival_s"], 6)} for request in job["requests"]]
    got = [{name: request[name] for name in asked[0]} for request in case["requests"]]
    limits = {name: case["limits"][name] for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    return (
        asked == got
        and Path(job["engine"]["model"]).name == case["model"]
        and job["label"] == case["label"]
        and all(job["engine"][name] == value for name, value in limits.items())
    )
