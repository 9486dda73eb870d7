"""Token signals equal the slow definition: transformers' eager `output_attentions`, full logits, and loops.

The reference runs the same weights with the eager attention of the library and reduces its N x N attention
and N x V logits; brute-force twins of the reductions are written out here.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from predictor.signals import (
    Signals,
    attention_received,
    batches,
    check_model,
    entropies,
    extract,
    iter_signals,
)
from traces.errors import InputError

LENGTHS = (23, 40, 1, 11)
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # so that attention and entropy differ from token to token
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SLIDING_LAST = ["sliding_attention", "full_attention", "sliding_attention"]
FULL_LAST = ["sliding_attention", "sliding_attention", "full_attention"]
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, {}),
    "llama-no-gqa": (transformers.LlamaConfig, {"num_key_value_heads": 4}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 16}),
    "gemma3-sliding": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 4,
            "sliding_window": 7,
            "layer_types": SLIDING_LAST,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3-full": (
        transformers.Gemma3TextConfig,
        {"head_dim": 16, "query_pre_attn_scalar": 4, "sliding_window": 7, "layer_types": FULL_LAST},
    ),
    "gemma2-capped": (
        transformers.Gemma2Config,
        {"head_dim": 16, "query_pre_attn_scalar": 4, "sliding_window": 7, "attn_logit_softcapping": 2.0},
    ),
    "mistral-window": (transformers.MistralConfig, {"sliding_window": 9}),
    "phi3-fused-qkv": (transformers.Phi3Config, {}),
    "olmo2": (transformers.Olmo2Config, {}),
    "granite-scaled-logits": (
        transformers.GraniteConfig,
        {"logits_scaling": 4.0, "attention_multiplier": 0.4},
    ),
    "cohere-scaled-logits": (transformers.CohereConfig, {"logit_scale": 0.5}),
}


def tiny(family: str, **changes: Any) -> Any:
    kind, own = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(kind(**{**SHAPE, **own, **changes})).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim == 1:  # norms and biases start as ones and zeros, which would hide their absence
                weights.add_(0.3 * torch.randn_like(weights))
    return model


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny("llama")


def random_prompts(lengths: tuple[int, ...] = LENGTHS, vocab: int = 97, seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocab, n).tolist() for n in lengths]


def padded(prompts: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor, list[slice]]:
    width = max(map(len, prompts))
    ids, mask, where = (
        torch.zeros(len(prompts), width, dtype=torch.long),
        torch.zeros(len(prompts), width),
        [],
    )
    for row, prompt in enumerate(prompts):
        where.append(slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt)))
        ids[row, where[-1]] = torch.tensor(prompt)
        mask[row, where[-1]] = 1
    return ids, mask.long(), where


def assert_equals_eager(model: Any, prompts: list[list[int]], side: str, middle: int) -> list[Signals]:
    """Compare every signal with the eager reference under the same padding."""
    ids, mask, where = padded(prompts, side)
    ours = extract(model, ids, mask, query_block=6, logit_rows=5, layers=(middle,))
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        told = model(ids, attention_mask=mask, output_attentions=True, output_hidden_states=True)
    model.set_attn_implementation(usual)
    assert len(told.attentions) == model.config.num_hidden_layers
    for row, (signals, valid) in enumerate(zip(ours, where, strict=True)):
        received = told.attentions[-1][row][:, valid, valid].sum(1) / len(prompts[row])
        probabilities = told.logits[row, valid].double().softmax(-1)
        entropy = torch.special.entr(probabilities).sum(-1).float()
        for got, wanted in (
            (signals.received, received.mean(0)),
            (signals.received_by_head, received),
            (signals.entropy, entropy),
            (signals.hidden, told.hidden_states[-1][row, valid]),
            (signals.layers[middle], told.hidden_states[middle][row, valid]),
        ):
            torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    return ours


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_every_family_equals_its_eager_reference(family: str, side: str) -> None:
    model = tiny(family)
    check_model(model)
    ours = assert_equals_eager(model, random_prompts(), side, middle=1)
    assert ours[1].received.std() > 0.01
    assert ours[0].window == {"gemma3-sliding": 7, "gemma2-capped": 7, "mistral-window": 9}.get(family)
    for signals in ours:
        torch.testing.assert_close(signals.received.sum(), torch.tensor(1.0), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
def test_the_embedded_model_equals_its_eager_reference(smollm: Any, side: str) -> None:
    assert_equals_eager(smollm, random_prompts((70, 33, 5), vocab=40_000), side, middle=15)


@pytest.fixture(scope="session")
def smollm() -> Any:
    from predictor.backbone import load_backbone

    try:
        return load_backbone(device="cpu").model
    except InputError as error:
        pytest.skip(str(error))


@given(st.data())
def test_attention_received_equals_loops(data: st.DataObject) -> None:
    kv_heads, groups = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    window = data.draw(st.none() | st.integers(1, 10))
    softcap = data.draw(st.none() | st.floats(0.5, 5))
    width, heads, size, scale = max(lengths), kv_heads * groups, 4, 0.7
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    query = torch.randn(len(lengths), heads, width, size, generator=generator)
    key = torch.randn(len(lengths), kv_heads, width, size, generator=generator)
    got = attention_received(
        query, key, torch.tensor(lengths), scale=scale, window=window, softcap=softcap,
        query_block=data.draw(st.integers(1, 12)),
    )  # fmt: skip
    for row, n in enumerate(lengths):
        for head in range(heads):
            wanted = np.zeros(n)
            for i in range(n):
                seen = [j for j in range(i + 1) if window is None or i - j < window]
                scores = [scale * float(query[row, head, i] @ key[row, head // groups, j]) for j in seen]
                if softcap is not None:
                    scores = [softcap * math.tanh(score / softcap) for score in scores]
                total = sum(map(math.exp, scores))
                for j, score in zip(seen, scores, strict=True):
                    wanted[j] += math.exp(score) / total / n
            np.testing.assert_allclose(got[row, head, :n], wanted, atol=1e-5)


def test_entropy_of_known_distributions(llama: Any) -> None:
    """Equal logits give log V; one overwhelming logit gives 0; two equal ones log 2, however large."""
    model = tiny("llama", vocab_size=50, hidden_size=64)
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.eye(50, 64))
    rows = torch.zeros(3, 64)
    rows[1, 7] = 1e4
    rows[2, [3, 4]] = 1e4
    with torch.no_grad():
        got = entropies(model, rows, logit_rows=2)
    torch.testing.assert_close(got, torch.tensor([math.log(50), 0.0, math.log(2)]))


@pytest.mark.parametrize("batch_tokens", [1, 64, 100_000])
def test_batches_do_not_change_the_numbers(llama: Any, batch_tokens: int) -> None:
    prompts = random_prompts((9, 30, 9, 2, 17, 30, 1))
    got = list(iter_signals(llama, prompts, batch_tokens=batch_tokens, layers=(2,), device="cpu"))
    assert sorted(index for index, _ in got) == list(range(len(prompts)))
    for index, signals in got:
        ids = torch.tensor([prompts[index]])
        (alone,) = extract(llama, ids, torch.ones_like(ids))
        torch.testing.assert_close(signals.hidden, alone.hidden, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(signals.entropy, alone.entropy, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(signals.received_by_head, alone.received_by_head, atol=1e-4, rtol=1e-4)
        assert signals.layers[2].shape == signals.hidden.shape == (len(prompts[index]), 32)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 120))
def test_batches_hold_each_prompt_once_within_the_bound(lengths: list[int], bound: int) -> None:
    cut = batches(lengths, bound)
    flat = [i for batch in cut for i in batch]
    assert flat == sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    for batch in cut:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= bound


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_states_are_cast_before_they_are_handed_out(llama: Any, dtype: torch.dtype | None) -> None:
    ids = torch.tensor(random_prompts((20,)))
    (plain,) = extract(llama, ids, torch.ones_like(ids), layers=(1,))
    ((_, got),) = iter_signals(llama, ids.tolist(), hidden_dtype=dtype, layers=(1,))
    assert torch.equal(got.hidden, plain.hidden.to(dtype or torch.float32))
    assert torch.equal(got.layers[1], plain.layers[1].to(dtype or torch.float32))
    assert got.entropy.dtype == got.received.dtype == torch.float32


@pytest.mark.parametrize(("device", "ahead"), [(None, 0), ("cpu", 0), ("meta", 1)])
def test_one_batch_runs_ahead_of_results_that_travel(llama: Any, device: str | None, ahead: int) -> None:
    prompts = random_prompts((9, 30, 17, 2))
    prefills: list[int] = []
    hook = llama.get_decoder().register_forward_hook(lambda *_: prefills.append(0))
    try:
        read = iter_signals(llama, prompts, batch_tokens=1, device=device)
        order = []
        for done, (index, signals) in enumerate(read, 1):
            order.append(index)
            # Two more are the look at the model before the first batch.
            assert len(prefills) == 2 + min(done + ahead, len(prompts))
            assert len(signals.hidden) == len(signals.entropy) == len(prompts[index])
    finally:
        hook.remove()
    assert order == [1, 2, 0, 3]


class Uploads(TorchDispatchMode):
    """Count what goes from the host to a `meta` device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.count += any(x.is_cpu for x in given) and any(x.is_meta for x in made)
        return out


@pytest.mark.parametrize("family", list(FAMILIES))
def test_nothing_on_the_device_is_looked_at_within_a_batch(family: str) -> None:
    """A tensor on `meta` has no values, so to ask for one, as waiting for a GPU would, is an error there."""
    model = tiny(family).to("meta")
    ids, mask, _ = padded(random_prompts(), "left")
    with Uploads() as seen:
        got = extract(model, ids, mask, layers=(1,))
    assert seen.count == 3  # token ids, where the valid ones are, and how many a prompt has
    assert all(x.is_meta for signals in got for x in (signals.hidden, signals.entropy, signals.received))


def test_packed_rows_are_still_told_apart_outside(llama: Any) -> None:
    ids, positions = torch.tensor([[5, 6, 7, 5, 6, 7]]), torch.tensor([[0, 1, 2, 0, 1, 2]])
    packed = llama(ids, position_ids=positions, use_cache=False).logits[0]
    torch.testing.assert_close(packed[:3], packed[3:])


class Largest(TorchDispatchMode):
    """Remember the most elements of any tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and x._base is None and func is not torch.ops.aten.t.default:
                self.elements = max(self.elements, x.numel())
        return out


def largest_tensor(model: Any, length: int) -> int:
    ids = torch.arange(2 * length).reshape(2, length) % 90 + 3
    mask = torch.ones_like(ids)
    mask[0, : length // 3] = 0
    with Largest() as mode:
        extract(model, ids, mask)
    return mode.elements


def test_no_tensor_is_quadratic_in_the_prompt_or_holds_all_logits() -> None:
    model = tiny("llama", vocab_size=4096, max_position_embeddings=4096)
    sizes = {n: largest_tensor(model, n) for n in (1024, 2048)}
    heads, query_block, logit_rows = 4, 64, 128
    for n, size in sizes.items():
        assert size <= max(2 * heads * query_block * n, logit_rows * 4096)
        assert size < min(2 * n * n, n * 4096)


def test_bfloat16_reduces_in_float32() -> None:
    """Sums over 200 queries in bfloat16 would be off by a percent; in float32 they still make one."""
    model = tiny("llama").bfloat16()
    (got,) = extract(model, ids := torch.tensor(random_prompts((200,))), torch.ones_like(ids))
    assert got.hidden.dtype == torch.bfloat16
    assert got.entropy.dtype == got.received.dtype == torch.float32
    assert abs(float(got.received.double().sum()) - 1) < 1e-5
    (exact,) = extract(tiny("llama"), ids, torch.ones_like(ids))
    assert float((got.received - exact.received).abs().max()) < 0.02


def test_the_model_is_left_as_it_was(llama: Any) -> None:
    attention = llama.model.layers[-1].self_attn
    config = attention.config
    ids = torch.tensor(random_prompts((12,)))
    extract(llama, ids, torch.ones_like(ids), layers=(0,))
    with pytest.raises(IndexError):
        extract(llama, ids + 1000, torch.ones_like(ids), layers=(0,))
    assert attention.config is config
    assert config._attn_implementation == "sdpa"
    assert not llama.model.layers[0]._forward_pre_hooks


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "prompt 1 has 0 tokens"),
        ([5] * 300, "prompt 1 has 300 tokens"),
        ([97], "outside 0..96"),
        ([-1], "outside"),
    ],
)
def test_prompts_are_checked_before_any_work(llama: Any, prompt: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        next(iter_signals(llama, [[3, 4], prompt]))


@pytest.mark.parametrize("mask", [[0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 0, 1]])
def test_a_mask_with_holes_is_refused(llama: Any, mask: list[int]) -> None:
    with pytest.raises(InputError, match="prompt 1 of the batch needs one unbroken run"):
        extract(llama, torch.full((2, 4), 5), torch.tensor([[1, 1, 1, 0], mask]))


def test_models_that_would_be_read_wrongly_are_refused(llama: Any) -> None:
    class Odd(transformers.LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, *args: Any, **options: Any) -> Any:
            out = super().forward(*args, **options)
            out.logits = out.logits * 3
            return out

    with pytest.raises(InputError, match="Odd changes its logits"):
        check_model(Odd(llama.config).eval())
    sinks = transformers.GptOssConfig(
        **SHAPE,
        num_local_experts=2,
        num_experts_per_tok=1,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    with pytest.raises(InputError, match="sinks"):
        check_model(transformers.AutoModelForCausalLM.from_config(sinks).eval())
    with pytest.raises(InputError, match="no causal self-attention"):
        check_model(tiny("gemma3-full", use_bidirectional_attention=True))
    with pytest.raises(InputError, match=r"layer 4 is not one of the model's 0\.\.3"):
        extract(llama, torch.full((1, 4), 5), torch.ones(1, 4), layers=(4,))
