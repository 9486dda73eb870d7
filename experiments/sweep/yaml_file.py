"""Reading a sweep's YAML file, with the line of every key and value for messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from experiments.sweep.plan import Place, Plan
from traces.errors import InputError

GRID = "grid"


def read_plan(path: str | Path) -> Plan:
    """Read a sweep: settings at the top, the axes that vary under ``grid``.

    Only plain data is read; a tag that would make an object is an error.

    Raises:
        InputError: the file is missing, no YAML, or no plan; the message names the line and the key.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}") from error
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        lines: dict[Place, int] = {}
        if root is not None:
            _find_lines(root, (), lines, file)
        content = loader.construct_document(root) if root is not None else None
    except yaml.YAMLError as error:
        raise InputError(f"{file}{_line_of(error)}: {_problem(error)}") from error
    finally:
        loader.dispose()
    if not isinstance(content, dict):
        raise InputError(f"{file} holds no settings; write lines such as policy: fcfs")
    grid = content.pop(GRID, None) or {}
    if not isinstance(grid, dict):
        raise InputError(f"{file}, line {lines[GRID,]}: grid needs axes, as in policy: [fcfs, sjf]")
    return Plan(content, grid, str(file), lines)


def _find_lines(node: yaml.Node, place: Place, lines: dict[Place, int], file: Path) -> None:
    """Note the line of each key and item; the same key twice, of which YAML would drop one, is an error."""
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[(*place, i)] = item.start_mark.line + 1
            _find_lines(item, (*place, i), lines, file)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner: Place = (*place, key.value if isinstance(key.value, str) else str(key.value))
            line = key.start_mark.line + 1
            if inner in lines:
                raise InputError(f"{file}, line {line}: {key.value} is in line {lines[inner]} already")
            lines[inner] = line
            _find_lines(value, inner, lines, file)


def _line_of(error: Any) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _problem(error: Any) -> str:
    return str(getattr(error, "problem", None) or error).split("\n")[0]
