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
    """Folder of recorded runs, one load each; a run that is there is read and not made again."""
    request_rate: Annotated[float | None, arg(metavar="PER_S", help_behavior_hint="")] = None
    """Replay at Poisson arrivals of so many requests a second, and not as recorded in the trace."""
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
        """What is to be run; the embedded model is only looked for where something is."""
        from experiments.options import EMBEDDED_MODEL
        from experiments.vllm.engine import EngineSettings

        folder = Path(model).expanduser()
        if model == EMBEDDED_MODEL and self.python is not None:
            from predictor.backbone import embedded_folder

            folder = embedded_folder()
        limits = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "enforce_eager")
        return EngineSettings(folder, dtype, **{name: getattr(self, name) for name in limits})

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
    num_requests: int | None = None,
    seed: int = 0,
) -> str:
    """Replay the trace in vLLM under each policy, simulate the same, and say how far they are apart.

    ``num_requests`` of it, and their arrivals where a rate is given, are drawn by ``seed``.
    """
    from experiments.compare import Setup, make_workload
    from experiments.vllm.engine import replay_job
    from experiments.vllm.fidelity import report
    from traces.arrivals import Arrivals

    rate = vllm.request_rate
    arrivals = Arrivals() if rate is None else Arrivals("poisson", rate)
    aligned = {name: one.take(one.align(trace)) for name, one in estimates.items()}
    load = make_workload(trace, aligned, Setup(tuple(policies), (seed,), arrivals, num_requests, {}), seed)
    settings = vllm.settings(model, dtype)
    jobs = {
        f"{policy}-{repeat}": replay_job(load.trace, policy, load.estimates, settings, repeat)
        for repeat in range(repeats)
        for policy in policies
    }
    return report(vllm.run(jobs), latency)


def recorded(folder: Path, latency: Latency) -> str:
    """Simulate all recorded replays of a folder, and say how far they are apart: without vLLM.

    Raises:
        InputError: there is none, or one cannot be read.
    """
    from experiments.vllm.fidelity import report
    from experiments.vllm.recording import read_recording
    from traces.errors import InputError

    runs = [read_recording(file) for file in sorted(folder.glob("*.json.gz"))]
    replays = [run for run in runs if not run.case.get("grid")]
    if not replays:
        raise InputError(f"there are no recorded runs of vLLM (*.json.gz) in {folder}")
    return report(replays, latency)
