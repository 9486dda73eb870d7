"""``estp predict``: a trace's prompts -> estimates of their output lengths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from predictor.checkpoint import LengthPredictor


@dataclass(frozen=True)
class Predict:
    """Predict output lengths with trained predictors, one LLM prefill a prompt.

    A killed run goes on where it stopped.
    """

    trace: Annotated[Positional[str], arg(metavar="TRACE")]
    """Trace with a column prompt: Parquet or JSON lines."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """The table of estimates to write (Parquet)."""
    predictor: Annotated[
        UseAppendAction[tuple[str, ...]], arg(metavar="DIR", help_behavior_hint="(repeatable)")
    ] = ()
    """A folder that estp train wrote, or a hub name; the embedded estp and egtp if none is given."""
    model: str | None = None
    """The LLM, if not the one that the predictor names."""
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str | None = None
    """float32, bfloat16 or float16, if not the one that the predictor was trained with."""
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""

    def run(self) -> int:
        """Write the estimates; exit code 0."""
        from predictor.backbone import load_backbone
        from predictor.checkpoint import load_predictor
        from predictor.embedded import PREDICTORS
        from predictor.predict import predict
        from traces import read_trace

        trace = read_trace(self.trace)
        predictors = [load_predictor(p) for p in (self.predictor or PREDICTORS)]
        if self.out.exists():
            self._check_same_predictors(predictors)
        backbone = load_backbone(
            self.model or predictors[0].backbone,
            self.device,
            self.dtype or predictors[0].dtype_name,
            self.trust_remote_code,
        )
        for one in predict(trace, predictors, backbone, self.out):
            print(f"{one.predictor}: {len(one)} estimates, mean {one.mean.mean():.1f} tokens")
        print(f"wrote {self.out}")
        return 0

    def _check_same_predictors(self, predictors: list[LengthPredictor]) -> None:
        """A table that these predictors made may be written anew; another one is not lost to a mistyped name."""
        from traces import read_estimates
        from traces.errors import InputError

        there = read_estimates(self.out)
        by_name = {p.predictor: p for p in predictors}
        for name, estimates in there.items():
            if name not in by_name:
                raise InputError(f"{self.out} holds estimates of {name!r}; name a new file or remove it")
            try:
                by_name[name].check_estimates(estimates)
            except InputError as error:
                raise InputError(f"{self.out} exists already: {error}") from error
