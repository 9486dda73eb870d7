"""What each step beyond the paper is worth: each against plain ESTP and last-token, on the same splits by prompt.

    python tools/ablation.py [NAME ...] [--seeds 5]

Prints Markdown. Finished cells are kept in the user's cache, so a killed run goes on where it stopped.
"""

import argparse
import math
from dataclasses import replace

from predictor.backbone import EMBEDDED, cache_folder, load_backbone
from predictor.baselines.pooled import Pooled
from predictor.cells import Cells, fingerprint_of
from predictor.embedded import read_rollout
from predictor.evaluate import Evaluation, Outcome, evaluate, random_splits
from predictor.extensions.intervals import Conformal, quantiles_of
from predictor.extensions.layers import Concat
from predictor.extensions.samples import OneDraw
from predictor.extensions.start import VALIDATED
from predictor.features import read_signals
from predictor.layers import read_layers
from predictor.methods import Data, Method
from predictor.pooling import PoolingSettings
from predictor.rows import prompts_of
from predictor.train import TrainSettings

ESTP = Pooled("estp", (VALIDATED,))
METHODS: list[Method] = [
    Pooled("last", (PoolingSettings("last"),)),
    ESTP,
    Concat("layers", (20, 30)),
    OneDraw(),
    Pooled("samples", (VALIDATED,), TrainSettings(targets="samples")),
    Conformal("conformal", ESTP),
]
COLUMNS = {"mae": "MAE", "median": "MAE of the median", "rmse": "RMSE", "tau": "tau", "crps": "CRPS",
           "coverage_90": "in 90%", "width_90": "width"}  # fmt: skip


def main() -> None:
    """Evaluate and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    chosen = [m for m in METHODS if m.name in args.names] if args.names else METHODS
    trace = read_rollout()
    texts = prompts_of(trace)
    backbone = load_backbone(EMBEDDED, "cpu", "float32")
    layers = read_layers(backbone, texts) if any("layers" in m.reads for m in chosen) else None
    data = Data(trace, read_signals(backbone, texts), layers)
    cells = Cells(cache_folder() / "cells" / "ablation", fingerprint_of(trace, EMBEDDED))
    result = evaluate(data, chosen, random_splits(data, range(args.seeds)), cells=cells)
    for scenario in result.scenarios:
        print(f"\n{scenario}\n\n{render(result, scenario)}")


def medians(result: Evaluation) -> Evaluation:
    """The same forecasts with the distribution's median in the place of its mean."""
    return replace(
        result,
        outcomes=[
            Outcome(o.seed, o.method, replace(o.forecast, mean=quantiles_of(o.forecast)[0.5]))
            for o in result.outcomes
        ],
    )


def render(result: Evaluation, scenario: str) -> str:
    """One Markdown table: measures, and differences in MAE, MAE of the median and CRPS with their intervals."""
    rows = {r["method"]: r for r in result.table() if r["scenario"] == scenario}
    middle = medians(result)
    for r in middle.table():
        if r["scenario"] == scenario:
            rows[r["method"]]["median"] = r["mae"]
    against = [name for name in ("estp", "last") if name in rows]
    head = [
        "method",
        *COLUMNS.values(),
        *(f"{m} less {a}'s" for a in against for m in ("MAE", "median", "CRPS")),
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for name, r in rows.items():
        cells = [name, *(_number(r[k]) for k in COLUMNS)]
        for other in against:
            for source, measure in ((result, "mae"), (middle, "mae"), (result, "crps")):
                mean, low, high = source.difference(name, other, scenario, measure)
                cells.append("" if name == other else f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else (f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}")


if __name__ == "__main__":
    main()
