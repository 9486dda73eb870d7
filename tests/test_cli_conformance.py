"""`estp conformance` says 0 for decisions that vLLM recorded, 1 for a changed one, 2 for a file it cannot read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from experiments.cli import main


def test_recorded_steps(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reference / "vllm_steps"
    assert main(["conformance", str(folder / "steps.json.gz"), str(folder / "prefix.json.gz")]) == 0
    assert "identical 48 of 48" in capsys.readouterr().out


def test_a_changed_decision_is_found(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case, *_) = json.loads(gzip.decompress((reference / "vllm_steps/steps.json.gz").read_bytes()))
    step = case["steps"][3]
    first = next(iter(step["tokens"]))
    step["tokens"][first] += 1
    (tmp_path / "changed.json").write_text(json.dumps([case]))
    assert main(["conformance", str(tmp_path / "changed.json")]) == 1
    out = capsys.readouterr().out
    assert f"step {step['step']}, tokens" in out
    assert "identical 0 of 1" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        ("{", "is not JSON"),
        ("[]", "holds no list of cases"),
        ("[{}]", "has no 'limits'"),
    ],
)
def test_bad_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    path = tmp_path / "steps.json"
    if content is not None:
        path.write_text(content)
    assert main(["conformance", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_no_file_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance"]) == 2
    assert "give one file of recorded steps at least" in capsys.readouterr().err
