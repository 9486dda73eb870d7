"""The report of stress questions: each with its sentence, plot and data."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.labels import labels
from experiments.report import svg
from experiments.report.page import Page, Picture, Section, Table
from experiments.stats import Interval
from experiments.table import cell
from traces.errors import InputError

KEYS = ("question", "sentence", "command", "settings", "data")


def questions(folder: Path) -> dict[str, dict[str, Any]]:
    """Name -> content of each question's JSON file in the folder.

    Raises:
        InputError: a file is not readable.
    """
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not readable as JSON: {error}") from error
        if isinstance(content, dict) and all(key in content for key in KEYS):
            found[path.stem] = content
    return found


def page_of(folder: Path) -> Page:
    """The page of all questions in a folder.

    Raises:
        InputError: a file is not readable.
    """
    asked = questions(folder)
    return Page(
        title="Stress questions",
        about=f"{len(asked)} question{'s' if len(asked) > 1 else ''}, simulated by estp stress",
        findings=[content["sentence"] for content in asked.values()],
        caveats=["± is a 95% interval over replications that all policies share."],
        sections=[
            *(_section(folder, name, content) for name, content in asked.items()),
            Section("Settings", tables=_settings(asked)),
        ],
        commands=[f"{content['command']} --out {shlex.quote(str(folder))}" for content in asked.values()],
    )


def _section(folder: Path, name: str, content: Mapping[str, Any]) -> Section:
    plot = folder / f"{name}.svg"
    pictures = [Picture("", svg.from_file(plot, content["question"]))] if plot.is_file() else []
    panels: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in content["data"]:
        if row["mean"] is not None:
            panels.setdefault((row["measure"].replace("\n", " "), row["along"]), []).append(row)
    tables = [_table(*panel, rows) for panel, rows in panels.items()]
    return Section(content["question"], [content["sentence"]], pictures, tables)


def _table(measure: str, along: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """What a panel shows: a policy a column, or a row each where they share few places on the x axis."""
    cells = {(row["x"], row["policy"]): cell(_interval(row)) for row in rows}
    places = list(dict.fromkeys(x for x, _ in cells))
    called = labels(list(dict.fromkeys(policy for _, policy in cells)))
    if len(places) > 1 and 2 * len(cells) > len(places) * len(called):
        body = [[_place(x), *(cells.get((x, policy), "") for policy in called)] for x in places]
        return Table(measure, [along, *called.values()], body)
    if not along:
        return Table(
            measure, ["policy", measure], [[called[policy], text] for (_, policy), text in cells.items()]
        )
    body = [[called[policy], _place(x), text] for (x, policy), text in cells.items()]
    return Table(measure, ["policy", along, measure], body)


def _interval(row: Mapping[str, Any]) -> Interval:
    half_width = math.nan if row["half_width"] is None else row["half_width"]
    return Interval(row["mean"], half_width, "replications", 0)


def _place(x: float | None) -> str:
    """On the x axis; a level holds anywhere on it."""
    return "any" if x is None else _text(x)


def _settings(asked: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """A table for all questions that were asked with the same settings."""
    groups: list[tuple[list[str], Mapping[str, Any]]] = []
    for name, content in asked.items():
        alike = next((names for names, settings in groups if settings == content["settings"]), None)
        if alike is None:
            groups.append(([name], content["settings"]))
        else:
            alike.append(name)
    return [
        Table(
            "Of every question" if len(groups) == 1 else f"Of {', '.join(names)}",
            ["setting", "value"],
            _rows(settings),
            2,
            ["What is not named here was left to the question or to the server's defaults."],
        )
        for names, settings in groups
    ]


def _rows(settings: Mapping[str, Any]) -> list[list[str]]:
    """What was set, a row each; options of the server stand beside the others."""
    rows: list[list[str]] = []
    for key, value in settings.items():
        if key == "inputs":
            rows += [[one["path"], f"SHA-256 {one['sha256'] or 'unknown'}"] for one in value]
        elif isinstance(value, Mapping):
            rows += _rows(value)
        elif isinstance(value, bool):
            rows.append([key, "yes" if value else "no"])
        elif isinstance(value, list):
            rows += [[key, ", ".join(map(str, value))]] if value else []
        elif value is not None:
            rows.append([key, _text(value)])
    return rows


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
