"""docs/python.md has a call for every command, and its calls are right.

Truth: the commands of the command line; the examples are run here, and those that need a model or the network
are held against the signatures of what they call.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from experiments.cli import COMMANDS
from experiments.commands import trace as trace_command

pytest.importorskip("torch")
PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
RUN = (0, 2)


def test_every_command_is_there() -> None:
    named = set(re.findall(r"`(?:estp )?(?:trace )?([a-z-]+)`", PAGE))
    actions = {
        re.findall(r"name='([a-z]+)'", repr(get_args(action)))[0] for action in get_args(trace_command.Action)
    }
    assert (set(COMMANDS) - {"trace"}) | actions <= named


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for i in RUN:
        exec(compile(BLOCKS[i], f"block {i}", "exec"), names)
    assert len(names["trace"]) == 300
    assert len(names["both"]) == 500
    assert names["done"].table["policy"].to_list() == ["fcfs", "fcfs", "sjf", "sjf"]
    assert (tmp_path / "out" / "loads" / "report.html").is_file()


def test_the_calls_fit_their_signatures() -> None:
    known: dict[str, Any] = {}
    checked = 0
    for block in BLOCKS:
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                for alias in node.names:
                    if not hasattr(module, alias.name):
                        importlib.import_module(f"{node.module}.{alias.name}")
                    known[alias.asname or alias.name] = getattr(module, alias.name)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = called_by(node.func, known)
            if called is None or any(isinstance(one, ast.Starred) for one in node.args):
                continue
            keywords = {word.arg: None for word in node.keywords if word.arg is not None}
            inspect.signature(called).bind(*node.args, **keywords)
            checked += 1
    assert checked > 30


def called_by(func: ast.expr, known: dict[str, Any]) -> Any:
    """What is called, where it is an imported name or an attribute of one."""
    if isinstance(func, ast.Name):
        return known.get(func.id)
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in known:
        return getattr(known[func.value.id], func.attr)
    return None
