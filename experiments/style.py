"""How every plot looks: sizes, colours that the colour-blind can tell apart, and files without dates."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.labels import label
from traces.files import atomic_path

# A column of a two-column paper, and both columns with the gap between them.
COLUMN_WIDTH_IN = 3.3
PAGE_WIDTH_IN = 7.0
HEIGHT_IN = 2.5
PNG_DPI = 240

# Okabe and Ito (2008); the grey is dark, for a lighter one is their green to those who do not see green.
BLACK, GREY, GREEN, ORANGE, BLUE, VERMILION = "#000000", "#555555", "#009E73", "#E69F00", "#0072B2", "#D55E00"

SOLID, DASHED, DOTTED, DASHDOT, LONG, DOUBLE_DOT = DASHES = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1)),
    (0, (5, 1.5, 1.5, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
SHAPES = "osD^vPX<>*"
# A shape, and whether it is filled; the last two are lines.
MARKERS = (*((shape, filled) for filled in (True, False) for shape in SHAPES), ("x", True), ("+", True))


@dataclass(frozen=True)
class Look:
    """How a policy or a predictor is drawn: whoever does not see the colour has the dash and the marker.

    Attributes:
        colour: on white.
        dash: line style of matplotlib.
        marker: shape of matplotlib.
        filled: whether the marker is.
    """

    colour: str
    dash: Any
    marker: str
    filled: bool = True

    @property
    def point(self) -> dict[str, Any]:
        """Arguments of matplotlib for a marker."""
        full = "full" if self.filled else "none"
        return {"color": self.colour, "marker": self.marker, "fillstyle": full, "markeredgewidth": 0.8}

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib for a line with markers."""
        return {**self.point, "linestyle": self.dash}


# A policy has its look in every figure, whatever stands beside it. The colours come from a search for those
# that stay apart under normal sight and the three kinds of colour blindness; tests say by how much.
LOOKS = {
    "fcfs": Look(GREY, SOLID, "o"),
    "sjf": Look(GREEN, DASHED, "s"),
    "egtp": Look(ORANGE, DOTTED, "D"),
    "estp": Look(BLUE, DASHDOT, "^"),
    "semantic": Look("#332288", LONG, "v"),
    "mean": Look("#aa5544", DOUBLE_DOT, "P"),
    "last": Look("#9988ff", DASHED, "X"),
    "constant": Look(BLACK, SOLID, "*"),
    "scenario": Look("#aa3300", DOTTED, "<"),
    "prompt-length": Look("#aa88bb", DASHDOT, ">"),
    "srpt": Look("#991188", LONG, "o", filled=False),
    "trail": Look("#cc6611", DOUBLE_DOT, "s", filled=False),
    "las": Look("#770000", DASHED, "D", filled=False),
    "mlfq": Look("#6655cc", DOTTED, "^", filled=False),
    "gittins": Look("#bb6699", DASHDOT, "v", filled=False),
    "cvar": Look("#88aa66", SOLID, "P", filled=False),
    "ltr": Look("#114411", LONG, "X", filled=False),
    "ssjf": Look("#552255", DOUBLE_DOT, "<", filled=False),
    "ljf": Look("#8899ee", LONG, "+"),
    "random": Look("#aa9944", DOUBLE_DOT, "x"),
    # A bound, which no policy is.
    "asked": Look(BLACK, DASHED, "*", filled=False),
}
POLICY_COLOURS = {name: look.colour for name, look in LOOKS.items()}
# Another name's colour, for what is a variant of it.
FAMILIES = {"oracle": "sjf", "sprpt": "srpt", "tie": "cvar", "fastserve": "mlfq", "longest": "ljf"}
# For policies that people bring.
OTHER_COLOURS = ("#332288", "#aa3300", "#8899ee", "#114411", "#bb6699", "#88aa66")
# The same on the dark page of a report, where black is the letters' own colour.
DARK = {
    GREY: "#9aa3ad",
    GREEN: "#2ad1a0",
    ORANGE: "#e69f00",
    BLUE: "#3d9fe0",
    "#332288": "#5577ff",
    "#aa5544": "#ee4444",
    "#9988ff": "#bbccff",
    "#aa3300": "#ffbb77",
    "#aa88bb": "#cc44aa",
    "#991188": "#eebbdd",
    "#cc6611": "#bb6611",
    "#770000": "#ee5566",
    "#6655cc": "#8888ff",
    "#bb6699": "#aa6688",
    "#88aa66": "#55ff99",
    "#114411": "#ccffcc",
    "#552255": "#8866dd",
    "#8899ee": "#6677aa",
    "#aa9944": "#ffee77",
}

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
    "lines.markersize": 3.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "legend.columnspacing": 1.2,
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


def new_figure(columns: int = 1, height: float = 1.0, rows: int = 1, **subplots: Any) -> tuple[Figure, Any]:
    """A figure as wide as a column, of ``rows`` times ``columns`` axes, listed row by row.

    Args:
        columns, rows: of axes; more than two columns leave no room for their ticks.
        height: in multiples of ``HEIGHT_IN``.
        subplots: for `Figure.subplots`.
    """
    figure = Figure(figsize=(COLUMN_WIDTH_IN, HEIGHT_IN * height))
    FigureCanvasAgg(figure)
    # The last tick of one panel and the first of the next must not meet.
    figure.get_layout_engine().set(wspace=0.08)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(rows, columns, squeeze=False, **subplots).ravel()
    for axes in grid:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    return figure, grid


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each policy or predictor: its own where it has one, else one by its name.

    ``egtp-literal`` and ``egtp (sigma=0.5)`` have the colour of their family ``egtp``, with another dash and
    marker. Two strangers whose names lead to one look get two while there are some left.
    """
    chosen = {name: LOOKS[called] for name in names if (called := label(name).lower()) in LOOKS}
    strangers: list[str] = []
    for name in sorted(set(names) - set(chosen)):
        start = zlib.crc32(name.encode())
        colour = _family(name) or _first_free(OTHER_COLOURS, start, strangers)
        strangers.append(colour)
        others = list(chosen.values())
        alike = [look.dash for look in others if look.colour == colour]
        dash = _first_free(DASHES, start, [look.dash for look in others], alike)
        beside = [(look.marker, look.filled) for look in others if look.dash == dash]
        marker = _first_free(MARKERS, start, [(look.marker, look.filled) for look in others], beside)
        chosen[name] = Look(colour, dash, *marker)
    return {name: chosen[name] for name in names}


def _family(name: str) -> str | None:
    called = label(name).split(" ")[0].lower()
    for short in (called, called.split("-")[0]):
        if found := POLICY_COLOURS.get(FAMILIES.get(short, short)):
            return found
    return None


def _first_free(choices: Sequence[Any], start: int, *taken: Collection[Any]) -> Any:
    """The first choice from ``start`` on that nobody has; if there is none, that nobody of the next group has."""
    turns = [*choices[start % len(choices) :], *choices[: start % len(choices)]]
    for group in taken:
        if free := [choice for choice in turns if choice not in group]:
            return free[0]
    return turns[0]


def log_axis(axes: Axes, which: str, low: float, high: float, most: int = 6) -> None:
    """A log axis whose ticks are plain numbers: as many as there are decades, or up to ``most``."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    decades = math.log10(high / low)
    wanted = next((subs for subs in ((1, 2, 5), (1, 3)) if len(subs) * decades < most), (1,))
    axis.set_major_locator(LogLocator(base=10, subs=wanted, numticks=most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """A tick's number: ``20k`` and ``3M`` where it is large."""
    if value >= 10_000:
        size, unit = next(one for one in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if value >= one[0])
        return f"{value / size:g}{unit}"
    return f"{value:g}"


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
