"""What each step beyond the paper is worth: each against plain ESTP, on the same splits by prompt.

    python tools/ablation.py [NAME ...] [--seeds 5]

Prints the tables of docs/ablation.md. Finished cells are kept in the user's cache, so a killed run goes on where it
stopped. Methods of `predictor.extensions` earned a place in the package, those of `tools/beyond` did not.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

from beyond.fusion import Learned
from beyond.heads import Crps, LogLength, Quantiles
from beyond.layers import LastAndMean, Mix
from beyond.per_head import read_heads
from beyond.scales import Corrected

from predictor.backbone import EMBEDDED, Backbone, load_backbone
from predictor.backbone import cache_folder as cache
from predictor.baselines.pooled import Pooled
from predictor.cells import Cells, fingerprint_of
from predictor.embedded import read_rollout
from predictor.evaluate import Evaluation, Outcome, evaluate, random_splits
from predictor.extensions.intervals import Conformal, quantiles_of
from predictor.extensions.layers import Concat
from predictor.extensions.samples import OneDraw
from predictor.extensions.start import VALIDATED
from predictor.features import fingerprint, read_signals
from predictor.layers import read_layers
from predictor.methods import Data, Method
from predictor.pooling import PoolingSettings
from predictor.rows import prompts_of
from predictor.train import TrainSettings

ESTP = Pooled("estp", (VALIDATED,))
SAMPLES = TrainSettings(targets="samples")
METHODS: list[Method] = [
    ESTP,
    Pooled("last", (PoolingSettings("last"),)),
    Pooled("estp-sharper", (PoolingSettings("estp", "detrended", 3.0, 1.4),)),
    Pooled("estp-zscore", (PoolingSettings("estp", "zscore", 1.5, 0.7),)),
    Pooled("estp-visible", (PoolingSettings("estp", "visible"),)),
    Pooled("estp-paper", (PoolingSettings("estp", "paper"),)),
    Corrected("scale-log", "log"),
    Corrected("scale-rank", "rank"),
    Corrected("scale-both-ends", "both-ends"),
    Corrected("scale-no-sink", "no-sink"),
    OneDraw(),
    Pooled("samples", (VALIDATED,), SAMPLES),
    Learned("fusion", train=SAMPLES),
    Learned("fusion-heads", heads=(), train=SAMPLES),
    Learned("fusion-query", query=True, rate=5e-4, train=SAMPLES),
    Learned("query", signals=False, query=True, rate=5e-4, train=SAMPLES),
    Concat(),
    LastAndMean(),
    Mix("layer-mix"),
    Crps("crps"),
    Quantiles("quantile"),
    LogLength("log-length"),
    Conformal("conformal", ESTP),
]
COLUMNS = {
    "mae": "MAE",
    "rmse": "RMSE",
    "tau": "tau",
    "crps": "CRPS",
    "coverage_90": "in 90%",
    "width_90": "width",
}


def main() -> None:
    """Evaluate and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    unknown = {*args.names} - {m.name for m in METHODS}
    if unknown:
        parser.error(
            f"there is no {', '.join(sorted(unknown))}; choose from {', '.join(m.name for m in METHODS)}"
        )
    chosen = [m for m in METHODS if not args.names or m.name in ("estp", *args.names)]
    backbone = load_backbone(EMBEDDED, "cpu", "float32")
    data, methods = read(backbone, chosen)
    cells = Cells(cache() / "cells" / "ablation", fingerprint_of(data, f"{fingerprint(backbone)} float32"))
    result = evaluate(data, methods, random_splits(data, range(args.seeds)), cells=cells)
    print(f"{args.seeds} splits, {sum(len(s.test) for s in result.splits.values())} test rows in all\n")
    print(against_estp(result))
    print("\n" + by_scenario(result))
    for o in result.outcomes:
        if o.method == "fusion":
            weights = ", ".join(f"{w:.2f}" for w in o.forecast.settings["weights"])
            print(f"\nfusion, seed {o.seed}: S and H weigh {weights}")


def read(backbone: Backbone, methods: Sequence[Method]) -> tuple[Data, list[Method]]:
    """What the methods read of the LLM, and the methods with what only they read."""
    trace = read_rollout()
    texts = prompts_of(trace)
    layers = read_layers(backbone, texts) if any("layers" in m.reads for m in methods) else None
    heads = read_heads(backbone, texts) if any(m.name == "fusion-heads" for m in methods) else ()
    ready = [
        replace(m, heads=heads) if isinstance(m, Learned) and m.heads is not None else m for m in methods
    ]
    return Data(trace, read_signals(backbone, texts), layers), ready


def against_estp(result: Evaluation) -> str:
    """Measures over all test rows, and differences to ESTP: MAE of the means, MAE of the medians, CRPS."""
    middle = replace(result, outcomes=[_median(o) for o in result.outcomes])
    medians = {row["method"]: row["mae"] for row in middle.table() if row["scenario"] == "all"}
    titles = ("MAE of the median", "MAE less ESTP's", "of the medians", "CRPS less ESTP's")
    lines = _head(["method", *COLUMNS.values(), *titles])
    for row in result.table():
        if row["scenario"] == "all":
            name = row["method"]
            pairs = ((result, "mae"), (middle, "mae"), (result, "crps"))
            cells = [_difference(source, name, "all", measure) for source, measure in pairs]
            measures = [*(row[k] for k in COLUMNS), medians[name]]
            lines.append(_line([name, *map(_number, measures), *cells]))
    return "\n".join(lines)


def by_scenario(result: Evaluation) -> str:
    """A column a scenario: the difference in MAE to ESTP, and the share of truths in the 90% interval."""
    scenarios = result.scenarios[1:]
    inside = {(r["scenario"], r["method"]): r["coverage_90"] for r in result.table()}
    lines = _head(
        ["method", *(f"MAE less ESTP's, {s}" for s in scenarios), *(f"in 90%, {s}" for s in scenarios)]
    )
    for name in result.methods:
        cells = [_difference(result, name, s, "mae") for s in scenarios]
        lines.append(_line([name, *cells, *(_number(inside[s, name]) for s in scenarios)]))
    return "\n".join(lines)


def _median(one: Outcome) -> Outcome:
    """The same forecast with its distribution's median in the place of its mean."""
    return replace(one, forecast=replace(one.forecast, mean=quantiles_of(one.forecast)[0.5]))


def _difference(result: Evaluation, name: str, scenario: str, measure: str) -> str:
    if name == "estp":
        return "-"
    mean, low, high = result.difference(name, "estp", scenario, measure)
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def _head(titles: list[str]) -> list[str]:
    return [_line(titles), "|" + " --- |" * len(titles)]


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else (f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}")


if __name__ == "__main__":
    main()
