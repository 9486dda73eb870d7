"""``estp validate``: the simulation beside a real engine."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import OmitArgPrefixes, UseAppendAction, arg

from experiments.hf.options import Static
from experiments.options import EMBEDDED_MODEL, Requests
from experiments.vllm.options import Vllm

if TYPE_CHECKING:
    from traces import Estimates, Trace

NUM_REQUESTS = 20


@dataclass(frozen=True)
class Validate:
    """Replay requests in a real engine and in the simulator, and print how far they are apart.

    hf runs padded static batches of a real LLM here; vllm replays a trace in a real vLLM engine; --recorded
    takes a recorded run of a vLLM server on a GPU and the measured layer times of that GPU and model.
    """

    requests: OmitArgPrefixes[Requests] = field(default_factory=Requests)
    engine: Literal["hf", "vllm"] = "hf"
    """The real engine. Without a trace, held-out answers of the embedded LLM are used (hf: 20 of them)."""
    policy: Annotated[
        UseAppendAction[tuple[str, ...]], arg(metavar="NAME", help_behavior_hint="(repeatable)")
    ] = ()
    """Policies to run; if none is given: fcfs, sjf and each predictor (hf), or fcfs and estp (vllm)."""
    latency: Annotated[str, arg(metavar="SPEC", help_behavior_hint="")] = ""
    """Step times of the engine: file=PATH, from estp calibrate on this machine."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM."""
    device: str = "auto"
    """hf: cpu, cuda, mps or auto."""
    dtype: str = "auto"
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""
    repeats: Annotated[int, arg(metavar="N")] = 3
    """Real runs of each kind; their spread is printed beside the error."""
    seed: int = 0
    """Of the choice of requests and of their arrivals."""
    static: OmitArgPrefixes[Static] = field(default_factory=Static)
    vllm: OmitArgPrefixes[Vllm] = field(default_factory=Vllm)
    recorded: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """A recorded run (meta.json, requests.jsonl, timeseries.csv), instead of an engine."""
    profile: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Layer times of its GPU and model (attention.csv, dense.csv, per_sequence.csv)."""
    layers: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Decoder layers of the model, where neither the profile nor a preset tells them."""
    num_blocks: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """KV blocks of a replica (default: as recorded, else from GPU and model)."""
    fit: Literal["early", "alternate", "none"] = "early"
    """Fit what the engine costs a step and a token on the earlier half of the recorded requests, on every
    other one, or not at all, and judge on the rest."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """With --recorded: folder for the plots and the times of each request."""

    def run(self) -> int:
        """Print the tables; exit code 0, or 1 if real runs are still missing."""
        if (self.recorded is None) != (self.profile is None):
            from traces.errors import InputError

            raise InputError(
                "--recorded and --profile belong together: a run, and the layer times of its GPU"
            )
        if self.recorded is not None:
            return self._recorded(self.recorded)
        return self._vllm() if self.engine == "vllm" else self._hf()

    def _recorded(self, folder: Path) -> int:
        from experiments.validate.recorded import read_recording
        from experiments.validate.recorded_report import report, write
        from experiments.validate.replay import replay
        from sim.latency import Profile

        recording = read_recording(folder)
        profile = Profile(
            str(self.profile),
            tensor_parallel_size=recording.tensor_parallel_size,
            layers=self.layers,
            expert_parallel_size=recording.expert_parallel_size,
        )
        run = replay(recording, profile, self.num_blocks, None if self.fit == "none" else self.fit)
        print(report(recording, run))
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            write(recording, run, self.out)
            print(f"\nwrote {self.out}")
        return 0

    def _hf(self) -> int:
        from experiments.hf.fidelity import report
        from experiments.hf.options import run_all
        from sim.latency import load_latency

        latency = load_latency(self._latency())
        chosen, estimates = self._chosen()
        loads = self.static.loads(chosen, self.seed)
        policies = self.policy or ("fcfs", "sjf", *estimates)
        backbone = self.model, self.device, self.dtype, self.trust_remote_code
        runs, missing = run_all(
            self.static, loads, estimates, policies, self.repeats, self._records, backbone
        )
        if missing:
            print(f"{missing} runs are missing; the same command goes on from there", file=sys.stderr)
            return 1
        print(report(runs, loads, latency, estimates))
        return 0

    def _vllm(self) -> int:
        from dataclasses import replace

        from experiments.vllm.options import recorded, validate
        from sim.latency import load_latency

        if self.vllm.python is None and self.vllm.records is not None and not self.requests.trace:
            print(recorded(self.vllm.records, load_latency(self._latency())))
            return 0
        trace, estimates = self._requests()
        vllm = replace(self.vllm, records=self._records)
        policies = self.policy or ("fcfs", "estp")
        latency = load_latency(self._latency())
        print(validate(vllm, trace, estimates, policies, latency, self.model, self.dtype, self.repeats))
        return 0

    @property
    def _records(self) -> Path:
        return self.vllm.records or Path("out/validate")

    def _latency(self) -> str:
        from traces.errors import InputError

        if not self.latency:
            raise InputError(
                "name the engine's step times with --latency file=PATH; estp calibrate makes one"
            )
        return self.latency

    def _chosen(self) -> tuple[Trace, dict[str, Estimates]]:
        """The requests of static batches and their estimates; without a trace, held-out answers."""
        from experiments.demo import held_out
        from experiments.hf.options import among, estimated

        given = bool(self.requests.trace)
        trace = self.requests.read_trace() if given else held_out()
        chosen = self.static.choose(trace, self.requests.num_prompts or NUM_REQUESTS, self.seed)
        if given:
            return chosen, among(self.requests.read_estimates(), chosen)
        return chosen, estimated(chosen, self._records / "estimates.parquet", self.device)

    def _requests(self) -> tuple[Trace, dict[str, Estimates]]:
        """The trace and the estimates; without a trace, those of the demo."""
        if self.requests.trace:
            return self.requests.read_trace(), self.requests.read_estimates()
        from experiments.demo import prepare
        from traces import read_estimates, read_trace

        trace, estimates = self._records / "trace.parquet", self._records / "estimates.parquet"
        if not (trace.exists() and estimates.exists()):
            prepare(self._records, self.device)
        return read_trace(str(trace)), read_estimates(estimates)
