"""A short run of a real vLLM engine (0.32, CPU, SmolLM2-135M, two policies) gives the documented agreement.

Truth: the engine's own steps and times, recorded by experiments/vllm/runner.py; the latency file was
calibrated on other runs of the same engine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cli import main
from experiments.vllm.fidelity import compare
from experiments.vllm.recording import read_recording
from sim.latency import load_latency

FOLDER = Path(__file__).parent / "data" / "vllm_run"


@pytest.mark.parametrize(
    ("policy", "steps", "use", "error"),
    [
        ("fcfs", 873, "affine", -0.128),
        ("estp", 894, "affine", 0.046),
        ("fcfs", 873, "table", -0.189),
        ("estp", 894, "table", -0.068),
    ],
)
def test_the_documented_error(policy: str, steps: int, use: str, error: float) -> None:
    latency = load_latency(f"file={FOLDER / 'latency.json'},use={use}")
    found = compare([read_recording(FOLDER / f"{policy}-0.json.gz")], latency)
    # Told after which step each request came, our scheduler takes every decision of vLLM's.
    assert found.agreement.steps == found.agreement.replayed == steps
    mean_jct = next(figure for figure in found.figures if figure.name == "mean JCT s")
    assert mean_jct.error == pytest.approx(error, abs=0.001)


def test_the_command_needs_no_vllm_for_a_recorded_run(capsys: pytest.CaptureFixture[str]) -> None:
    latency = f"file={FOLDER / 'latency.json'}"
    assert main(["validate", "--engine", "vllm", "--records", str(FOLDER), "--latency", latency]) == 0
    out = capsys.readouterr().out
    assert "873 of 873 are decided alike" in out
    assert "894 of 894 are decided alike" in out
