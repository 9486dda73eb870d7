"""Writing a folder's report."""

from __future__ import annotations

from pathlib import Path

from experiments.report import of_compare, of_stress, of_sweep
from experiments.report.page import Page, render
from experiments.report_files import SUMMARY
from experiments.sweep import run
from traces.errors import InputError
from traces.files import atomic_path

REPORT = "report.html"


def write_report(folder: str | Path, out: str | Path | None = None) -> Path:
    """Write one self-contained page about a folder of results.

    Args:
        folder: that `estp compare --out`, `estp sweep` or `estp stress --out` wrote.
        out: the page; ``report.html`` in the folder if None.

    Returns:
        The path of the page. The same folder gives the same bytes.

    Raises:
        InputError: the folder has no results, or they cannot be read.
    """
    place = Path(folder)
    path = place / REPORT if out is None else Path(out)
    page = read_page(place)
    with atomic_path(path) as temporary:
        temporary.write_text(render(page), encoding="utf-8")
    return path


def read_page(folder: Path) -> Page:
    """What the report of a folder shows. Raises InputError as `write_report` does."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if (folder / SUMMARY).is_file():
        return of_compare.page_of(folder)
    if (folder / run.SUMMARY).is_file():
        return of_sweep.page_of(folder)
    if of_stress.questions(folder):
        return of_stress.page_of(folder)
    raise InputError(
        f"{folder} has no results; name a folder that estp compare, sweep or stress wrote with --out"
    )
