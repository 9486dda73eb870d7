"""On a GPU the signals are those of the CPU, and the host waits for nothing inside a batch.

The CPU's own numbers are held to transformers' eager reference in test_signals.py. torch's sync debug mode raises
at whatever waits for the device; the one wait at a batch's end is for an event, which that mode lets pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from predictor.backbone import load_backbone  # noqa: E402
from predictor.features import read_signals  # noqa: E402
from predictor.signals import Signals, iter_signals  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TINY = Path(__file__).parent / "data" / "tiny_lm"
LENGTHS = (200, 120, 7, 64, 1, 33, 90, 150, 12, 48)


def model(kind: str, dtype: torch.dtype, device: str) -> torch.nn.Module:
    """A small random LM, the same wherever it is made."""
    shape = {
        "vocab_size": 997,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,  # so that attention and entropy differ from token to token
    }
    own = {"head_dim": 16, "sliding_window": 32} if kind == "Gemma3TextConfig" else {}
    config = getattr(transformers, kind)(**shape, **own, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval().to(device)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(1)
    return [rng.integers(3, 997, n).tolist() for n in LENGTHS]


def read(kind: str, dtype: torch.dtype, device: str) -> dict[int, Signals]:
    return dict(
        iter_signals(model(kind, dtype, device), prompts(), batch_tokens=400, device="cpu", layers=(1,))
    )


def off(got: dict[int, Signals], exact: dict[int, Signals], name: str) -> float:
    """Mean absolute difference of a signal over all tokens."""
    gaps = [
        (getattr(got[k], name).double() - getattr(exact[k], name).double()).abs().flatten() for k in exact
    ]
    return float(torch.cat(gaps).mean())


@pytest.mark.parametrize("kind", ["LlamaConfig", "Gemma3TextConfig"])
def test_in_float32_they_are_those_of_the_cpu(kind: str) -> None:
    got, exact = (read(kind, torch.float32, device) for device in ("cuda", "cpu"))
    assert sorted(got) == list(range(len(LENGTHS)))
    for k, signals in exact.items():
        for name in ("hidden", "entropy", "received", "received_by_head"):
            torch.testing.assert_close(getattr(got[k], name), getattr(signals, name), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(got[k].layers[1], signals.layers[1], atol=1e-3, rtol=1e-3)


def test_bfloat16_costs_no_more_than_it_does_on_the_cpu() -> None:
    exact = read("LlamaConfig", torch.float32, "cpu")
    got, on_cpu = (read("LlamaConfig", torch.bfloat16, device) for device in ("cuda", "cpu"))
    for name in ("hidden", "entropy", "received"):
        assert 0 < off(got, exact, name) < 2 * off(on_cpu, exact, name)


@pytest.fixture
def no_waits() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["LlamaConfig", "Qwen3Config", "Gemma3TextConfig"])
def test_the_host_waits_for_nothing_inside_a_batch(kind: str, request: pytest.FixtureRequest) -> None:
    lm = model(kind, torch.bfloat16, "cuda")
    running = iter_signals(
        lm, prompts(), batch_tokens=200, device="cpu", hidden_dtype=torch.float16, layers=(1,)
    )
    # Before the first batch the model is looked at, which waits.
    first = list(islice(running, 1))
    request.getfixturevalue("no_waits")
    found = dict([*first, *running])
    assert sorted(found) == list(range(len(LENGTHS)))
    for signals in found.values():
        for x in (signals.hidden, signals.entropy, signals.received, signals.layers[1]):
            assert x.is_cpu
            assert x.is_pinned()
        assert signals.hidden.dtype == torch.float16
        assert abs(float(signals.received.sum()) - 1) < 1e-4


def test_a_wait_would_be_noticed(no_waits: None) -> None:
    values = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="synchronizing"):
        values.sum().item()


def test_features_read_on_the_gpu_are_those_of_the_cpu(tmp_path: Path) -> None:
    texts = [f"ann has {'one and ' * k}four ." for k in range(40)]
    on_gpu, on_cpu = (
        read_signals(
            load_backbone(str(TINY), device, "float32"), texts, folder=tmp_path / device, progress=False
        )
        for device in ("cuda", "cpu")
    )
    for got, exact in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(got.hidden, exact.hidden, atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(got.entropy, exact.entropy, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(got.received, exact.received, atol=1e-3, rtol=1e-3)
