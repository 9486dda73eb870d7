"""Predictions of the remaining length as text and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from predictor.remaining import Remaining

PAIRS = (("trail", "at-arrival"), ("trail", "trail-raw"), ("plp", "at-arrival"), ("plp", "trail"))


def render(result: Remaining) -> str:
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


def figures_of(result: Remaining) -> dict[str, Any]:
    """All figures, for JSON: null where there is nothing to rank."""
    rows = [{k: None if v != v else v for k, v in row.items()} for row in result.table()]
    return {
        "every": result.states.every,
        "layer": result.states.layer,
        "answers": len(result.states.rows),
        "table": rows,
        "differences": [{"first": a, "second": b, "mae": result.difference(a, b)} for a, b in PAIRS],
    }
