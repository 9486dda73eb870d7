"""An explained prompt as a figure: the tokens on coloured ground, a panel a measure, and the distribution."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle

from experiments.style import BLUE, DASHED, GREY, PAGE_WIDTH_IN, PNG_DPI, VERMILION, plot_style
from experiments.visible import visible
from predictor.explain import Explanation, Measure, measures
from traces.files import atomic_path

MOST_TOKENS = 240
FONT_SIZE = 7
FONT = FontProperties(family="DejaVu Sans Mono", size=FONT_SIZE)
CELL_IN = 0.602 * FONT_SIZE / 72  # the advance of that font
# A line of text needs the width of both columns of a page.
COLUMNS = int((PAGE_WIDTH_IN - 0.2) / CELL_IN)
LINE_IN = 0.17
TITLE_IN = 0.3
BARS_IN = 1.7
RTL = ("R", "AL")


def draw(one: Explanation, path: Path) -> None:
    """Write a PNG. Of a long prompt the beginning and the end are shown, and how much is left out between.

    Raises:
        InputError: the file cannot be written.
    """
    with plot_style(), atomic_path(path) as temporary:
        explained(one).savefig(temporary, format="png", dpi=PNG_DPI, metadata={"Software": None})


def explained(one: Explanation) -> Figure:
    """The figure; called within `experiments.style.plot_style`."""
    shown = measures(one)
    rows = _layout([label for label, _ in _cells(one, shown[0])])
    panel_in = TITLE_IN + LINE_IN * (1 + max(row for row, _ in rows))
    height = BARS_IN + panel_in * len(shown) + 0.1
    figure = Figure(figsize=(PAGE_WIDTH_IN, height))
    figure.set_layout_engine("none")
    FigureCanvasAgg(figure)
    top = height - 0.05
    for measure in shown:
        axes = figure.add_axes(_box(top - TITLE_IN, panel_in - TITLE_IN, figure))
        _tokens(axes, measure, _cells(one, measure), rows)
        top -= panel_in
    _bars(figure.add_axes(_box(top - 0.35, BARS_IN - 0.8, figure, left_in=0.5)), one)
    return figure


def _box(
    top_in: float, height_in: float, figure: Figure, left_in: float = 0.1
) -> tuple[float, float, float, float]:
    width, height = figure.get_size_inches()
    right_in = COLUMNS * CELL_IN + 0.1
    return left_in / width, (top_in - height_in) / height, (right_in - left_in) / width, height_in / height


def _cells(one: Explanation, measure: Measure) -> list[tuple[str, float | None]]:
    """Labels and strengths of the tokens; None where a run of them is left out."""
    cells = [(_drawable(visible(t)), s) for t, s in zip(one.tokens, measure.strength.tolist(), strict=True)]
    if len(cells) <= MOST_TOKENS:
        return [*cells]
    half = MOST_TOKENS // 2
    gap = (f" ... {len(cells) - 2 * half:,} tokens ... ", None)
    return [*cells[:half], gap, *cells[-half:]]


def _drawable(text: str) -> str:
    """What the font can draw, left to right: codes for glyphs that it lacks, right-to-left letters turned round."""
    font = get_font(findfont(FONT))
    if any(unicodedata.bidirectional(c) in RTL for c in text):
        text = text[::-1]
    return "".join(c if font.get_char_index(ord(c)) else f"‹U+{ord(c):04X}›" for c in text)


def _layout(labels: list[str]) -> list[tuple[int, int]]:
    """(row, column) of each label, in cells; a line ends after ⏎ and where the next label would not fit."""
    places, row, column = [], 0, 0
    for label in labels:
        if column and column + len(label) > COLUMNS:
            row, column = row + 1, 0
        places.append((row, column))
        column += len(label)
        if label.endswith("⏎"):
            row, column = row + 1, 0
    return places


def _tokens(
    axes: Any, measure: Measure, cells: list[tuple[str, float | None]], places: list[tuple[int, int]]
) -> None:
    rows = 1 + max(row for row, _ in places)
    axes.set(xlim=(0, COLUMNS), ylim=(rows, 0))
    axes.axis("off")
    axes.set_title(
        f"{measure.name} ({measure.meaning}; largest {measure.values.max():.3g})", loc="left", pad=3
    )
    colours = matplotlib.colormaps["cividis"]
    for text, start in (("less ", COLUMNS - 21), (" more", COLUMNS - 5)):
        axes.text(start, -0.6, text, fontproperties=FONT, va="center_baseline")
    for step in range(8):
        key = Rectangle((COLUMNS - 16 + 1.3 * step, -1), 1.3, 0.8, facecolor=colours(step / 7), clip_on=False)
        axes.add_patch(key)
    for (label, strength), (row, column) in zip(cells, places, strict=True):
        if strength is not None:
            ground = Rectangle((column, row), len(label), 1, facecolor=colours(strength), edgecolor="white")
            ground.set_linewidth(0.4)
            axes.add_patch(ground)
        letters = "white" if strength is not None and strength < 0.45 else "black"
        axes.text(
            column,
            row + 0.5,
            # A dollar sign is a dollar sign, not mathematics.
            label.replace("$", r"\$"),
            color=letters,
            fontproperties=FONT,
            va="center_baseline",
        )


def _bars(axes: Any, one: Explanation) -> None:
    widths = one.edges[1:] - one.edges[:-1]
    axes.bar(
        one.edges[:-1], one.probabilities * 100, widths, align="edge", color=BLUE, edgecolor="white", lw=0.5
    )
    at = one.quantiles
    axes.axvline(one.mean, color=VERMILION, lw=1.2, label=f"mean {one.mean:.0f} tokens")
    if 0.5 in at:
        axes.axvline(at[0.5], color="black", lw=1.2, ls=DASHED, label=f"median {at[0.5]:.0f}")
    if 0.05 in at and 0.95 in at:
        label = f"90% from {at[0.05]:.0f} to {at[0.95]:.0f}" + (", conformal" if one.conformal else "")
        axes.axvspan(at[0.05], at[0.95], color=GREY, alpha=0.15, lw=0, zorder=0, label=label)
    axes.set(xlabel=f"length of {one.backbone}'s answer, by {one.predictor} (tokens)", ylabel="share (%)")
    axes.set_xlim(one.edges[0], one.edges[-1])
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)
