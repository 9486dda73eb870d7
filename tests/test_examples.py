"""The examples are short, run in seconds on what the package ships, and say what their first lines promise.

Truth: the policies' known order (the oracle before FCFS), and counts of the embedded answers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sweeps import ROOT, environment

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_short_and_begin_with_what_they_do(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < 40
    assert lines[0].startswith('"""')


def test_replay_a_trace(tmp_path: Path) -> None:
    first, static, continuous = run("replay_a_trace.py").splitlines()
    assert first.startswith("500 requests in ")
    # Continuous batching pads nothing and lets nobody wait for a batch to end.
    assert static.startswith("static")
    assert continuous.endswith("padding 0.00")
    jct = [float(re.findall(r"mean JCT +([\d.]+)", line)[0]) for line in (static, continuous)]
    assert jct[1] < jct[0]
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1.6,10,7\n")
    assert run("replay_a_trace.py", str(tmp_path / "t.csv")).startswith(
        "2 requests in 2 s, 12 output tokens\n"
    )


def test_compare_predictors() -> None:
    lines = run("compare_predictors.py").splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["fcfs", "sjf", "prompt-length", "scenario"]
    jct = {line.split()[0]: float(line.split()[1]) for line in lines[2:6]}
    assert jct["sjf"] < min(jct["prompt-length"], jct["scenario"]) < jct["fcfs"]


def test_my_policy(tmp_path: Path) -> None:
    from experiments.cli import main

    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1.6,10,7\n")
    mine = f"{ROOT / 'examples' / 'my_policy.py'}:Mine,weight=0.2"
    # It reads the estimates of estp, and says so where there are none.
    assert main(["compare", str(tmp_path / "t.csv"), "--policy", mine]) == 2
