"""`estp evaluate` reads the public text formats, resumes to the same bytes, and tells a user what to mend.

Only methods without an LLM run here, so what they must say is known: the constant is the training median, and a
scenario that was left out gets the median of the others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.cli import main
from predictor.backbone import load_backbone
from predictor.baselines.pooled import GRIDS, Pooled
from predictor.baselines.simple import Constant
from predictor.cost import measure_cost
from predictor.evaluate import random_splits
from predictor.features import read_signals
from predictor.methods import Data
from predictor.train import TrainSettings, split_by_prompt
from traces import Trace, write_trace

TINY = Path(__file__).parent / "data" / "tiny_lm"
SIMPLE = ("constant", "scenario", "prompt-length")


def estp(*arguments: object) -> int:
    return main(["evaluate", *map(str, arguments)])


@pytest.fixture(scope="module")
def trace() -> Trace:
    rng, n = np.random.default_rng(0), 120
    scenario = np.array(["short", "long"])[np.arange(n) % 2]
    return Trace(
        request_id=np.arange(n),
        arrival_s=np.zeros(n),
        prompt_tokens=rng.integers(2, 40, n),
        output_tokens=np.where(scenario == "short", 10, 200) + rng.integers(0, 20, n),
        prompt=[f"prompt {k}" for k in range(n)],
        scenario=scenario,
    )


@pytest.fixture(scope="module")
def stored(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("evaluation")
    write_trace(trace, folder / "trace.parquet")
    assert run(folder) == 0
    return folder, json.loads((folder / "out.json").read_text())


def run(folder: Path) -> int:
    return estp(folder / "trace.parquet", "--methods", *SIMPLE, "--seeds", 2, "--out", folder / "out.json",
                "--leave-one-scenario-out", "--learning-curve", 0.1, 0.5)  # fmt: skip


def test_the_constant_is_the_training_median(stored: tuple[Path, dict[str, Any]], trace: Trace) -> None:
    expected = []
    for seed in (0, 1):
        split = split_by_prompt(np.array(trace.prompt), np.array(trace.scenario), seed)
        median = np.median(trace.output_tokens[split.train])
        expected.append(np.abs(trace.output_tokens[split.test] - median).mean())
    rows = [r for r in stored[1]["per_seed"] if r["method"] == "constant" and r["scenario"] == "all"]
    assert [r["mae"] for r in rows] == pytest.approx(expected)
    table = [r for r in stored[1]["table"] if r["method"] == "constant" and r["scenario"] == "all"]
    assert table[0]["mae"] == pytest.approx(np.mean(expected))


def test_a_scenario_left_out_is_guessed_by_the_others(stored: tuple[Path, dict[str, Any]]) -> None:
    found = stored[1]["leave_one_scenario_out"]
    assert list(found) == [f"{s}, {how}" for s in ("long", "short") for how in ("trained on all", "left out")]
    mae = {
        name: row["mae"]
        for name, part in found.items()
        for row in part["table"]
        if row["method"] == "scenario"
    }
    for name in ("long", "short"):
        assert mae[f"{name}, left out"] == pytest.approx(190, abs=15)  # the two are 190 tokens apart
        (seen,) = [r for r in stored[1]["table"] if r["method"] == "scenario" and r["scenario"] == name]
        assert mae[f"{name}, trained on all"] == pytest.approx(seen["mae"])
        assert seen["mae"] < 10


def test_the_learning_curve_ends_with_all_prompts(stored: tuple[Path, dict[str, Any]]) -> None:
    curve = stored[1]["learning_curve"]
    assert list(curve) == ["10%", "50%", "100%"]
    assert curve["100%"]["table"] == stored[1]["table"]
    assert curve["10%"]["table"] != stored[1]["table"]


def test_a_second_run_gives_the_same_bytes_and_fits_nothing(
    stored: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = stored
    before = (folder / "out.json").read_bytes()
    cells = {file.name: file.stat().st_mtime_ns for file in (folder / "out.json.cells").iterdir()}
    # Two seeds of: all rows, two scenarios left out, two shares.
    assert len(cells) == len(SIMPLE) * 2 * (1 + 2 + 2)
    monkeypatch.setattr(Constant, "fit", None)
    assert run(folder) == 0
    assert (folder / "out.json").read_bytes() == before
    assert {f.name: f.stat().st_mtime_ns for f in (folder / "out.json.cells").iterdir()} == cells


def test_another_column_can_be_the_scenario(
    trace: Trace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = np.array(["x", "y", "z"])[np.arange(len(trace)) // 2 % 3]
    write_trace(trace.replace(extra={"kind": kinds}), tmp_path / "t.parquet")
    assert estp(tmp_path / "t.parquet", "--methods", "constant", "--seeds", 1, "--scenario", "kind") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in ("all", "x", "y", "z", "short")] == ["all", "x", "y", "z"]
    assert estp(tmp_path / "t.parquet", "--methods", "constant", "--scenario", "sort") == 2
    assert "no column 'sort'" in capsys.readouterr().err


def test_a_folder_of_forelen_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("longseq", "reasoning"):
        rows = [f'"{split} question {k}","an answer",{20 + k}' for k in range(20)]
        text = "\n".join(["user_prompt_content,response_content,target_length", *rows]) + "\n"
        (tmp_path / f"{split}.csv").write_text(text)
    assert estp(tmp_path, "--methods", "constant", "prompt-length", "--tokenizer", TINY, "--seeds", 1) == 0
    out = capsys.readouterr().out
    assert "40 answers to 40 prompts" in out
    assert {"longseq", "reasoning"} <= set(out.splitlines())


def test_alpaca_eval_outputs(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = reference / "data/2_text/alpaca_eval/Meta-Llama-3.1-8B-Instruct-Turbo/model_outputs.json"
    assert estp(file, "--methods", "constant", "scenario", "--tokenizer", TINY, "--seeds", 2) == 0
    out = capsys.readouterr().out
    assert "805 answers to 805 prompts" in out
    assert {"helpful_base", "koala", "oasst", "selfinstruct", "vicuna"} <= set(out.splitlines())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "espt"], "no method 'espt'; the methods are constant, "),
        (["--seeds", 0], "--seeds is 0; at least 1"),
        (["--methods", "constant", "--learning-curve", 2], r"lies in (0, 1], not 2.0"),
        (["--methods", "ssjf-reg", "--encoder", "/nowhere/bert"], "cannot load the encoder '/nowhere/bert'"),
    ],
)
def test_mistakes_are_one_sentence(
    options: list[object],
    message: str,
    stored: tuple[Path, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert estp(stored[0] / "trace.parquet", *options) == 2
    assert message in capsys.readouterr().err


def test_cost_is_measured_for_the_llm_and_each_method(tmp_path: Path) -> None:
    backbone = load_backbone(str(TINY), "cpu", "float32")
    texts = [
        f"{name} has {count} ." for name in ("ann", "tom", "leo", "ben") for count in ("one", "two", "four")
    ]
    n = len(texts)
    trace = Trace(
        request_id=np.arange(n),
        arrival_s=np.zeros(n),
        prompt_tokens=np.full(n, 4),
        output_tokens=10 * np.arange(1, n + 1),
        prompt=texts,
    )
    data = Data(trace, read_signals(backbone, texts, folder=tmp_path, progress=False))
    methods = [Constant(), Pooled("estp", GRIDS["estp"][:1], TrainSettings(epochs=1))]
    rows = {r["what"]: r for r in measure_cost(backbone, data, methods, random_splits(data, (0,))[0], 2)}
    assert list(rows) == ["prefill", "reading signals", "reading layers", "constant", "estp"]
    assert rows["estp"]["ms"] > rows["constant"]["ms"] > 0
    assert rows["estp"]["mb"] > rows["constant"]["mb"] == 0
    # The head's hidden layer alone is d / 2 float32 values; the prefill of a prompt cannot take less than its states.
    assert rows["estp"]["mb"] * 1e6 > 4 * backbone.hidden_size / 2
    assert rows["prefill"]["mb"] * 1e6 > 4 * backbone.hidden_size * len(backbone.encode(texts[0]))
