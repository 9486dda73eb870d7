"""``estp prompts``: write the generated prompts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Prompts:
    """Generate the embedded prompts (longseq, reasoning, rl) as JSON lines."""

    out: Annotated[Positional[Path], arg(metavar="FILE")]
    """Where to write; one JSON object a line: prompt_id, scenario, prompt, samples, temperature."""
    longseq: int = 600
    """How many prompts of the scenario."""
    reasoning: int = 600
    rl: int = 450
    seed: int = 0

    def run(self) -> int:
        """Write the file; exit code 0."""
        from predictor import prompts
        from predictor.prompts.files import write_prompts

        counts = {"longseq": self.longseq, "reasoning": self.reasoning, "rl": self.rl}
        made = prompts.generate(counts, self.seed)
        write_prompts(made, self.out)
        print(f"wrote {len(made)} prompts to {self.out}")
        return 0
