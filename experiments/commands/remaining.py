"""``estp remaining``: predictions of the remaining length while an answer is being written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL

if TYPE_CHECKING:
    from predictor.remaining import Remaining as Result


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
    seeds: int = 5
    """So many splits and starts: 0, 1, ..."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write all figures as JSON."""
    estimates: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write the estimates of seed 0's test answers as Parquet: request_id, predictor, at_tokens, mean."""

    def run(self) -> int:
        """Print the table; exit code 0."""
        from predictor.backbone import load_backbone
        from predictor.baselines.trail import DEPTH
        from predictor.decoding import balanced_rows, read_answer_states
        from predictor.embedded import read_rollout
        from predictor.remaining import evaluate_remaining, progressive_table
        from traces.errors import InputError
        from traces.files import atomic_path
        from traces.parquet import write_table

        for name in ("answers", "every", "seeds"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is {getattr(self, name)}; at least 1 is needed")
        trace = read_rollout(self.trace)
        backbone = load_backbone(self.model, self.device, self.dtype)
        layer = round(DEPTH * backbone.model.config.get_text_config().num_hidden_layers)
        rows = balanced_rows(trace, self.answers)
        states = read_answer_states(backbone, trace, rows, layer, every=self.every)
        result = evaluate_remaining(trace, states, range(self.seeds))
        print(_render(result))
        if self.out is not None:
            differences = [{"first": a, "second": b, "mae": result.difference(a, b)} for a, b in PAIRS]
            figures = {"model": self.model, "every": self.every, "layer": layer, "answers": len(rows),
                       "table": result.table(), "differences": differences}  # fmt: skip
            with atomic_path(self.out) as temporary:
                temporary.write_text(json.dumps(figures, indent=1) + "\n")
            print(f"\nwrote {self.out}")
        if self.estimates is not None:
            facts = {"kind": "progressive estimates", "units": {"at_tokens": "tokens", "mean": "tokens"},
                     "every": self.every, "backbone": self.model, "layer": layer}  # fmt: skip
            write_table(progressive_table(result, 0), self.estimates, facts)
            print(f"wrote {self.estimates}")
        return 0


PAIRS = (("trail", "at-arrival"), ("trail", "trail-raw"), ("plp", "at-arrival"), ("plp", "trail"))


def _render(result: Result) -> str:
    rows = result.table()
    spans = list(dict.fromkeys((r["from_tokens"], r["to_tokens"]) for r in rows))
    titles = ["all", *(f"{a}-{b}" if a < b else str(a) for a, b in spans[1:])]
    lines = [
        f"{len(result.states.rows)} answers, a prediction every {result.states.every} tokens; {len(result.splits)} "
        "splits by prompt",
        "MAE of the remaining tokens, by tokens generated so far (Kendall tau in brackets)",
        f"  {'':12}" + "".join(f"{title:>16}" for title in titles),
    ]
    for method in dict.fromkeys(r["method"] for r in rows):
        cells = {(r["from_tokens"], r["to_tokens"]): r for r in rows if r["method"] == method}
        lines.append(f"  {method:12}" + "".join(_cell(cells.get(span)) for span in spans))
    lines += ["", "MAE differences over all moments (95% bootstrap interval by answer)"]
    for first, second in PAIRS:
        mean, low, high = result.difference(first, second)
        lines.append(f"  {first + ' - ' + second:24}{mean:+8.2f}  [{low:+.2f}, {high:+.2f}]")
    return "\n".join(lines)


def _cell(row: dict[str, float] | None) -> str:
    return f"{'-':>16}" if row is None else f"{row['mae']:.1f} ({row['tau']:.2f})".rjust(16)
