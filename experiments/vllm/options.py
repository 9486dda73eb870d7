"""Options of a real vLLM engine, which `estp calibrate` and `estp validate` share, and what they do with it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

if TYPE_CHECKING:
    from experiments.vllm.engine import EngineSettings
    from experiments.vllm.recording import Recording
    from sim.latency import Latency
    from sim.latency.files import LatencyFile
    from traces import Estimates, Trace


@dataclass(frozen=True)
class Vllm:
    """A real vLLM engine in an environment of its own (--engine vllm)."""

    python: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Interpreter of an environment that has vLLM; tools/vllm_env.sh makes one. Not needed where all
    runs are recorded already."""
    records: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder of recorded runs; a run that is there is read and not made again."""
    max_num_seqs: Annotated[int, arg(metavar="N")] = 8
    """Most requests that run at once."""
    max_num_batched_tokens: Annotated[int, arg(metavar="N")] = 256
    """Most tokens in one step."""
    max_model_len: Annotated[int, arg(metavar="N")] = 2048
    """Most tokens of a prompt and its output."""
    block_size: Annotated[int, arg(metavar="N")] = 32
    """Tokens in a KV block."""
    enforce_eager: bool = True
    """Run the model without compiling it first."""

    def settings(self, model: str, dtype: str) -> EngineSettings:
        """What is to be run; an empty ``model`` is the embedded one."""
        from experiments.options import EMBEDDED_MODEL
        from experiments.vllm.engine import EngineSettings
        from predictor.backbone import embedded_folder

        folder = embedded_folder() if model in ("", EMBEDDED_MODEL) else Path(model).expanduser()
        limits = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "enforce_eager")
        return EngineSettings(
            folder,
            dtype="auto" if dtype == "auto" else dtype,
            **{name: getattr(self, name) for name in limits},
        )

    def run(self, jobs: Mapping[str, dict[str, Any]]) -> list[Recording]:
        """Run each job, or read its record if there is one; names are those of the files in ``records``.

        Raises:
            InputError: no folder is named, or see `experiments.vllm.engine.run_job`.
        """
        from experiments.vllm.engine import run_job
        from traces.errors import InputError

        if self.records is None:
            raise InputError("name the folder for the recorded runs of vLLM with --records DIR")
        self.records.mkdir(parents=True, exist_ok=True)
        found = []
        for name, job in jobs.items():
            file = self.records / f"{name}.json.gz"
            print(f"{'reading' if file.exists() else 'running vLLM for'} {file}", file=sys.stderr, flush=True)
            found.append(run_job(job, self.python, file))
        return found


def calibrate(vllm: Vllm, model: str, dtype: str, repeats: int, seed: int = 0) -> LatencyFile:
    """Run the calibration jobs and fit a latency file to them."""
    from experiments.vllm.calibration import calibrate
    from experiments.vllm.engine import calibration_job

    settings = vllm.settings(model, dtype)
    jobs = {f"calibrate-{seed + i}": calibration_job(settings, seed + i) for i in range(repeats)}
    return calibrate(vllm.run(jobs))


def validate(
    vllm: Vllm,
    trace: Trace,
    estimates: Mapping[str, Estimates],
    policies: Sequence[str],
    latency: Latency,
    model: str,
    dtype: str,
    repeats: int,
) -> str:
    """Replay the trace in vLLM under each policy, simulate the same, and say how far they are apart."""
    from experiments.vllm.engine import replay_job
    from experiments.vllm.fidelity import report

    settings = vllm.settings(model, dtype)
    jobs = {
        f"{policy}-{repeat}": replay_job(trace, policy, estimates, settings, repeat)
        for repeat in range(repeats)
        for policy in policies
    }
    return report(vllm.run(jobs), latency)
