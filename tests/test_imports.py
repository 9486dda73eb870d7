"""Packages import only what the layout allows, and sim and traces load neither torch nor matplotlib."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "sim": {"sim", "traces"},
    "traces": {"traces"},
    "predictor": {"predictor", "traces"},
    "experiments": {"experiments", "predictor", "sim", "traces"},
}
HEAVY = {"torch", "transformers", "matplotlib", "pandas"}


def imported(path: Path) -> set[str]:
    """Top-level names of all imports in a file, those inside functions included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_they_may(package):
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        allowed = MAY_IMPORT[package]
        assert imported(path) & MAY_IMPORT.keys() <= allowed, path
        if package in ("sim", "traces"):
            assert not imported(path) & HEAVY, path


@pytest.mark.parametrize("package", ["sim", "traces"])
def test_importing_loads_nothing_heavy(package):
    code = f"""
import importlib, pkgutil, sys
import {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    importlib.import_module(module.name)
loaded = sorted({HEAVY!r} & set(sys.modules))
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_packages_are_ours():
    import sim
    import traces

    assert {Path(package.__file__).parents[1] for package in (sim, traces)} == {ROOT}
