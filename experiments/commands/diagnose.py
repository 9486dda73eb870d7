"""``estp diagnose``: what the two signals say, and whether they say it of the same tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL


@dataclass(frozen=True)
class Diagnose:
    """Ask the paper's questions of an LLM and prompts.

    Do entropy and attention mark different tokens, does attention go with the gradient, and which kinds of token
    get attention and weight? The gradient is taken in the input embeddings, of two things: the predictor's expected
    length, and the log-probability of the LLM's first token.
    """

    trace: Annotated[Positional[str], arg(metavar="TRACE")] = "embedded"
    """Trace with prompts; embedded: the one included."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM whose activations are read."""
    predictor: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Whose weights and estimate to look at; the embedded estp if not given."""
    prompts: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Use so many of the trace's prompts, chosen at random; all if not given."""
    gradients: Annotated[int, arg(metavar="N")] = 60
    """For so many of them take gradients: two backward passes each."""
    seed: int = 0
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str | None = None
    """float32, bfloat16 or float16, if not the one that the predictor was trained with."""
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for diagnosis.json and the figure."""

    def run(self) -> int:
        """Print the tables; exit code 0."""
        import numpy as np

        from experiments.diagnosis import as_json, check_predictor, diagnose, draw, render
        from experiments.report_files import check_folder
        from predictor.backbone import load_backbone
        from predictor.checkpoint import load_predictor
        from predictor.embedded import PREDICTORS, read_rollout
        from predictor.features import read_signals
        from predictor.rows import prompts_of
        from traces.errors import InputError
        from traces.files import atomic_path

        if self.gradients < 1 or (self.prompts is not None and self.prompts < 1):
            raise InputError("--gradients and --prompts must be at least 1")
        check_folder(self.out)
        predictor = load_predictor(self.predictor or PREDICTORS[0])
        texts = list(dict.fromkeys(prompts_of(read_rollout(self.trace))))
        rng = np.random.default_rng(self.seed)
        backbone = load_backbone(
            self.model, self.device, self.dtype or predictor.dtype_name, self.trust_remote_code
        )
        if self.prompts is not None and self.prompts < len(texts):
            rows = rng.choice(len(texts), self.prompts, replace=False)
            texts = [texts[row] for row in sorted(rows.tolist())]
        check_predictor(predictor, backbone)
        signals = read_signals(backbone, texts)
        found = diagnose(backbone, predictor, texts, signals, self.gradients, rng)
        print(render(found, predictor.predictor))
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            facts = {"model": self.model, "trace": self.trace, "seed": self.seed, **predictor.identity()}
            with atomic_path(self.out / "diagnosis.json") as temporary:
                temporary.write_text(json.dumps(as_json(found, **facts), indent=1) + "\n")
            draw(found, predictor.predictor, self.out)
            print(f"\nwrote {self.out}")
        return 0
