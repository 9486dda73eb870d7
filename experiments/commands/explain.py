"""``estp explain``: the tokens of one prompt by entropy, attention and weight, and the predicted length."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Explain:
    """Show why a prompt gets its estimate: each token's entropy, the attention it receives, its pooling weight.

    In a terminal the tokens are coloured (cividis: light is more); elsewhere, or with NO_COLOR set, a table of
    numbers is printed.
    """

    prompt: Annotated[Positional[str | None], arg(metavar="PROMPT", help_behavior_hint="")] = None
    """The prompt; - reads standard input."""
    file: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Read the prompt from a file (UTF-8) instead."""
    predictor: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """A folder that estp train wrote, or a hub name; the embedded estp if not given."""
    model: str | None = None
    """The LLM, if not the one that the predictor names."""
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str | None = None
    """float32, bfloat16 or float16, if not the one that the predictor was trained with."""
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""
    color: Literal["auto", "always", "never"] = "auto"
    html: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write a self-contained page."""
    png: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write a figure."""

    def run(self) -> int:
        """Print the explanation; exit code 0."""
        prompt = self._prompt()
        from experiments.explain_terminal import render
        from predictor.backbone import load_backbone
        from predictor.checkpoint import load_predictor
        from predictor.embedded import PREDICTORS
        from predictor.explain import explain
        from traces.files import atomic_path

        predictor = load_predictor(self.predictor or PREDICTORS[0])
        backbone = load_backbone(
            self.model or predictor.backbone,
            self.device,
            self.dtype or predictor.dtype_name,
            self.trust_remote_code,
        )
        found = explain(backbone, predictor, prompt)
        # A terminal that cannot show a character gets its code, not a traceback.
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        print(render(found, self._coloured()))
        if self.html is not None:
            from experiments.explain_html import page

            with atomic_path(self.html) as temporary:
                temporary.write_text(page(found), encoding="utf-8")
            print(f"\nwrote {self.html}")
        if self.png is not None:
            from experiments.explain_figure import draw

            draw(found, self.png)
            print(f"\nwrote {self.png}")
        return 0

    def _prompt(self) -> str:
        from traces.errors import InputError

        if (self.prompt is None) == (self.file is None):
            raise InputError("give a prompt, - for standard input, or --file FILE; one of them")
        source = "standard input" if self.file is None else str(self.file)
        try:
            if self.file is not None:
                return self.file.read_text(encoding="utf-8")
            return sys.stdin.buffer.read().decode() if self.prompt == "-" else str(self.prompt)
        except OSError as error:
            raise InputError(f"cannot read the prompt from {source}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise InputError(f"the prompt in {source} is not UTF-8 text ({error.reason})") from error

    def _coloured(self) -> bool:
        if self.color != "auto":
            return self.color == "always"
        return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
