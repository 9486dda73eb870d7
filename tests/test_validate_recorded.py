"""A recorded run is read field by field, and a run made by a known overhead gives that overhead back.

Truth: runs written here in the public layout by the simulator itself, and the public recording of a real
vLLM server, whose every mean, p50 and p99 must be met within 3% on the half that the fit did not see.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import main
from experiments.validate.recorded import Recording, read_recording
from experiments.validate.recorded_report import report
from experiments.validate.replay import figures, fit_overhead, fitted_half, metrics, replay
from sim import ContinuousBatching, simulate
from sim.latency import Profile
from tests.test_profile import write_profile
from traces import Trace
from traces.errors import InputError

LIMITS = {"max_num_seqs": 8, "max_num_batched_tokens": 256}
UNIX = 1_700_000_000.0
MONOTONIC = 4_000.0


def some_requests(count: int = 40) -> Trace:
    rng = np.random.default_rng(11)
    return Trace(
        request_id=np.arange(count),
        arrival_s=np.concatenate([[0.0], np.sort(rng.uniform(0, 1.0, count - 1))]),
        prompt_tokens=rng.integers(10, 700, count).astype(np.int32),
        output_tokens=rng.integers(2, 90, count).astype(np.int32),
    )


def write_recording(folder: Path, profile: Profile, kv: dict[str, int] | None = None) -> Path:
    """What a server with these layer times and this overhead would have recorded."""
    trace = some_requests()
    result = simulate(
        trace, batching=ContinuousBatching(**LIMITS, num_blocks=400, async_scheduling=True), latency=profile
    )
    folder.mkdir()
    lines = [
        json.dumps(
            {
                "request_id": f"bench-{row['request_id']}",
                "input_toks": row["prompt_tokens"],
                "output_toks": row["output_tokens"],
                "arrival_time": UNIX + row["arrival_s"],
                "queued_ts": MONOTONIC + row["arrival_s"],
                "first_token_ts": MONOTONIC + row["first_token_s"],
                "last_token_ts": MONOTONIC + row["completion_s"],
            }
        )
        for row in result.records.to_dicts()
    ]
    (folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
    meta = {
        "model": "some/Model-1B",
        "vllm_version": "0.19.0",
        "engine_kwargs": {**LIMITS, "max_model_len": None},
    }
    (folder / "meta.json").write_text(json.dumps(meta | ({"kv_cache": kv} if kv else {})))
    (folder / "timeseries.csv").write_text("t,running,waiting\r\n0.5,3,1\r\n1.0,8,2\r\n")
    return folder


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    return Profile(str(write_profile(tmp_path / "gpu" / "bf16" / "tp1")), a=2e-3, b=2e-5)


def test_a_recording_is_read_on_one_clock(tmp_path: Path, profile: Profile) -> None:
    kv = {"num_gpu_blocks": 400, "block_size": 16}
    recording = read_recording(write_recording(tmp_path / "run", profile, kv))
    assert recording.limits == {**LIMITS, "block_size": 16, "num_blocks": 400, "enable_prefix_caching": True}
    assert (recording.replicas, recording.tensor_parallel_size, recording.async_scheduling) == (1, 1, True)
    assert recording.trace.arrival_s == pytest.approx(some_requests().arrival_s, abs=1e-6)
    assert recording.queued_s == pytest.approx(some_requests().arrival_s, abs=1e-6)
    assert recording.series["waiting"].tolist() == [1, 2]
    ttft = metrics(recording, recording)["TTFT"]
    assert ttft == pytest.approx(recording.first_token_s - recording.queued_s)


def test_the_cache_of_one_replica_is_its_share_of_all(tmp_path: Path, profile: Profile) -> None:
    folder = write_recording(tmp_path / "run", profile, {"num_gpu_blocks": 400, "block_size": 16})
    meta = json.loads((folder / "meta.json").read_text())
    meta["engine_kwargs"] |= {"data_parallel_size": 2, "enable_expert_parallel": True}
    (folder / "meta.json").write_text(json.dumps(meta))
    recording = read_recording(folder)
    assert (recording.replicas, recording.expert_parallel_size) == (2, 2)
    assert recording.limits["num_blocks"] == 200
    # Where only the tokens are told, the blocks follow.
    meta["kv_cache"] = {"block_size": 32, "num_kv_tokens": 3200}
    (folder / "meta.json").write_text(json.dumps(meta))
    assert read_recording(folder).limits["num_blocks"] == 50


def test_without_an_overhead_to_fit_a_run_of_the_simulator_is_met_exactly(
    tmp_path: Path, profile: Profile
) -> None:
    recording = read_recording(write_recording(tmp_path / "run", profile))
    run = replay(recording, profile, 400, None)
    assert run.judged.all()
    assert run.completion_s == pytest.approx(recording.completion_s, rel=1e-5)
    assert max(abs(f.error) for f in figures(recording, run, run.judged) if "TTFT" not in f.name) < 1e-5


def test_the_fit_finds_the_overhead_from_half_of_the_requests(tmp_path: Path, profile: Profile) -> None:
    true = dataclasses.replace(profile, mixed="apart")
    recording = read_recording(write_recording(tmp_path / "run", true))
    batching = ContinuousBatching(**LIMITS, num_blocks=400, async_scheduling=True)
    found = fit_overhead(recording, Profile(profile.dir), batching, fitted_half(recording, "early"))
    # A step's and a token's cost make up for each other, and so does, in 40 requests, the kind of mixed attention:
    # what is found is the overhead of steps as they occurred.
    for tokens in (4, 16, 40):
        assert found.a + found.b * tokens == pytest.approx(2e-3 + 2e-5 * tokens, rel=0.03)


def test_the_queue_is_heard_of_at_the_end_of_a_step(tmp_path: Path, profile: Profile) -> None:
    recording = read_recording(write_recording(tmp_path / "run", profile))
    run = replay(recording, profile, 400, None)
    late = run.queued_s - recording.trace.arrival_s
    assert (late >= 0).all()
    assert run.queued_s[0] == 0.0
    assert (late[1:] > 0).mean() > 0.5  # a busy server
    assert (run.queued_s <= run.first_token_s).all()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("meta.json", "[]", "is not an object"),
        ("meta.json", '{"engine_kwargs": {}}', "tells no max_num_seqs"),
        ("requests.jsonl", "", "holds no requests"),
        ("requests.jsonl", '{"request_id": "a"}\n', "requests.jsonl:1 is not a request"),
        ("timeseries.csv", "t,running\n1,2\n", "timeseries.csv cannot be read"),
    ],
)
def test_a_faulty_recording_is_refused_by_place(
    tmp_path: Path, profile: Profile, file: str, content: str, message: str
) -> None:
    folder = write_recording(tmp_path / "run", profile)
    (folder / file).write_text(content)
    with pytest.raises(InputError, match=message):
        read_recording(folder)


def test_times_out_of_order_are_refused(tmp_path: Path, profile: Profile) -> None:
    folder = write_recording(tmp_path / "run", profile)
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rows[3]["last_token_ts"] = rows[3]["queued_ts"] - 1
    (folder / "requests.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=r"requests.jsonl:4: queue, first and last token are out of order"):
        read_recording(folder)


def test_the_command_prints_the_table_and_writes_the_plots(
    tmp_path: Path, profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_recording(tmp_path / "run", profile)
    arguments = ["validate", "--recorded", str(folder), "--profile", profile.dir, "--num-blocks", "400"]
    assert main([*arguments, "--fit", "none", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "some/Model-1B" in printed
    assert "p99 JCT s" in printed
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"requests.csv", "queue.png", "queue.svg", "times.png", "times.svg"}
    assert main(["validate", "--recorded", str(folder)]) == 2
    assert "belong together" in capsys.readouterr().err


@pytest.fixture(scope="module")
def gpu_run(reference: Path) -> Recording:
    return read_recording(reference / "data/3_latency/llmservingsim_bench/RTXPRO6000/Llama-3.1-8B")


def test_the_public_recording_has_the_figures_of_its_manifest(gpu_run: Recording) -> None:
    # TTFT 7,097.2 / 9,442.7 / 20,270.7 ms (mean, p50, max) and TPOT 32.5 / 33.4 ms: the data's own description.
    ttft, tpot = (metrics(gpu_run, gpu_run)[name] for name in ("TTFT", "TPOT"))
    assert (ttft.mean(), np.median(ttft), ttft.max()) == pytest.approx((7.0972, 9.4427, 20.2707), abs=1e-4)
    assert (tpot.mean(), np.median(tpot)) == pytest.approx((0.0325, 0.0334), abs=1e-4)
    assert gpu_run.limits == {
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": True,
    }


def test_the_public_recording_is_met_within_3_percent(gpu_run: Recording, reference: Path) -> None:
    """The constants are near those that the fit on the earlier half finds (docs/fidelity.md)."""
    profile = Profile(str(reference / "data/3_latency/llmservingsim_profile"), a=A, b=B, mixed="apart")
    run = replay(gpu_run, profile, None, None)
    rows = ~fitted_half(gpu_run, "early")
    assert max(abs(figure.error) for figure in figures(gpu_run, run, rows)) <= 0.03
    assert max(abs(f.error) for f in figures(gpu_run, run, np.ones(len(rows), bool))) <= 0.03
    assert "judged" in report(gpu_run, run)
    assert np.abs(run.running - gpu_run.series["running"]).mean() < 2


A, B = 1.3e-3, 5.1e-6


@pytest.mark.slow
def test_the_fit_on_half_of_the_public_recording_holds_for_the_other_half(
    gpu_run: Recording, reference: Path
) -> None:
    profile = Profile(str(reference / "data/3_latency/llmservingsim_profile"))
    run = replay(gpu_run, profile, None, "early")
    judged = ~fitted_half(gpu_run, "early")
    assert run.judged.tolist() == judged.tolist()
    assert max(abs(figure.error) for figure in figures(gpu_run, run, judged)) <= 0.03
