"""``estp evaluate``: every predictor on the same splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL


@dataclass(frozen=True)
class Evaluate:
    """Compare length predictors on real output lengths.

    Constant, scenario, prompt length, mean, last, EGTP, semantic and ESTP, each trained and tested on the same
    splits by prompt, settings chosen on validation. MAE, RMSE, Kendall's tau and bin accuracy a scenario, and
    ESTP less EGTP with a 95% bootstrap interval by prompt.
    """

    trace: Annotated[Positional[str], arg(metavar="TRACE")] = "embedded"
    """Trace with prompts and real output lengths; embedded: the one included."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM whose activations are read."""
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str = "auto"
    seeds: int = 5
    """So many splits and starts: 0, 1, ..."""
    epochs: int = 30
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write all figures, chosen settings and validation losses as JSON."""

    def run(self) -> int:
        """Print the tables; exit code 0."""
        from experiments.evaluation import as_json, render
        from predictor.backbone import load_backbone
        from predictor.embedded import read_rollout
        from predictor.evaluate import evaluate
        from predictor.features import read_signals
        from predictor.rows import prompts_of
        from predictor.train import TrainSettings
        from traces.errors import InputError
        from traces.files import atomic_path

        if self.seeds < 1:
            raise InputError(f"--seeds is {self.seeds}; at least 1 is needed")
        trace = read_rollout(self.trace)
        signals = read_signals(load_backbone(self.model, self.device, self.dtype), prompts_of(trace))
        result = evaluate(trace, signals, seeds=range(self.seeds), settings=TrainSettings(epochs=self.epochs))
        print(render(result, trace))
        if self.out is not None:
            with atomic_path(self.out) as temporary:
                temporary.write_text(as_json(result, trace, self.model))
            print(f"\nwrote {self.out}")
        return 0
