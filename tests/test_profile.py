"""Layer times that are straight lines in their coordinates give a step's time by hand; truth is that sum.

The folder is written here in the public layout; times in it are microseconds.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import ContinuousBatching, simulate
from sim.latency import Profile, load_latency
from traces import Trace
from traces.errors import InputError

LAYERS = 4


def attention_us(chunk: float, cached: float, requests: float, context: float) -> float:
    """Launch, then query-key pairs of the chunk, and context of those who decode."""
    return 5 + 0.001 * chunk * (cached + 0.5 * chunk) + 0.5 * requests + 0.002 * requests * context


def write_profile(folder: Path, factor: float = 1.0, uneven: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder.parent / "meta.yaml").write_text("gpu: SomeGPU\nmodel: some/Model-1B\n")
    (folder.parent / "config.json").write_text(json.dumps({"num_hidden_layers": LAYERS}))
    dense = [
        f"{layer},{n},{factor * (1 + 0.1 * n)}"
        for layer in ("embedding", "layernorm", "mlp")
        for n in (1, 512)
    ]
    (folder / "dense.csv").write_text("\r\n".join(["layer,tokens,time_us", *dense]) + "\r\n")
    heads = [f"lm_head,{n},{factor * (20 + n)}" for n in (1, 64)]
    (folder / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *heads]) + "\n")
    rows = []
    for chunk, requests in itertools.product((0, 128, 256, 1024), (0, 1, 8, 32)):
        cached = [0] if chunk == 0 else [0, 512, 4096] if not uneven or chunk != 256 else [0, 600, 5000]
        context = [0] if requests == 0 else [16, 1024] if not uneven or requests != 8 else [16, 500, 2000]
        rows += [
            f"{chunk},{k},{requests},{c},{factor * attention_us(chunk, k, requests, c)}"
            for k, c in itertools.product(cached, context)
            if chunk or requests
        ]
    (folder / "attention.csv").write_text(
        "\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]) + "\n"
    )
    return folder


def by_hand(chunk: float, cached: float, requests: int, context: float, sequences: int) -> float:
    tokens = chunk + requests
    line = 1 + 0.1 * tokens
    # One embedding; in each layer two norms, the MLP, and the attention.
    layers = LAYERS * (3 * line + attention_us(chunk, cached, requests, context))
    return (line + layers + 20 + sequences) * 1e-6


@pytest.fixture(params=[False, True], ids=["full grid", "uneven grid"])
def profile(tmp_path: Path, request: pytest.FixtureRequest) -> Profile:
    write_profile(tmp_path / "gpu" / "bf16" / "tp1", uneven=request.param)
    return Profile(str(tmp_path / "gpu"))


def test_a_decode_step_is_the_sum_of_its_layers(profile: Profile) -> None:
    assert profile.step_time(0, 8, 8 * 300) == pytest.approx(by_hand(0, 0, 8, 300, 8), rel=1e-12)
    assert profile.step_time(0, 20, 20 * 3000) == pytest.approx(by_hand(0, 0, 20, 3000, 20), rel=1e-12)


def test_a_chunk_is_priced_by_what_lies_before_it(profile: Profile) -> None:
    assert profile.step_time(256, 0, 0) == pytest.approx(by_hand(256, 0, 0, 0, 1), rel=1e-12)
    assert profile.chunk_time([(256, 0)], 0, 0) == profile.step_time(256, 0, 0)
    seconds = profile.chunk_time([(256, 700)], 8, 8 * 300)
    assert seconds == pytest.approx(by_hand(256, 700, 8, 300, 9), rel=1e-12)


def test_several_chunks_count_their_query_key_pairs(profile: Profile) -> None:
    # 128 tokens behind 0 and 128 behind 512: 128 * 64 + 128 * 576 pairs, as 256 tokens behind 192.
    two = profile.chunk_time([(128, 0), (128, 512)], 0, 0)
    assert two == pytest.approx(by_hand(256, 192, 0, 0, 2), rel=1e-12)
    # Eight short prompts: 8 * 32 * 16 pairs, as 256 tokens behind -112: cheaper than one prompt of 256.
    short = profile.chunk_time([(32, 0)] * 8, 0, 0)
    assert short == pytest.approx(by_hand(256, -112, 0, 0, 8), rel=1e-12)


def test_apart_is_one_kernel_for_prefill_and_one_for_decode(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "tp1")
    apart = Profile(str(folder), mixed="apart").chunk_time([(256, 512)], 8, 8 * 300)
    both = LAYERS * (
        attention_us(256, 512, 0, 0) + attention_us(0, 0, 8, 300) - attention_us(256, 512, 8, 300)
    )
    assert apart == pytest.approx(by_hand(256, 512, 8, 300, 9) + both * 1e-6, rel=1e-12)


def test_the_engine_costs_a_step_and_b_a_token(profile: Profile) -> None:
    dearer = Profile(profile.dir, a=0.002, b=1e-6)
    assert dearer.step_time(100, 8, 2400) - profile.step_time(100, 8, 2400) == pytest.approx(0.002 + 108e-6)
    assert dearer.chunk_time([(100, 7)], 8, 2400) - profile.chunk_time([(100, 7)], 8, 2400) == pytest.approx(
        0.002 + 108e-6
    )


@settings(max_examples=60)
@given(k=st.integers(0, 4000), requests=st.integers(1, 70), context=st.integers(1, 3000), mixed=st.booleans())
def test_many_steps_last_as_long_as_one_after_the_other(
    tmp_path_factory: pytest.TempPathFactory, k: int, requests: int, context: int, mixed: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "leaps" / "tp1"
    if not folder.exists():
        write_profile(folder, uneven=True)
    profile = Profile(str(folder), a=1e-4, mixed="apart" if mixed else "together")
    total = context * requests
    steps = profile.step_time(0, requests, total + requests * np.arange(k)) if k else np.zeros(0)
    assert profile.advance(k, requests, total) == pytest.approx(steps.sum(), rel=1e-9, abs=1e-15)
    columns = profile.advance(np.array([k]), np.array([requests]), np.array([total]))
    assert columns[0] == pytest.approx(profile.advance(k, requests, total), rel=1e-12)
    if k:
        until = profile.steps_until(profile.advance(k, requests, total) * (1 - 1e-12), requests, total)
        assert until in (k, k - 1)


def test_leaping_changes_no_record(profile: Profile) -> None:
    rng = np.random.default_rng(5)
    trace = Trace(
        request_id=np.arange(60),
        arrival_s=np.sort(rng.uniform(0, 0.05, 60)),
        prompt_tokens=rng.integers(1, 900, 60).astype(np.int32),
        output_tokens=rng.integers(1, 200, 60).astype(np.int32),
    )
    results = [
        simulate(
            trace,
            batching=ContinuousBatching(
                max_num_seqs=16, max_num_batched_tokens=256, num_blocks=400, leap=leap
            ),
            latency=Profile(profile.dir, a=1e-4),
        ).records
        for leap in (True, False)
    ]
    for name in ("first_token_s", "completion_s"):
        assert results[0][name].to_numpy() == pytest.approx(results[1][name].to_numpy(), rel=1e-9)


def test_the_tensor_parallel_variant_is_chosen_by_name(tmp_path: Path) -> None:
    one = write_profile(tmp_path / "tp1")
    (tmp_path / "tp2").mkdir()
    for path in write_profile(tmp_path / "other" / "tp2", factor=0.5).iterdir():
        path.rename(tmp_path / "tp2" / path.name)
    (tmp_path / "other" / "tp2").rmdir()
    with pytest.raises(InputError, match="holds several: tp1, tp2"):
        Profile(str(tmp_path))
    two = load_latency(f"profile,dir={tmp_path},tensor_parallel_size=2")
    assert two.step_time(0, 8, 2400) == pytest.approx(Profile(str(one)).step_time(0, 8, 2400) / 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "attention.csv").unlink(), "holds no tp<N>/attention.csv"),
        (lambda f: (f / "dense.csv").unlink(), "dense.csv cannot be read"),
        (lambda f: (f / "dense.csv").write_text("layer,tokens\nmlp,1\n"), "has no column 'time_us'"),
        (
            lambda f: (f / "dense.csv").write_text("layer,tokens,time_us\nmlp,1,x\n"),
            "must hold rows of numbers",
        ),
        (
            lambda f: (f / "dense.csv").write_text("layer,tokens,time_us\nmlp,1,2\nmlp,1,3\n"),
            "layer mlp twice",
        ),
        (lambda f: (f.parent / "config.json").unlink(), "number of layers is not known"),
        (lambda f: (f.parent / "config.json").write_text("{}"), "tells no num_hidden_layers"),
    ],
)
def test_a_faulty_folder_is_refused_by_name(tmp_path: Path, change: object, message: str) -> None:
    folder = write_profile(tmp_path / "tp1")
    change(folder)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        Profile(str(tmp_path))


@pytest.mark.parametrize("setting", ["mixed=sideways", "a=-1", "b=-0.1", "a=nan"])
def test_a_setting_out_of_range_is_refused(tmp_path: Path, setting: str) -> None:
    folder = write_profile(tmp_path / "tp1")
    with pytest.raises(InputError, match="latency profile"):
        load_latency(f"profile,dir={folder},{setting}")


def test_the_recorded_profile_is_read_and_knows_its_cache(reference: Path) -> None:
    profile = Profile(str(reference / "data/3_latency/llmservingsim_profile"))
    measured = profile.measured
    assert (measured.gpu, measured.model, measured.layers) == ("RTXPRO6000", "meta-llama/Llama-3.1-8B", 32)
    # The file's own rows: 128 decoding requests with 1,024 cached tokens, 404.865 us; 2,048 fresh ones, 172.609.
    at = [float(measured._attention(*point)) / 32 for point in ((0, 0, 128, 1024), (2048, 0, 0, 0))]
    assert at == pytest.approx([404.865e-6, 172.609e-6], rel=1e-12)
    # 96 GB less 16 GB of weights, at 128 KiB a token.
    assert 25_000 < profile.kv_blocks() < 40_000


def expert_us(tokens: float, activated: float) -> float:
    """Each activated expert's weights are read, each token costs a little."""
    return 10 + 6 * activated + 0.05 * tokens


def test_experts_cost_what_their_expected_number_costs(tmp_path: Path) -> None:
    folder = write_profile(tmp_path / "tp1")
    # 16 experts, two a token, on one device and spread over two.
    rows = [
        f"{ep},{tokens},{activated},{expert_us(tokens, activated)}"
        for ep in (1, 2)
        for tokens in (1, 2, 8, 64, 512, 2048)
        for activated in (1, 2, 4, 8, 16)
        if 2 // ep <= activated <= min(2 * tokens, 16 // ep)
    ]
    (folder / "moe.csv").write_text("\n".join(["ep,tokens,activated_experts,time_us", *rows]) + "\n")
    plain = by_hand(0, 0, 8, 300, 8)
    alone = Profile(str(folder))
    # Eight tokens choose two of 16 each: an expert is missed by all with probability (14 / 16)^8.
    share = 1 - (14 / 16) ** 8
    assert alone.step_time(0, 8, 2400) == pytest.approx(
        plain + LAYERS * expert_us(8, 16 * share) * 1e-6, rel=1e-9
    )
    # Two replicas of equal load share 8 experts on each device: tokens of both, half of the experts.
    spread = Profile(str(folder), expert_parallel_size=2)
    missed = (14 / 16) ** 16
    assert spread.step_time(0, 8, 2400) == pytest.approx(
        plain + LAYERS * expert_us(16, 8 * (1 - missed)) * 1e-6, rel=1e-9
    )
    assert alone.advance(3, 8, 2400) == pytest.approx(
        sum(alone.step_time(0, 8, 2400 + 8 * i) for i in range(3)), rel=1e-12
    )
    with pytest.raises(InputError, match="no times for ep = 4, only for 1, 2"):
        Profile(str(folder), expert_parallel_size=4)
    # Measured on one device only, half of the experts work on half of the tokens.
    older = write_profile(tmp_path / "older" / "tp1")
    one = [row.removeprefix("1,") for row in rows if row.startswith("1,")]
    (older / "moe.csv").write_text("\n".join(["tokens,activated_experts,time_us", *one]) + "\n")
    assert Profile(str(older)).step_time(0, 8, 2400) == alone.step_time(0, 8, 2400)
    assert Profile(str(older), expert_parallel_size=2).step_time(0, 8, 2400) == pytest.approx(
        plain + LAYERS * expert_us(8, 8 * (1 - missed)) * 1e-6, rel=1e-9
    )


def test_attention_by_mean_keys_is_attention_by_cached_tokens(tmp_path: Path) -> None:
    profile = Profile(str(write_profile(tmp_path / "old" / "tp1")))
    folder = write_profile(tmp_path / "new" / "tp1")
    lines = ["layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us"]
    for row in (folder / "attention.csv").read_text().splitlines()[1:]:
        chunk, cached, requests, context, us = row.split(",")
        key = float(cached) + 0.5 * float(chunk)
        lines.append(f"attention,{chunk},{key},{requests},{context},1,{us}")
        lines.append(f"attention,{chunk},{key},{requests},{context},2,{10 * float(us)}")
        lines.append(f"linear_attention,{chunk},{key},{requests},{context},1,{9 * float(us)}")
    (folder / "attention.csv").write_text("\n".join(lines) + "\n")
    newer = Profile(str(folder))
    for chunks, requests, context in (([(128, 512)], 8, 2400), ([], 32, 9600), ([(32, 0)] * 8, 0, 0)):
        assert newer.chunk_time(chunks, requests, context) == pytest.approx(
            profile.chunk_time(chunks, requests, context), rel=1e-12
        )
    other = write_profile(tmp_path / "other" / "tp1")
    (other / "attention.csv").write_text("\n".join([lines[0], "other,0,0,1,16,1,5"]) + "\n")
    with pytest.raises(InputError, match="no rows of layer attention"):
        Profile(str(other))
