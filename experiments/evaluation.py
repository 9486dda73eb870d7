"""The evaluation's tables, for the terminal and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.evaluate import Evaluation
    from traces import Trace

MEASURES = {"mae": "MAE", "rmse": "RMSE", "tau": "Kendall tau", "bin_accuracy": "bin accuracy"}
BETTER = {"mae": min, "rmse": min, "tau": max, "bin_accuracy": max}
PAIRS = (
    ("estp", "egtp"),
    ("estp", "estp-permuted"),
    ("estp", "mean"),
    ("estp", "last"),
    ("estp-literal", "egtp-literal"),
)


def render(result: Evaluation, trace: Trace) -> str:
    """Tables a scenario (the best of each measure marked *), paired differences and chosen settings."""
    from predictor.evaluate import noise_floor

    rows = result.table()
    lines = [_facts(result, trace, noise_floor(trace))]
    for scenario in dict.fromkeys(r["scenario"] for r in rows):
        part = [r for r in rows if r["scenario"] == scenario]
        lines += ["", f"{scenario}", f"  {'':16}" + "".join(f"{name:>14}" for name in MEASURES.values())]
        best = {k: BETTER[k](r[k] for r in part if not math.isnan(r[k])) for k in MEASURES}
        for r in part:
            cells = "".join(f"{_number(r[k]) + ('*' if r[k] == best[k] else ' '):>14}" for k in MEASURES)
            lines.append(f"  {r['method']:16}{cells}")
    lines += ["", "MAE differences, tokens (95% bootstrap interval by prompt; below 0: the first is better)"]
    for first, second in PAIRS:
        for scenario in dict.fromkeys(r["scenario"] for r in rows):
            mean, low, high = result.difference(first, second, scenario)
            verdict = "within noise" if low <= 0 <= high else ("better" if high < 0 else "worse")
            lines.append(
                f"  {first + ' - ' + second:30}{scenario:12}{mean:+8.2f}  [{low:+.2f}, {high:+.2f}]  {verdict}"
            )
    lines += ["", "settings chosen on validation, by seed"]
    for method in dict.fromkeys(o.method for o in result.outcomes if o.settings):
        chosen = [_setting(o.settings) for o in result.outcomes if o.method == method]
        lines.append(f"  {method:16}" + "; ".join(f"{s} ({n}x)" for s, n in Counter(chosen).most_common()))
    return "\n".join(lines)


def as_json(result: Evaluation, trace: Trace, model: str) -> str:
    """All figures, chosen settings and every candidate's validation loss."""
    from predictor.evaluate import noise_floor

    scenarios = dict.fromkeys(r["scenario"] for r in result.table())
    content: dict[str, Any] = {
        "schema_version": 1,
        "model": model,
        "rows": len(trace),
        "prompts": len(set(result.prompts)),
        "seeds": list(result.splits),
        "noise_floor_tokens": noise_floor(trace),
        "table": [{k: None if v != v else v for k, v in row.items()} for row in result.table()],
        "differences": [
            {"first": a, "second": b, "scenario": s, "mae": list(result.difference(a, b, s))}
            for a, b in PAIRS
            for s in scenarios
        ],
        "chosen": [{"seed": o.seed, "method": o.method, **o.settings} for o in result.outcomes if o.settings],
        "validation": result.validation,
    }
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _facts(result: Evaluation, trace: Trace, floor: float | None) -> str:
    tests = [len(split.test) for split in result.splits.values()]
    text = (
        f"{len(trace)} answers to {len(set(result.prompts))} prompts, mean {trace.output_tokens.mean():.1f} tokens; "
        f"{len(tests)} splits by prompt, {sum(tests)} test rows in all"
    )
    if floor is not None:
        text += f"; two answers to one prompt are {floor:.1f} tokens apart on average"
    return text


def _setting(s: dict[str, Any]) -> str:
    if s["pooling"] in ("mean", "last", "max"):
        return "no signal"
    parts = [s["signal_scale"]]
    if s["pooling"] != "egtp":
        parts.append(f"S {s['lambda1']:g}")
    if s["pooling"] != "semantic":
        parts.append(f"H {s['lambda2']:g}")
    return " ".join(parts)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else (f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}")
