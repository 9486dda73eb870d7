"""``estp calibrate``: how long steps take on a real engine here."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, arg

from experiments.options import EMBEDDED_MODEL
from experiments.vllm.options import Vllm


@dataclass(frozen=True)
class Calibrate:
    """Time the steps of a real LLM over a grid, and write a latency file that simulations can use.

    hf times padded prefill and decode of a transformers model; vllm records the steps of a running vLLM
    engine. The file names the machine, model, dtype, versions and date, and how far the fit is off on
    points that it did not see. Use it with --latency file=PATH.
    """

    out: Annotated[Path, arg(metavar="FILE")] = Path("out/latency.json")
    """The latency file (JSON)."""
    engine: Literal["hf", "vllm"] = "hf"
    """The engine that is timed."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM."""
    device: str = "auto"
    """hf: cpu, cuda, mps or auto."""
    dtype: str = "auto"
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""
    batch_sizes: Annotated[tuple[int, ...], arg(metavar="N ...")] = (1, 2, 3, 4)
    """hf: requests in a batch. Matrix products of some sizes are slow: name every size that you will use."""
    prompt_tokens: Annotated[tuple[int, ...], arg(metavar="N ...")] = (32, 64, 128, 256)
    """hf: padded length of their prompts."""
    held_out_sizes: Annotated[tuple[int, ...], arg(metavar="N ...")] = (1, 2, 4)
    """hf: batch sizes of the points that judge the fit."""
    held_out_tokens: Annotated[tuple[int, ...], arg(metavar="N ...")] = (48, 192)
    """hf: prompt lengths of the points that judge the fit."""
    repeats: Annotated[int, arg(metavar="N")] = 5
    """Of each measurement; hf takes the median."""
    seed: int = 0
    vllm: OmitArgPrefixes[Vllm] = field(default_factory=Vllm)

    def run(self) -> int:
        """Write the file and print how good it is; exit code 0."""
        from experiments.hf.calibration import Grid, calibrate, render
        from experiments.vllm import options

        def tell(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        if self.engine == "vllm":
            file = options.calibrate(self.vllm, self.model, self.dtype, self.repeats, self.seed)
        else:
            grid = Grid(
                self.batch_sizes,
                self.prompt_tokens,
                self.held_out_sizes,
                self.held_out_tokens,
                repeats=self.repeats,
            )
            from experiments.hf.engine import PaddedEngine
            from predictor.backbone import load_backbone

            backbone = load_backbone(self.model, self.device, self.dtype, self.trust_remote_code)
            engine = PaddedEngine(backbone)
            file = calibrate(engine, engine.about(), grid, self.seed, tell)
        self.out.parent.mkdir(parents=True, exist_ok=True)
        file.write(self.out)
        print(render(file))
        print(f"\nwrote {self.out}: use it with --latency file={self.out}")
        return 0
