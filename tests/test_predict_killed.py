"""`estp predict`, killed with SIGKILL at any moment, goes on where it stopped and writes the same bytes.

A real process is killed while it works; the twin is a run that nobody disturbed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.cli import main  # noqa: E402
from predictor.backbone import load_backbone  # noqa: E402
from predictor.checkpoint import LengthPredictor  # noqa: E402
from predictor.features import fingerprint  # noqa: E402
from predictor.pooling import PoolingSettings  # noqa: E402
from predictor.predict import CHUNK_PROMPTS  # noqa: E402

ROOT = Path(__file__).parents[1]
TINY = ROOT / "tests" / "data" / "tiny_lm"
CHUNKS = 3


@pytest.fixture
def job(tmp_path: Path) -> list[str]:
    """The command without its output file, for prompts that fill several chunks."""
    backbone = load_backbone(str(TINY), "cpu", "float32")
    torch.manual_seed(0)
    LengthPredictor("estp", str(TINY), fingerprint(backbone), "float32",
                    PoolingSettings("estp", "zscore", 0.3, 0.7).to_json(), [1.0, 10.0, 40.0, 90.0],
                    backbone.hidden_size).write(tmp_path / "p")  # fmt: skip
    names = ("ann", "has", "four", "and", "gives", "two", ".")
    rows = [
        {
            "arrival_s": i,
            "prompt_tokens": 3,
            "output_tokens": 1,
            "prompt": f"{names[i % 7]} {'x ' * (i % 8)}{i}",
        }
        for i in range(CHUNKS * CHUNK_PROMPTS - 10)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["predict", str(tmp_path / "trace.jsonl"), "--predictor", str(tmp_path / "p"), "--device", "cpu"]


def test_a_killed_run_goes_on_to_the_same_bytes(
    job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, killed = tmp_path / "whole.parquet", tmp_path / "killed.parquet"
    parts = tmp_path / "killed.parquet.parts"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.cli", job[0], job[1], str(killed), *job[2:]],
        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while len(list(parts.glob("*.safetensors"))) < 1:
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = len(list(parts.glob("*.safetensors")))
    assert 1 <= done < CHUNKS
    assert not killed.exists()
    # What a kill in the middle of writing leaves behind must not be taken for a chunk.
    (parts / f".{CHUNKS - 1:05d}.safetensors.x.part").write_bytes(b"half")
    assert main([job[0], job[1], str(killed), *job[2:]]) == 0
    assert f"resuming: {done} of {CHUNKS} chunks" in capsys.readouterr().err
    assert main([job[0], job[1], str(whole), *job[2:]]) == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert not parts.exists()


def test_the_chunks_of_another_job_are_not_taken(
    job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "out.parquet.parts"
    parts.mkdir()
    for content, sentence in (
        (json.dumps({"prompts_sha256": "0" * 64, "predictors": {}}), "another job (prompts_sha256 is 000"),
        ("[]", "job.json is damaged (it must hold named values, not [])"),
        ("{", "job.json is damaged"),
    ):
        (parts / "job.json").write_text(content)
        assert main([job[0], job[1], str(tmp_path / "out.parquet"), *job[2:]]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert "to start anew" in error


def test_a_damaged_chunk_is_named(job: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "predictor.predict.write_estimates", interrupted
        )  # all chunks are there, the table is not
        assert main([job[0], job[1], str(out), *job[2:]]) == 130
    chunk = tmp_path / "out.parquet.parts" / "00001.safetensors"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    assert main([job[0], job[1], str(out), *job[2:]]) == 2
    assert "00001.safetensors is damaged" in capsys.readouterr().err
    chunk.unlink()
    job_file = chunk.with_name("job.json")
    told = job_file.read_bytes()
    job_file.unlink()
    assert main([job[0], job[1], str(out), *job[2:]]) == 2
    assert "holds finished chunks of an unknown job" in capsys.readouterr().err
    job_file.write_bytes(told)
    assert main([job[0], job[1], str(out), *job[2:]]) == 0
    assert out.exists()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
