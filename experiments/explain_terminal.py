"""An explained prompt in a terminal: tokens on coloured ground, or a table of numbers where there is no colour."""

from __future__ import annotations

import unicodedata

import numpy as np

from experiments.visible import visible
from predictor.explain import Explanation, Measure, measures

# Five steps of cividis (Nunez, Anderton, Renslow 2018) in the 256 colours that terminals share, each with a
# legible foreground. They differ in lightness, so no kind of colour vision is needed. The lowest step is plain.
STEPS = ((17, 15), (60, 15), (102, 16), (143, 16), (221, 16))
RESET = "\x1b[0m"
BAR = 40
EIGHTHS = " ▏▎▍▌▋▊▉"


def render(one: Explanation, colour: bool) -> str:
    """The whole answer: tokens by each measure, the weightiest, and the predicted distribution."""
    parts = [_coloured(measure, one.tokens) for measure in measures(one)] if colour else [_table(one)]
    parts += [weightiest(one), distribution(one)]
    return "\n\n".join(parts)


def _coloured(measure: Measure, tokens: tuple[str, ...]) -> str:
    text = [
        _ground(level, visible(t)) + _line_end(t) for level, t in zip(measure.strength, tokens, strict=True)
    ]
    scale = "".join(_ground(level, "  ") for level in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0))
    title = f"{measure.name} ({measure.meaning}; largest {measure.values.max():.3g}) {scale}"
    return f"{title}\n{''.join(text)}".rstrip("\n")


def _ground(level: float, text: str) -> str:
    step = min(int(level * (len(STEPS) + 1)), len(STEPS)) - 1
    if step < 0:
        return text
    ground, letters = STEPS[step]
    return f"\x1b[48;5;{ground};38;5;{letters}m{text}{RESET}"


def _line_end(token: str) -> str:
    return "\n" if token.endswith("\n") else ""


def _table(one: Explanation) -> str:
    shown = measures(one)
    names = [visible(token) for token in one.tokens]
    wide = max(5, *map(width, names))
    lines = [f"{'#':>5}  {'token':<{wide}}" + "".join(f"{m.name:>20}" for m in shown)]
    for i, name in enumerate(names):
        cells = "".join(f"{m.values[i]:>20.4g}" for m in shown)
        lines.append(f"{i:>5}  {name}{' ' * (wide - width(name))}{cells}")
    return "\n".join(lines)


def width(text: str) -> int:
    """Columns that a terminal gives to a text: East Asian wide characters take two, combining marks none."""
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 0 if unicodedata.category(c) in ("Mn", "Me") else 1
        for c in text
    )


def weightiest(one: Explanation, count: int = 5) -> str:
    """The tokens with the largest weight, the largest first, with their positions from 0."""
    if one.weight is None:
        return "max pooling takes the largest value of each dimension, so no token has a weight"
    order = np.argsort(-one.weight, kind="stable")[:count]
    listed = ", ".join(f"“{visible(one.tokens[i])}” ({i}) {one.weight[i]:.1%}" for i in order)
    return f"most weight: {listed} (uniform: {1 / len(one.tokens):.1%} each)"


def distribution(one: Explanation) -> str:
    """The bins as bars, the mean and the quantiles."""
    top = one.probabilities.max()
    edges = [f"{edge:.0f}" for edge in one.edges]
    wide = len(edges[-1])
    lines = [
        f"{low:>{wide}}-{high:<{wide}} {p:>6.1%} {bar(p / top)}".rstrip()
        for low, high, p in zip(edges, edges[1:], one.probabilities, strict=False)
    ]
    at = ", ".join(f"{q:.0%} {value:.0f}" for q, value in one.quantiles.items())
    return "\n".join(
        [
            f"answer of {one.backbone}, by {one.predictor}: {one.mean:.0f} tokens on average",
            f"quantiles, tokens{', with conformal correction' if one.conformal else ''}: {at}",
            *lines,
            f"({one.summary})",
        ]
    )


def bar(share: float) -> str:
    """A horizontal bar of at most 40 columns, in steps of an eighth of one."""
    eighths = round(share * BAR * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
