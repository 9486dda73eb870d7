"""The last token of several layers, trained into a checkpoint, predicts what `estp evaluate` measured.

The twin is the evaluation's own method (`Concat`) on the same split; it reads the layers by another way
(`predictor.layers`, no signals) than a prediction does.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from experiments.cli import main  # noqa: E402
from predictor.backbone import Backbone, load_backbone  # noqa: E402
from predictor.checkpoint import load_predictor  # noqa: E402
from predictor.explain import explain  # noqa: E402
from predictor.extensions.layers import Concat  # noqa: E402
from predictor.features import of  # noqa: E402
from predictor.layers import read_layers  # noqa: E402
from predictor.methods import Data  # noqa: E402
from predictor.rows import prompts_of  # noqa: E402
from predictor.signals import iter_signals  # noqa: E402
from predictor.train import Split, TrainSettings, split_by_prompt  # noqa: E402
from traces import Estimates, Trace, read_estimates, read_trace, write_trace  # noqa: E402
from traces.errors import InputError  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"
NAMES, DOES = ("ann", "tom", "leo", "ben"), ("has", "gives", "sees", "takes")
ON_CPU = ("--device", "cpu")


def estp(*arguments: object) -> int:
    return main([str(a) for a in arguments])


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Two answers to each of 96 prompts; the name at the end tells most of the length."""
    rng = np.random.default_rng(0)
    texts = [f"{DOES[k // 4 % 4]} {'two ' * (k // 16)}{NAMES[k % 4]}" for k in range(96)]
    lengths = [20 + 40 * (k % 4) + int(rng.integers(0, 9)) for k in range(96) for _ in range(2)]
    n = len(lengths)
    return Trace(np.arange(n), np.zeros(n), np.full(n, 9), lengths, prompt=np.repeat(texts, 2))


@pytest.fixture(scope="module")
def folder(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """t.parquet, predictors two/ (two layers), one/ (layer 1) and estp/, and estimates e.parquet of all three."""
    made = tmp_path_factory.mktemp("layers")
    write_trace(trace, made / "t.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ESTP_CACHE", str(made / "cache"))
        for name, options in (
            ("two", ("--pooling", "last-two-layers")),
            ("one", ("--pooling", "last", "--layers", 1, "--name", "layer-one")),
            ("estp", ("--lambda1", 0.3, "--signal-scale", "zscore")),
        ):
            assert train(made, made / name, *options) == 0
        predictors = [word for name in ("two", "one", "estp") for word in ("--predictor", made / name)]
        assert estp("predict", made / "t.parquet", made / "e.parquet", *predictors, *ON_CPU) == 0
    return made


def train(folder: Path, out: Path, *options: object) -> int:
    return estp("train", folder / "t.parquet", out, "--model", TINY, "--dtype", "float32", "--epochs", 9,
                "--batch-size", 16, *ON_CPU, *options)  # fmt: skip


@pytest.fixture(scope="module")
def data(tiny: Backbone, trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Data:
    states = read_layers(tiny, prompts_of(trace), folder=tmp_path_factory.mktemp("states"), progress=False)
    return Data(trace, (), states)


@pytest.fixture(scope="module")
def split(data: Data) -> Split:
    return split_by_prompt(data.prompt_ids, data.scenarios, 0)


@pytest.fixture(scope="module")
def estimates(folder: Path) -> dict[str, Estimates]:
    return read_estimates(folder / "e.parquet")


@pytest.mark.parametrize(("name", "depths"), [("last-two-layers", (2 / 3, 1.0)), ("layer-one", (0.25,))])
def test_a_checkpoint_predicts_what_the_evaluation_measures(
    name: str, depths: tuple[float, ...], data: Data, split: Split, estimates: dict[str, Estimates]
) -> None:
    found = Concat(name, depths, TrainSettings(epochs=9, batch_size=16)).fit(data, split, 0)(split.test)
    assert found.mean is not None
    np.testing.assert_allclose(estimates[name].mean[split.test], found.mean, rtol=2e-3)
    truth = data.lengths[split.test]
    constant = np.abs(np.median(data.lengths[split.train]) - truth).mean()
    assert np.abs(estimates[name].mean[split.test] - truth).mean() < 0.8 * constant


def test_the_checkpoint_names_its_layers(folder: Path, estimates: dict[str, Estimates]) -> None:
    one = load_predictor(folder / "two")
    assert one.layers == (3, 4)  # two thirds of four layers, and the last hidden state
    assert one.conformal is not None
    assert "* pooling: last, of layers 3, 4 side by side" in (folder / "two" / "README.md").read_text()
    one.check_estimates(estimates["last-two-layers"])
    other = load_predictor(folder / "one")
    with pytest.raises(InputError, match=r"layers is \[3, 4\], not \[1\]"):
        other.check_estimates(estimates["last-two-layers"])


def test_layers_of_a_prefill_are_those_of_the_model(tiny: Backbone) -> None:
    ids = [tiny.encode(text) for text in ("ann has two .", "tom sees .")]
    for k, signals in iter_signals(tiny.model, ids, layers=(0, 2, 4)):
        with torch.no_grad():
            told = tiny.model(torch.tensor([ids[k]]), output_hidden_states=True).hidden_states
        for layer, state in of(signals).last.items():
            torch.testing.assert_close(state.float(), told[layer][0, -1], atol=5e-3, rtol=5e-3)


def test_predictors_in_one_run_do_not_disturb_each_other(
    folder: Path, estimates: dict[str, Estimates], tmp_path: Path
) -> None:
    for name in ("two", "estp"):
        out = tmp_path / f"{name}.parquet"
        assert estp("predict", folder / "t.parquet", out, "--predictor", folder / name, *ON_CPU) == 0
        for key, alone in read_estimates(out).items():
            np.testing.assert_array_equal(alone.mean, estimates[key].mean)


def test_training_twice_gives_the_same_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path / "cache"))  # the layers are read anew
    assert train(folder, tmp_path / "again", "--pooling", "last-two-layers") == 0
    for file in (folder / "two").iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_it_is_explained_by_its_last_token(
    folder: Path, tiny: Backbone, estimates: dict[str, Estimates]
) -> None:
    prompt = prompts_of(read_trace(folder / "t.parquet"))[0]
    found = explain(tiny, load_predictor(folder / "two"), prompt)
    assert found.weight is not None
    assert found.weight.tolist() == [0.0] * (len(found.weight) - 1) + [1.0]
    assert found.mean == pytest.approx(estimates["last-two-layers"].mean[0], rel=2e-3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--pooling", "last", "--layers", 5), "layer 5 is not one of the model's 0..4"),
        (("--pooling", "last", "--layers", -1), "layer -1 is not one of the model's 0..4"),
        (("--pooling", "mean", "--layers", 1), "it goes with --pooling last"),
        (("--pooling", "last-two-layers", "--signal-scale", "paper"), "--signal-scale weighs tokens"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: tuple[object, ...],
    sentence: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(folder / "cache"))
    assert train(folder, tmp_path / "p", *options) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "p").exists()


def test_layers_that_the_model_has_not_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "two", tmp_path / "p")
    config = json.loads((tmp_path / "p" / "config.json").read_text())
    (tmp_path / "p" / "config.json").write_text(json.dumps({**config, "layers": [3, 99]}))
    out = tmp_path / "e.parquet"
    assert estp("predict", folder / "t.parquet", out, "--predictor", tmp_path / "p", *ON_CPU) == 2
    assert "reads layer 99, but" in capsys.readouterr().err
    assert (
        estp("diagnose", folder / "t.parquet", "--predictor", folder / "two", "--model", TINY, *ON_CPU) == 2
    )
    assert "weighs no tokens" in capsys.readouterr().err
