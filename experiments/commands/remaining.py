"""``estp remaining``: predictions of the remaining length while an answer is being written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL


@dataclass(frozen=True)
class Remaining:
    """Compare predictions of the remaining length every few decode tokens: TRAIL's refinement and PLP.

    Prompts and recorded answers run through the LLM once (resumable); each method is trained and tested on the
    same splits by prompt.
    """

    trace: Annotated[Positional[str], arg(metavar="TRACE")] = "embedded"
    """Trace with prompts and responses; embedded: the one included."""
    answers: int = 600
    """So many answers, to different prompts, equally many of each scenario."""
    every: int = 16
    """Decode tokens between two predictions."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM whose activations are read."""
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str = "auto"
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""
    seeds: int = 5
    """So many splits and starts: 0, 1, ..."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write all figures as JSON."""
    estimates: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write the estimates of seed 0's test answers as Parquet: request_id, predictor, at_tokens, mean."""

    def run(self) -> int:
        """Print the table; exit code 0."""
        from experiments.remaining import figures_of, render
        from predictor.backbone import load_backbone
        from predictor.embedded import read_rollout
        from predictor.evaluate import random_splits
        from predictor.methods import Data
        from predictor.remaining import progressive_table, read_and_evaluate
        from traces.errors import InputError
        from traces.files import atomic_path
        from traces.parquet import write_table

        for name in ("answers", "every", "seeds"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}; at least 1 is needed")
        trace = read_rollout(self.trace)
        backbone = load_backbone(self.model, self.device, self.dtype, self.trust_remote_code)
        splits = random_splits(Data(trace), range(self.seeds))
        result = read_and_evaluate(backbone, trace, splits, self.answers, self.every)
        print(render(result))
        if self.out is not None:
            figures = {"model": self.model, **figures_of(result)}
            with atomic_path(self.out) as temporary:
                temporary.write_text(json.dumps(figures, indent=1) + "\n")
            print(f"\nwrote {self.out}")
        if self.estimates is not None:
            facts = {"kind": "progressive estimates", "units": {"at_tokens": "tokens", "mean": "tokens"},
                     "every": self.every, "backbone": self.model, "layer": result.states.layer}  # fmt: skip
            write_table(progressive_table(result, 0), self.estimates, facts)
            print(f"wrote {self.estimates}")
        return 0
