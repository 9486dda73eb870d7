"""Checkpoints and backbones load from safetensors only, and what does not belong together is refused by name.

A pickle that would leave a mark when it is read shows that nothing was unpickled.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.cli import main  # noqa: E402
from predictor.backbone import load_backbone  # noqa: E402
from predictor.baselines.encoder import load_encoder  # noqa: E402
from predictor.checkpoint import LengthPredictor, as_estimates, differences, load_predictor  # noqa: E402
from predictor.embedded import PREDICTORS  # noqa: E402
from predictor.pooling import PoolingSettings  # noqa: E402
from traces import Estimates, read_estimates, write_estimates  # noqa: E402
from traces.errors import InputError  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"
SETTINGS: dict[str, Any] = {
    "predictor": "estp",
    "backbone": "some-llm",
    "backbone_fingerprint": "0123456789abcdef",
    "dtype": "float32",
    "pooling": PoolingSettings("estp", "zscore", 0.3, 0.7).to_json(),
    "edges": [1.0, 10.0, 50.0],
    "features": 8,
}


def predictor(seed: int = 0, **changes: Any) -> LengthPredictor:
    torch.manual_seed(seed)
    return LengthPredictor(**{**SETTINGS, **changes})


def estimates_by(one: LengthPredictor) -> Estimates:
    return as_estimates(one, np.arange(2), np.array([[0.5, 0.5], [0.1, 0.9]]))


class Marks:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = predictor()
    one.write(tmp_path / "p")
    again = load_predictor(tmp_path / "p")
    features = torch.randn(3, 8)
    assert torch.equal(one(features), again(features))
    assert again.identity() == one.identity()
    assert capsys.readouterr().out == ""


def test_its_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        predictor().write(tmp_path / "p")
    finally:
        os.umask(mask)
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in (tmp_path / "p").iterdir()}
    assert modes == {"README.md": 0o644, "config.json": 0o644, "model.safetensors": 0o644}


@pytest.mark.parametrize("name", ["pytorch_model.bin", "head.pt", "extra.pkl"])
def test_a_folder_with_a_pickle_is_refused_unread(tmp_path: Path, name: str) -> None:
    predictor().write(tmp_path / "p")
    (tmp_path / "p" / name).write_bytes(pickle.dumps(Marks(tmp_path / "unpickled")))
    for load in (load_predictor, LengthPredictor.from_pretrained):
        with pytest.raises(InputError, match=f"holds pickled weights \\({name}\\)"):
            load(tmp_path / "p")
    (tmp_path / "p" / "model.safetensors").unlink()
    with pytest.raises(InputError, match="holds pickled weights"):
        load_predictor(tmp_path / "p")
    assert not (tmp_path / "unpickled").exists()


def test_a_broken_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    predictor().write(tmp_path / "p")
    weights = (tmp_path / "p" / "model.safetensors").read_bytes()
    (tmp_path / "p" / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(InputError, match="cannot load a predictor from"):
        load_predictor(tmp_path / "p")
    (tmp_path / "p" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"it has no model\.safetensors"):
        load_predictor(tmp_path / "p")
    predictor(features=6).write(tmp_path / "q")
    shutil.copy(tmp_path / "q" / "model.safetensors", tmp_path / "p")
    with pytest.raises(InputError, match="cannot load a predictor"):
        load_predictor(tmp_path / "p")


def test_a_model_with_pickled_weights_only_is_refused_unread(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    (tmp_path / "m" / "pytorch_model.bin").write_bytes(pickle.dumps(Marks(tmp_path / "unpickled")))
    with pytest.raises(InputError, match="Only safetensors are loaded"):
        load_backbone(str(tmp_path / "m"), "cpu")
    with pytest.raises(InputError, match=r"cannot load the encoder .* model\.safetensors"):
        load_encoder(str(tmp_path / "m"))
    assert not (tmp_path / "unpickled").exists()


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ("{", "is not JSON"),
        ("[]", "holds no settings, but list"),
        (
            {"edges": [1.0, 10.0, 20.0, 50.0]},
            r"head.layers.4.bias is \[2\] .* but the settings ask for \[3\]",
        ),
        ({"edges": [5.0, 1.0]}, "at least three rising edges"),
        ({"features": 10}, "the settings ask for"),
        ({"pooling": {**PoolingSettings().to_json(), "pooling": "zzz"}}, "pooling 'zzz' is not one of"),
        ({"pooling": PoolingSettings().to_json()}, "pools by a detrended signal, but no trend is given"),
        ({"trend": {"starts": [0]}}, "trend has no 'values'"),
        ({"dtype": None}, "missing 1 required positional argument: 'dtype'"),
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused(
    changes: str | dict[str, Any], phrase: str, tmp_path: Path
) -> None:
    predictor().write(tmp_path / "p")
    config = tmp_path / "p" / "config.json"
    if isinstance(changes, dict):
        given = {**json.loads(config.read_text()), **changes}
        changes = json.dumps({key: value for key, value in given.items() if value is not None})
    config.write_text(changes)
    with pytest.raises(InputError, match=phrase):
        load_predictor(tmp_path / "p")


def test_weights_cut_short_are_refused(tmp_path: Path) -> None:
    predictor().write(tmp_path / "p")
    weights = tmp_path / "p" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(InputError, match="cannot load a predictor"):
        load_predictor(tmp_path / "p")


@pytest.fixture
def own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder with Python code of its own, which makes the file `ran` beside it when it runs."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "m"
    shutil.copytree(TINY, folder)
    config = json.loads((TINY / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnLM"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(
        "from pathlib import Path\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        f"Path({str(tmp_path / 'ran')!r}).touch()\n"
        "class Own(LlamaConfig):\n    model_type = 'own'\n"
        "class OwnLM(LlamaForCausalLM):\n    config_class = Own\n"
    )
    return folder


# What each command says once it has loaded the model: enough to know that it did, and no long work.
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["predict", "t.jsonl", "out.parquet", "--predictor", "p"], 2, "was trained on the activations of"),
        (["train", "t.jsonl", "out", "--model", "m"], 2, "1 prompts are too few to split"),
        (["rollout", "t.jsonl", "out.parquet", "--model", "m", "--max-tokens", "2"], 0, "wrote 1 answers"),
        (["evaluate", "t.jsonl", "--model", "m", "--methods", "ridge-last"], 2, "1 prompts are too few to split"),
        (["calibrate", "--model", "m", "--batch-sizes", "1", "2", "--prompt-tokens", "8", "16", "--held-out-sizes", "1",
          "--held-out-tokens", "12", "--repeats", "3", "--out", "latency.json"], 0, "wrote latency.json"),
    ],
)  # fmt: skip
def test_a_models_own_code_runs_only_when_asked(
    command: list[str],
    code: int,
    said: str,
    own_code: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path / "cache"))
    predictor(backbone=str(own_code)).write(tmp_path / "p")
    command = [str(own_code) if word == "m" else word for word in [*command, "--device", "cpu"]]
    (tmp_path / "t.jsonl").write_text(
        '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prompt": "a"}'
    )
    assert main(command) == 2
    assert "then add --trust-remote-code if you trust it" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert main([*command, "--trust-remote-code"]) == code
    assert said in "".join(capsys.readouterr())
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"backbone_fingerprint": "f" * 16}, f"backbone_fingerprint is {'f' * 16}, not 0123456789abcdef"),
        ({"backbone": "another"}, "backbone is another, not some-llm"),
        ({"dtype": "bfloat16"}, "dtype is bfloat16, not float32"),
        ({"pooling": PoolingSettings("estp", "zscore", 0.3, 0.5).to_json()}, r"signals\.lambda2 is 0\.5, not 0\.7"),
        ({"edges": [1.0, 10.0, 60.0]}, "head_sha256 is"),
        ({"trend": {"starts": [0], "values": [1.0], "window": None}}, "head_sha256 is"),
        ({"seed": 1}, "head_sha256 is"),
    ],
)  # fmt: skip
def test_estimates_of_another_predictor_are_refused(changes: dict[str, Any], phrase: str) -> None:
    one = predictor()
    one.check_estimates(estimates_by(predictor()))
    with pytest.raises(InputError, match=phrase):
        one.check_estimates(estimates_by(predictor(**changes)))


def test_estimates_that_say_nothing_are_refused() -> None:
    with pytest.raises(InputError, match=r"backbone is not given; .*signals is not given"):
        predictor().check_estimates(Estimates("estp", np.arange(1), np.ones(1)))


def test_differences_are_named_and_nothing_else() -> None:
    wanted = {"a": 1, "b": {"c": 2, "d": 3}}
    assert differences(wanted, {**wanted, "more": 9}) == []
    assert differences(wanted, {"a": 1, "b": {"c": 4}}) == ["b.c is 4, not 2", "b.d is not given"]


def test_the_command_line_refuses_what_does_not_belong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictor().write(tmp_path / "p")
    predictor(1).write(tmp_path / "other")
    predictor(predictor="egtp").write(tmp_path / "egtp")
    write_estimates([estimates_by(predictor())], tmp_path / "e.parquet")
    export = ["export-priority", str(tmp_path / "e.parquet"), str(tmp_path / "out.jsonl"), "--predictor"]
    assert main([*export, str(tmp_path / "p")]) == 0
    for name, sentence in (("other", "head_sha256 is"), ("egtp", "none of 'egtp'")):
        assert main([*export, str(tmp_path / name)]) == 2
        assert sentence in capsys.readouterr().err
    (tmp_path / "t.jsonl").write_text(
        '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "prompt": "a"}'
    )
    before = (tmp_path / "e.parquet").read_bytes()
    for name, sentence in (
        ("other", "exists already: the estimates 'estp'"),
        ("egtp", "holds estimates of 'estp'"),
    ):
        predict = ["predict", str(tmp_path / "t.jsonl"), str(tmp_path / "e.parquet")]
        assert main([*predict, "--predictor", str(tmp_path / name)]) == 2
        assert sentence in capsys.readouterr().err
    assert (tmp_path / "e.parquet").read_bytes() == before
    assert list(read_estimates(tmp_path / "e.parquet")) == ["estp"]


@pytest.mark.parametrize("folder", PREDICTORS)
def test_the_card_has_data_settings_measures_and_limits(folder: str) -> None:
    one = load_predictor(folder)
    text = (Path(folder) / "README.md").read_text()
    assert text == str(one.generate_model_card())
    for heading in ("## Use", "## Data", "## Settings", "## Measured", "## Limits"):
        assert heading in text
    facts = one.facts
    assert f"{facts['rows']['training_rows']:,} rows trained on" in text
    assert f"| MAE, tokens | {facts['test']['mae']:.3g} | {facts['constant']['mae']:.3g} |" in text
    assert f"fingerprint `{one.backbone_fingerprint}`" in text
    assert "underrated" in text  # its rollout was cut at 512 tokens
    # Its 90% interval is corrected on the validation prompts; 600 test rows are told by it to within 5%.
    assert one.conformal is not None
    assert one.conformal.to_json() == facts["conformal"]
    assert facts["test"]["coverage_90"] == pytest.approx(0.9, abs=0.05)


def test_a_card_without_facts_says_so() -> None:
    text = str(predictor().generate_model_card())
    assert "Not recorded." in text
    assert "Not measured." in text
