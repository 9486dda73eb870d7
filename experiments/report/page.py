"""What a report shows, and its one HTML file: no script, no network, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from experiments.style import DARK

TEMPLATES = Path(__file__).parent
# A table longer than this is cut: the files beside the report hold the whole.
MOST_ROWS = 200


@dataclass(frozen=True)
class Table:
    """Rows of texts under a head.

    Attributes:
        caption: what it shows.
        head: column names.
        rows: of as many texts; one that ends in ``*`` is set apart as the best.
        texts: how many columns at the left are texts and not numbers.
        notes: lines under it.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    notes: Sequence[str] = ()

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        """The rows that the page has."""
        return self.rows[:MOST_ROWS]


@dataclass(frozen=True)
class Picture:
    """A plot.

    Attributes:
        caption: what it shows.
        markup: from `experiments.report.svg`.
    """

    caption: str
    markup: Markup


@dataclass(frozen=True)
class Section:
    """A part of the page under its own heading."""

    title: str
    paragraphs: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    code: str = ""


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title: of the page.
        about: one line under it.
        findings: what this means, as sentences.
        caveats: what to keep in mind, as sentences.
        sections: the rest, in order.
        commands: that make the results again.
    """

    title: str
    about: str
    findings: Sequence[str]
    caveats: Sequence[str]
    sections: Sequence[Section]
    commands: Sequence[str]


def render(page: Page) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Matplotlib writes colours in small letters.
    dark = {light.lower(): dark for light, dark in DARK.items()}
    return environment.get_template("page.html").render(page=page, dark_colours=dark)
