"""The whole job on the tiny LM: its answer lengths follow from the prompt, so estimates must beat the constant.

Rollout -> signals -> training -> checkpoint -> estimates -> simulation, through the command line, on real
sampled lengths; and predictions are resumable to the same bytes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.cli import main
from predictor import predict as predict_module
from predictor.backbone import load_backbone
from predictor.baselines.simple import Constant, PromptLength, ScenarioMedian
from predictor.checkpoint import LengthPredictor, load_predictor
from predictor.methods import Data
from predictor.predict import predict
from predictor.rows import prompt_ids, scenarios_of
from predictor.train import split_by_prompt
from traces import read_estimates, read_trace, write_trace
from traces.errors import InputError

TINY = Path(__file__).parent / "data" / "tiny_lm"


def estp(*arguments: object) -> int:
    return main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rollout.parquet, the predictors estp/ and egtp/, and estimates.parquet of the test part."""
    folder = tmp_path_factory.mktemp("pipeline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESTP_CACHE", str(folder / "cache"))
        options = ("--device", "cpu", "--dtype", "float32")
        assert estp("rollout", TINY / "prompts.jsonl", folder / "rollout.parquet", "--model", TINY,
                    "--samples", 2, "--max-tokens", 150, "--top-k", 0, "--top-p", 1.0, *options) == 0  # fmt: skip
        for pooling in ("estp", "egtp"):
            assert estp("train", folder / "rollout.parquet", folder / pooling, "--model", TINY,
                        "--pooling", pooling, "--signal-scale", "zscore", "--lambda1", 0.3, "--lambda2", 0.3,
                        *options) == 0  # fmt: skip
        trace = read_trace(folder / "rollout.parquet")
        split = split_by_prompt(prompt_ids(trace), scenarios_of(trace), 0)
        write_trace(trace.take(split.test), folder / "test.parquet")
        assert estp("predict", folder / "test.parquet", folder / "estimates.parquet",
                    "--predictor", folder / "estp", "--predictor", folder / "egtp", "--device", "cpu") == 0  # fmt: skip
    return folder


def test_estimates_beat_what_knows_no_activations(run: Path) -> None:
    trace = read_trace(run / "rollout.parquet")
    split = split_by_prompt(prompt_ids(trace), scenarios_of(trace), 0)
    truth = trace.output_tokens[split.test]
    error = {}
    for method in (Constant(), ScenarioMedian(), PromptLength()):
        mean = method.fit(Data(trace), split, 0)(split.test).mean
        assert mean is not None
        error[method.name] = np.abs(mean - truth).mean()
    test = read_trace(run / "test.parquet")
    for name, estimates in read_estimates(run / "estimates.parquet").items():
        error[name] = np.abs(estimates.mean[estimates.align(test)] - truth).mean()
    for name in ("estp", "egtp"):
        assert error[name] < 0.7 * error["constant"]
        assert error[name] < 0.85 * min(error["scenario"], error["prompt-length"])


def test_estimates_are_distributions(run: Path) -> None:
    for estimates in read_estimates(run / "estimates.parquet").values():
        assert estimates.probabilities is not None
        assert estimates.bin_edges is not None
        centres = (estimates.bin_edges[1:] + estimates.bin_edges[:-1]) / 2
        assert estimates.mean == pytest.approx(estimates.probabilities @ centres)
        assert (estimates.quantiles[0.1] <= estimates.quantiles[0.9]).all()
        assert estimates.metadata["backbone"] == str(TINY)
        assert len(estimates.metadata["head_sha256"]) == 64


def test_intervals_are_conformal_and_hold_on_new_prompts(run: Path) -> None:
    test = read_trace(run / "test.parquet")
    for name, estimates in read_estimates(run / "estimates.parquet").items():
        correction = load_predictor(run / name).conformal
        assert correction is not None
        assert estimates.metadata["conformal"] == correction.to_json()
        truth = test.output_tokens[np.argsort(estimates.align(test))]
        inside = (estimates.quantiles[0.05] <= truth) & (truth <= estimates.quantiles[0.95])
        assert inside.mean() > 0.8


def test_the_comparison_uses_them(run: Path) -> None:
    out = run / "comparison"
    assert estp("compare", run / "test.parquet", "--estimates", run / "estimates.parquet",
                *(x for p in ("fcfs", "sjf", "egtp", "estp") for x in ("--policy", p)), "--arrivals", "burst",
                "--batch-size", 8, "--latency", "affine,a=0.01,b=1e-4,c=1e-3,d=0", "--out", out) == 0  # fmt: skip
    runs = json.loads((out / "summary.json").read_text())["runs"]
    padding = {r["policy"]: np.mean([x["metrics"]["padding_ratio"] for x in runs if x["policy"] == r["policy"]])
               for r in runs}  # fmt: skip
    assert padding["sjf"] < padding["estp"] < padding["fcfs"]
    assert padding["sjf"] < padding["egtp"] < padding["fcfs"]
    assert pl.read_parquet(out / "records.parquet").height > 0


def test_predicting_resumes_to_the_same_bytes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_module, "CHUNK_PROMPTS", 16)
    trace = read_trace(run / "test.parquet")
    heads = [load_predictor(run / "estp"), load_predictor(run / "egtp")]
    backbone = load_backbone(str(TINY), "cpu", "float32")
    predict(trace, heads, backbone, tmp_path / "whole.parquet", progress=False)
    calls, save = 0, predict_module.save_file

    def dies(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        save(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(predict_module, "save_file", dies)
    with pytest.raises(KeyboardInterrupt):
        predict(trace, heads, backbone, tmp_path / "killed.parquet", progress=False)
    assert len(list((tmp_path / "killed.parquet.parts").glob("*.safetensors"))) == 2
    predict(trace, heads, backbone, tmp_path / "killed.parquet", progress=False)
    assert (tmp_path / "killed.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not (tmp_path / "killed.parquet.parts").exists()


def test_a_checkpoint_is_safetensors_and_json(run: Path) -> None:
    names = sorted(p.name for p in (run / "estp").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    card = (run / "estp" / "README.md").read_text()
    assert "| MAE, tokens |" in card
    assert "rows trained on" in card
    loaded = load_predictor(run / "estp")
    assert loaded.pooling.signal_scale == "zscore"
    assert isinstance(loaded, LengthPredictor)


def test_activations_of_another_model_are_refused(run: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TINY)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.01)
    model.save_pretrained(tmp_path / "other")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / file, tmp_path / "other")
    other = load_backbone(str(tmp_path / "other"), "cpu", "float32")
    with pytest.raises(InputError, match="was trained on the activations of"):
        load_predictor(run / "estp").check_backbone(other)
    half = load_backbone(str(TINY), "cpu", "bfloat16")
    with pytest.raises(InputError, match=r"runs in bfloat16; use --dtype float32"):
        load_predictor(run / "estp").check_backbone(half)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "nothing.parquet", "OUT"), "nothing.parquet"),
        (("train", "ROLLOUT", "OUT", "--model", "./no-such-model"), "no model folder './no-such-model'"),
        (
            ("train", "ROLLOUT", "OUT", "--model", "nobody/no-such-model"),
            "cannot load model 'nobody/no-such-model'",
        ),
        (("train", "ROLLOUT", "ESTP"), "exists already"),
        (("predict", "ROLLOUT", "OUT", "--predictor", "no-such-folder/x/y"), "cannot load a predictor"),
        (("predict", "TRACE", "OUT", "--predictor", "ESTP"), "no column 'prompt'"),
        (("rollout", "nothing.jsonl", "OUT"), "cannot read the prompts file nothing.jsonl"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n")
    places = {"ROLLOUT": run / "rollout.parquet", "OUT": tmp_path / "out", "ESTP": run / "estp",
              "TRACE": tmp_path / "t.csv"}  # fmt: skip
    assert estp(*(places.get(a, a) for a in arguments)) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
