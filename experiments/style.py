"""How every plot looks: sizes, colours that the colour-blind can tell apart, and files without dates."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.labels import label
from traces.files import atomic_path

COLUMN_WIDTH_IN = 3.5
HEIGHT_IN = 2.5
PNG_DPI = 240

# Okabe and Ito (2008), without the yellow, which fades on white.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#777777",
)
# A policy has its colour in every figure, whatever stands beside it.
POLICY_COLOURS = {
    "fcfs": GREY,
    "sjf": GREEN,
    "egtp": ORANGE,
    "estp": BLUE,
    "ljf": VERMILION,
    "random": PURPLE,
    "constant": BLACK,
    "semantic": SKY,
    "mean": PURPLE,
    "last": VERMILION,
}
# From Tol's muted scheme, for policies that people bring.
OTHER_COLOURS = ("#882255", "#44AA99", "#332288", "#999933", "#CC6677")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1)),
    (0, (5, 1.5, 1.5, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)

RC: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    # Glyphs as paths and ids from a fixed salt: the same bytes on every machine and run.
    "svg.fonttype": "path",
    "svg.hashsalt": "estp",
}


@contextmanager
def plot_style() -> Iterator[None]:
    """Matplotlib with this project's settings, and the user's own restored after."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(RC)
        yield


def new_figure(
    columns: int = 1, width: float = 1.0, height: float = 1.0, **subplots: Any
) -> tuple[Figure, Any]:
    """A figure of ``columns`` axes side by side; ``width`` and ``height`` scale column-width size."""
    figure = Figure(figsize=(COLUMN_WIDTH_IN * width, HEIGHT_IN * height))
    FigureCanvasAgg(figure)
    # The last tick of one panel and the first of the next must not meet.
    figure.get_layout_engine().set(wspace=0.08)  # type: ignore[union-attr, call-arg]
    return figure, figure.subplots(1, columns, squeeze=False, **subplots)[0]


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each policy or predictor: its own where it has one, else one by its name.

    Two strangers whose names lead to one colour get two while there are some left.
    """
    chosen: dict[str, str] = {}
    for name in sorted(names):
        known = POLICY_COLOURS.get(label(name).split(" ")[0].lower())
        start = zlib.crc32(name.encode()) % len(OTHER_COLOURS)
        turns = [*OTHER_COLOURS[start:], *OTHER_COLOURS[:start]]
        free = [colour for colour in turns if colour not in chosen.values()]
        chosen[name] = known or (free or turns)[0]
    return chosen


def dashes(names: Sequence[str]) -> dict[str, Any]:
    """A line style for each name, so that lines differ in print and where two share a colour."""
    return {name: DASHES[i % len(DASHES)] for i, name in enumerate(names)}


def save_figure(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write ``stem.png`` and ``stem.svg``, free of dates and versions.

    Raises:
        InputError: the folder cannot be written.
    """
    paths = []
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = folder / f"{stem}.{suffix}"
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=suffix, dpi=PNG_DPI, metadata=metadata)
        paths.append(path)
    return paths
