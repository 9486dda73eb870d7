"""The evaluation's tables, for the terminal and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.remaining import figures_of

if TYPE_CHECKING:
    from predictor.evaluate import Evaluation
    from predictor.remaining import Remaining

MEASURES = {
    "mae": "MAE",
    "rmse": "RMSE",
    "tau": "Kendall tau",
    "bin_accuracy": "bin acc.",
    "crps": "CRPS",
    "coverage_90": "90% covers",
    "calibration": "calibration",
}
BETTER = {"mae": min, "rmse": min, "tau": max, "bin_accuracy": max, "crps": min, "calibration": min}
PAIRS = (
    ("estp", "egtp"),
    ("estp", "estp-permuted"),
    ("estp", "semantic"),
    ("estp", "mean"),
    ("egtp", "mean"),
    ("estp-literal", "egtp-literal"),
)
REFERENCE = "last"


def pairs(result: Evaluation) -> list[tuple[str, str]]:
    """Which differences are told: those that the papers claim, and every method against last-token pooling."""
    there = result.methods
    told = [pair for pair in PAIRS if pair[0] in there and pair[1] in there]
    if REFERENCE in there:
        told += [(name, REFERENCE) for name in there if name != REFERENCE]
    return told


def render(result: Evaluation) -> str:
    """Tables a scenario (the best of each measure marked *), paired differences and chosen settings."""
    lines = [_facts(result)]
    rows = result.table()
    for scenario in result.scenarios:
        lines += ["", scenario, *_table([r for r in rows if r["scenario"] == scenario], "method")]
    told = pairs(result)
    if told:
        lines += [
            "",
            "MAE differences, tokens (95% bootstrap interval by prompt; below 0: the first is better)",
        ]
    for first, second in told:
        for scenario in result.scenarios:
            mean, low, high = result.difference(first, second, scenario)
            if math.isnan(mean):
                continue
            verdict = "within noise" if low <= 0 <= high else ("better" if high < 0 else "worse")
            pair = f"{first} - {second}"
            lines.append(f"  {pair:34}{scenario:12}{mean:+8.2f}  [{low:+.2f}, {high:+.2f}]  {verdict}")
    chosen = {
        m: [_setting(o.forecast.settings) for o in result.outcomes if o.method == m] for m in result.methods
    }
    if any(any(settings) for settings in chosen.values()):
        lines += ["", "settings chosen on validation, by seed"]
    for method, settings in chosen.items():
        if any(settings):
            counted = "; ".join(f"{s} ({n}x)" for s, n in Counter(settings).most_common())
            lines.append(f"  {method:18}{counted}")
    return "\n".join(lines)


def render_protocol(title: str, results: Mapping[str, Evaluation]) -> str:
    """One table of a protocol's evaluations: a row a method and part, over all test rows of the part."""
    tables = {
        name: {row["method"]: row for row in result.table() if row["scenario"] == "all"}
        for name, result in results.items()
    }
    rows = [
        {**tables[name][method], "method": f"{method}, {name}"}
        for method in next(iter(tables.values()))
        for name in tables
    ]
    return "\n".join([title, *_table(rows, "method", mark=False)])


def render_cost(rows: Sequence[Mapping[str, Any]]) -> str:
    """The measured cost; a figure of this machine at this moment."""
    lines = [
        "measured here, medians over prompts, one at a time",
        f"  {'':26}{'ms a prompt':>14}{'MB a prompt':>14}",
    ]
    lines += [f"  {row['what']:26}{row['ms']:>14.3f}{row['mb']:>14.3f}" for row in rows]
    return "\n".join(lines)


def not_run(result: Evaluation, remaining: bool, cost: bool) -> str:
    """What a run without method names leaves out, and how to have it."""
    from predictor.catalogue import NEED_ENCODER

    left = []
    if not set(NEED_ENCODER) <= set(result.methods):
        left.append(f"{', '.join(NEED_ENCODER)} (--encoder NAME)")
    if not remaining:
        left.append("plp and TRAIL's refinement while decoding (--remaining N)")
    if not cost:
        left.append("milliseconds and megabytes a prompt (--cost N)")
    return f"not run: {'; '.join(left)}" if left else "every method was run"


def as_json(
    result: Evaluation,
    model: str,
    protocols: Mapping[str, Mapping[str, Evaluation]],
    remaining: Remaining | None = None,
    cost: Any = None,
) -> str:
    """All figures, chosen settings and every candidate's validation loss. `measured_cost` alone varies by run."""
    from predictor.evaluate import noise_floor

    content: dict[str, Any] = {
        "schema_version": 2,
        "model": model,
        "rows": len(result.data.trace),
        "prompts": len(set(result.data.prompt_ids)),
        "seeds": list(result.splits),
        "noise_floor_tokens": noise_floor(result.data.trace),
        **_figures(result),
        "differences": [
            {"first": a, "second": b, "scenario": s, "measure": measure, "interval": _plain(interval)}
            for a, b in pairs(result)
            for s in result.scenarios
            for measure in ("mae", "crps")
            for interval in [result.difference(a, b, s, measure)]
        ],
        "chosen": [
            {"seed": o.seed, "method": o.method, **o.forecast.settings}
            for o in result.outcomes
            if o.forecast.settings
        ],
        **{
            protocol: {part: _figures(one) for part, one in parts.items()}
            for protocol, parts in protocols.items()
        },
    }
    if remaining is not None:
        content["remaining"] = figures_of(remaining)
    if cost is not None:
        content["measured_cost"] = cost
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def _figures(result: Evaluation) -> dict[str, Any]:
    tables = {"table": result.table(), "per_seed": result.per_seed()}
    return {
        name: [dict(zip(row, _plain(row.values()), strict=True)) for row in rows]
        for name, rows in tables.items()
    }


def _plain(values: Any) -> list[Any]:
    return [None if isinstance(v, float) and math.isnan(v) else v for v in values]


def _table(rows: list[dict[str, Any]], label: str, mark: bool = True) -> list[str]:
    lines = [f"  {'':30}" + "".join(f"{name:>13}" for name in MEASURES.values())]
    best = {}
    for name, better in BETTER.items():
        known = [r[name] for r in rows if not math.isnan(r[name])]
        best[name] = better(known) if mark and known else None
    for r in rows:
        cells = (_number(r[k]) + ("*" if r[k] == best.get(k) else " ") for k in MEASURES)
        lines.append(f"  {r[label]:30}" + "".join(f"{cell:>13}" for cell in cells))
    return lines


def _facts(result: Evaluation) -> str:
    from predictor.evaluate import noise_floor

    trace = result.data.trace
    tests = [len(split.test) for split in result.splits.values()]
    text = (
        f"{len(trace)} answers to {len(set(result.data.prompt_ids))} prompts, mean {trace.output_tokens.mean():.1f} "
        f"tokens; {len(tests)} splits by prompt, {sum(tests)} test rows in all"
    )
    floor = noise_floor(trace)
    if floor is not None:
        text += f"; two answers to one prompt are {floor:.1f} tokens apart on average"
    return text


def _setting(s: Mapping[str, Any]) -> str:
    """The chosen settings in a few words: signals' weights for a pooling, else every plain value."""
    if "pooling" not in s:
        plain = {
            k: v for k, v in s.items() if isinstance(v, str | int | float) and not k.startswith("validation")
        }
        return " ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in plain.items())
    if s["pooling"] in ("mean", "last", "max"):
        return ""
    parts = [s["signal_scale"]]
    if s["pooling"] != "egtp":
        parts.append(f"S {s['lambda1']:g}")
    if s["pooling"] != "semantic":
        parts.append(f"H {s['lambda2']:g}")
    return " ".join(parts)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else (f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}")
