"""Plots for a page: an SVG as part of its markup, free of whatever could run or reach out."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from traces.errors import InputError

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
SHAPES = (
    "svg",
    "g",
    "defs",
    "path",
    "use",
    "clipPath",
    "rect",
    "circle",
    "line",
    "polyline",
    "polygon",
    "image",
)
ATTRIBUTES = re.compile(
    r"id|d|x|y|x1|x2|y1|y2|cx|cy|r|points|width|height|transform|style|clip-path|viewBox|href|preserveAspectRatio"
    r"|fill|stroke|stroke-width|opacity"
)
# The shades beside a plot are a picture within it.
PIXELS = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]*$")
# A cloud of dots as SVG can be larger than the rest of the page; then its picture is taken.
MOST_BYTES = 1_000_000


def from_figure(figure: Figure, name: str, label: str) -> Markup:
    """A figure as markup; called within `experiments.style.plot_style`."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return from_text(text.getvalue(), name, label, name)


def from_file(path: Path, label: str) -> Markup:
    """An SVG file as markup; the PNG beside it where the SVG is large.

    Raises:
        InputError: the file is no SVG.
    """
    text, png = path.read_text(encoding="utf-8"), path.with_suffix(".png")
    if len(text) > MOST_BYTES and png.is_file():
        data = base64.b64encode(png.read_bytes()).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(label, data)
    return from_text(text, path.stem, label, str(path))


def from_text(text: str, name: str, label: str, source: str) -> Markup:
    """An SVG's shapes as markup.

    Only shapes and their looks are taken over. Names in it get ``name`` in front, so that several
    plots on one page do not share them; size is left to the page.

    Raises:
        InputError: the text is no SVG.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputError(f"{source} is no SVG: {error}") from error
    if root.tag != f"{SVG}svg":
        raise InputError(f"{source} is no SVG; it begins with <{root.tag}>")
    box = root.get("viewBox", "0 0 100 100")
    inside = "".join(_markup(child, re.sub(r"\W", "-", name)) for child in root)
    start = f'<svg viewBox="{escape(box)}" role="img" aria-label="{escape(label)}">'
    return Markup(f"{start}{inside}</svg>")


def _markup(element: ElementTree.Element, name: str) -> str:
    tag = str(element.tag).removeprefix(SVG)
    if tag not in SHAPES:
        return ""
    attributes = []
    for key, value in element.attrib.items():
        short = key.removeprefix(XLINK)
        if ATTRIBUTES.fullmatch(short):
            kept = _local(short, value, name)
            attributes += [f' {short}="{escape(kept)}"'] if kept is not None else []
    inside = "".join(_markup(child, name) for child in element)
    return f"<{tag}{''.join(attributes)}>{inside}</{tag}>"


def _local(attribute: str, value: str, name: str) -> str | None:
    """The value with its references made local to this plot; None if it refers to anything else."""
    if attribute == "id":
        return f"{name}-{value}"
    if attribute == "href":
        return f"#{name}-{value[1:]}" if value.startswith("#") else value if PIXELS.match(value) else None
    local = re.sub(r"url\(\s*['\"]?#([\w.-]+)['\"]?\s*\)", rf"url(#{name}-\1)", value)
    outside = re.sub(r"url\(#[\w.-]+\)", "", local)
    # Path data has line breaks that nobody needs.
    return None if "url(" in outside or "\\" in outside else re.sub(r"\s+", " ", local).strip()
