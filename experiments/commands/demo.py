"""``estp demo``: the main job on what comes with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

POLICIES = ("fcfs", "sjf", "egtp", "estp")
RATE_PER_S = 7.0
LATENCY = "roofline,model=smollm2-135m,device=l4"


@dataclass(frozen=True)
class Demo:
    """Predict lengths of held-out prompts with the embedded LLM, and compare four policies on them.

    Real prompts, real prefills, real output lengths; Poisson arrivals at a simulated GPU, five replications.
    """

    out: Annotated[Path, arg(metavar="DIR")] = Path("out/demo")
    """Folder for the trace, the estimates, the results and the plots."""
    device: str = "auto"
    """Where the LLM runs: cpu, cuda, mps or auto."""

    def run(self) -> int:
        """Write the folder and print the table; exit code 0."""
        import shlex

        from experiments.cli import main
        from experiments.demo import prepare

        trace, estimates = prepare(self.out, self.device)
        arguments = ["compare", str(trace), "--estimates", str(estimates)]
        for policy in POLICIES:
            arguments += ["--policy", policy]
        arguments += ["--arrivals", "poisson", "--request-rate", f"{RATE_PER_S:g}", "--batch-size", "8"]
        arguments += ["--latency", LATENCY, "--out", str(self.out / "results")]
        print(f"\n$ estp {shlex.join(arguments)}\n", flush=True)
        return main(arguments)
