"""How every plot looks: sizes, colours that the colour-blind can tell apart, and files without dates."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.labels import label
from traces.files import atomic_path

# A column of a two-column paper.
COLUMN_WIDTH_IN = 3.3
HEIGHT_IN = 2.5
PNG_DPI = 240

# Okabe and Ito (2008), without the yellow, which fades on white; the grey is dark, for a lighter one is
# their green to those who do not see green.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#000000",
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#555555",
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
    "srpt": "#117733",
    "trail": "#AA4499",
    "las": "#44AA99",
    "mlfq": "#999933",
    "gittins": "#332288",
    "cvar": "#CC6677",
    "ltr": "#661100",
    "ssjf": "#882255",
    # A bound, which no policy is.
    "asked": BLACK,
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
MARKERS = "osD^vPX<>*"

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
    columns: int = 1, width: float = 1.0, height: float = 1.0, rows: int = 1, **subplots: Any
) -> tuple[Figure, Any]:
    """A figure of ``rows`` times ``columns`` axes, listed row by row; sizes are multiples of a column's."""
    figure = Figure(figsize=(COLUMN_WIDTH_IN * width, HEIGHT_IN * height))
    FigureCanvasAgg(figure)
    # The last tick of one panel and the first of the next must not meet.
    figure.get_layout_engine().set(wspace=0.08)  # type: ignore[union-attr, call-arg]
    return figure, figure.subplots(rows, columns, squeeze=False, **subplots).ravel()


def colours(names: Sequence[str]) -> dict[str, str]:
    """A colour for each policy or predictor: its own where it or its family has one, else one by its name.

    ``egtp-literal`` and ``egtp (sigma=0.5)`` are of the family ``egtp``. Two strangers whose names
    lead to one colour get two while there are some left.
    """
    chosen: dict[str, str] = {}
    for name in sorted(names):
        called = label(name).split(" ")[0].lower()
        known = POLICY_COLOURS.get(called, POLICY_COLOURS.get(called.split("-")[0]))
        chosen[name] = known or _first_free(OTHER_COLOURS, zlib.crc32(name.encode()), chosen)
    return chosen


def dashes(names: Sequence[str]) -> dict[str, Any]:
    """A line style for each name, so that lines differ in print and where two share a colour."""
    return _one_each(DASHES, names)


def markers(names: Sequence[str]) -> dict[str, str]:
    """A marker for each name, for the same reason."""
    return _one_each(MARKERS, names)


def _one_each(choices: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """Those who have a colour choose first, in its order, and then the others by their names."""
    place = {name: i for i, name in enumerate(POLICY_COLOURS)}
    known = sorted((place[label(name)], name) for name in names if label(name) in place)
    chosen: dict[str, Any] = {}
    for start, name in known:
        chosen[name] = _first_free(choices, start, chosen)
    for name in sorted(set(names) - set(chosen)):
        chosen[name] = _first_free(choices, zlib.crc32(name.encode()), chosen)
    return {name: chosen[name] for name in names}


def _first_free(choices: Sequence[Any], start: int, taken: Mapping[str, Any]) -> Any:
    turns = [*choices[start % len(choices) :], *choices[: start % len(choices)]]
    free = [choice for choice in turns if choice not in taken.values()]
    return (free or turns)[0]


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
