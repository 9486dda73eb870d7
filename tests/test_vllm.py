"""Runs of a vLLM engine against the simulation: a run made by the simulator itself agrees to the last step.

Coefficients are known where the steps were made from them; compositions are counted by hand. What a
real engine did is in test_vllm_recorded.py.
"""

from __future__ import annotations

import ast
import gzip
import json
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.validate.figures import Figure
from experiments.vllm import runner
from experiments.vllm.calibration import calibrate, fit_affine, grouped, total_error
from experiments.vllm.engine import EngineSettings, calibration_job, replay_job, run_job
from experiments.vllm.fidelity import compare, ranking, report, same_compositions, simulated
from experiments.vllm.recording import Recording, Steps, read_recording
from sim import Affine
from traces import Estimates, Trace
from traces.errors import InputError

TRUE = Affine(0.02, 0.0008, 0.0011, 2.5e-6)
LIMITS = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 512,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "policy": "fcfs",
    "block_size": 16,
    "num_blocks": 200,
    "enable_prefix_caching": True,
}
ABOUT = {
    "machine": "none",
    "model": "m",
    "dtype": "d",
    "versions": {},
    "date": "2026-01-01",
    "async_scheduling": False,
}


def trace_of(n: int, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    arrivals = np.concatenate([[0.0], np.cumsum(rng.exponential(0.4, n - 1))]).round(6)
    return Trace(
        np.arange(n),
        arrivals,
        rng.integers(5, 150, n).astype(np.int32),
        rng.integers(1, 60, n).astype(np.int32),
        priority=rng.integers(0, 50, n).astype(np.float64),
    )


def record(trace: Trace, policy: str, latency: Any = TRUE) -> Recording:
    """What the simulator does with the trace, in the form in which a real engine's run is written down."""
    limits = LIMITS | {"policy": "fcfs" if policy == "fcfs" else "priority"}
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.priority)
    names = ("id", "arrival_s", "prompt_tokens", "output_tokens", "priority")
    requests = [
        dict(zip(names, row, strict=True))
        for row in zip(range(len(trace)), *(np.asarray(column).tolist() for column in columns), strict=True)
    ]
    label = {"policy": policy, "repeat": 0}
    case = {"label": label, **ABOUT, "limits": limits, "requests": requests, "steps": []}
    recording = Recording(Path("made.json.gz"), case, policy, 0)
    result = simulated(recording, latency)
    assert result.steps is not None
    computed = dict.fromkeys(range(len(trace)), 0)
    steps: list[dict[str, Any]] = []
    for log in result.steps[0]:
        for i in range(log.steps):
            context = sum(computed[number] + 1 for number in log.decoding)
            prefill = sum(tokens for _, tokens in log.chunks)
            seconds = float(latency.step_time(prefill, len(log.decoding), context))
            start_s = steps[-1]["end_s"] if i else log.start_s
            tokens = dict(log.chunks) | dict.fromkeys(log.decoding, 1)
            steps.append(
                {
                    "step": len(steps),
                    "start_s": start_s,
                    "end_s": start_s + seconds,
                    "tokens": {str(number): count for number, count in tokens.items()},
                    "preempted": [],
                    "finished": sorted(log.finished) if i == log.steps - 1 else [],
                    "prefill_tokens": prefill,
                    "decode_requests": len(log.decoding),
                    "context_tokens": context,
                }
            )
            for number, count in tokens.items():
                computed[number] += count
    starts = np.array([step["start_s"] for step in steps])
    records = result.records.to_dicts()
    for request, row in zip(requests, records, strict=True):
        request["first_token_s"], request["completion_s"] = row["first_token_s"], row["completion_s"]
        request["arrival_step"] = int(np.searchsorted(starts, request["arrival_s"] - 1e-9))
    case["steps"] = steps
    return recording


@pytest.mark.parametrize("policy", ["fcfs", "estp"])
def test_a_run_of_the_simulator_is_simulated_without_error(policy: str) -> None:
    found = compare([record(trace_of(40), policy)] * 2, TRUE)
    assert [figure.error for figure in found.figures] == pytest.approx([0.0] * 10, abs=1e-9)
    assert [figure.spread for figure in found.figures] == pytest.approx([0.0] * 10, abs=1e-9)
    agreement = found.agreement
    assert (agreement.same, agreement.in_place) == (1.0, 1.0)
    assert agreement.replayed == agreement.steps > 200
    assert agreement.level == pytest.approx(1.0)


def test_a_slower_machine_is_told_apart_from_a_wrong_schedule() -> None:
    """Every step of the run takes a tenth longer: known, nothing is left of the error."""
    slower = Affine(*(1.1 * value for value in (TRUE.a, TRUE.b, TRUE.c, TRUE.d)))
    found = compare([record(trace_of(40), "fcfs", slower)], TRUE)
    assert found.agreement.level == pytest.approx(1.1)
    assert max(abs(figure.error) for figure in found.figures) > 0.05
    assert [figure.error for figure in found.at_speed] == pytest.approx([0.0] * 10, abs=1e-9)


def grid_steps(rng: np.random.Generator, lost: float = 0.0) -> Steps:
    """Steps of `TRUE` as the calibration grid makes them; ``lost``: chance of 50 ms lost in a step."""
    kinds = [(0, b, c * b) for b in (1, 2, 4) for c in (64, 512) for _ in range(16)]
    kinds += [(p, b, 200 * b) for b in (0, 1, 2) for p in (16, 64) for _ in range(4)]
    prefill, batch, context = (np.array(column, np.float64) for column in zip(*kinds, strict=True))
    seconds = np.asarray(TRUE.step_time(prefill, batch, context)) + 0.05 * (rng.random(len(kinds)) < lost)
    return Steps(prefill, batch, context, seconds)


def as_recorded(steps: Steps) -> list[dict[str, Any]]:
    names = ("prefill_tokens", "decode_requests", "context_tokens")
    return [
        {"tokens": {"0": 1}, "start_s": 0.0, "end_s": seconds, **dict(zip(names, row, strict=True))}
        for *row, seconds in zip(
            *(getattr(steps, name).tolist() for name in (*names, "seconds")), strict=True
        )
    ]


def test_known_coefficients_are_recovered() -> None:
    recording = record(trace_of(40), "fcfs")
    recording.case["grid"] = as_recorded(grid_steps(np.random.default_rng(0)))
    file = calibrate([recording])
    found, true = (np.array([one.a, one.b, one.c, one.d]) for one in (file.affine, TRUE))
    assert found == pytest.approx(true, rel=0.01)
    assert file.errors["affine"].largest < 0.01
    assert file.table is not None
    steps = recording.grid()
    assert total_error(file.table, steps) == pytest.approx(0.0, abs=0.01)
    assert file.about["limits"]["max_num_seqs"] == 4
    assert not any("noisy" in note for note in file.about["notes"])


def test_lost_time_is_part_of_the_fit_and_noise_is_said() -> None:
    """Medians would leave out the lost 50 ms; the sums of both models have them."""
    rng = np.random.default_rng(1)
    recording = record(trace_of(40), "fcfs")
    recording.case["grid"] = as_recorded(grid_steps(rng, lost=0.3))
    file = calibrate([recording])
    steps = recording.grid()
    assert file.table is not None
    assert total_error(file.affine, steps) == pytest.approx(0.0, abs=1e-9)
    assert total_error(file.table, steps) == pytest.approx(0.0, abs=1e-9)
    assert total_error(TRUE, steps) < -0.1
    assert any("noisy" in note for note in file.about["notes"])


def test_no_coefficient_is_negative() -> None:
    one = np.ones(4)
    falling = Steps(0 * one, one, np.array([1.0, 2, 3, 4]), np.array([4.0, 3, 2, 1]))
    assert fit_affine(falling).d == 0


def test_repeats_in_a_row_are_one_point() -> None:
    one = np.ones(4)
    points = grouped(
        Steps(0 * one, np.array([1.0, 1, 1, 2]), np.array([10.0, 11, 12, 30]), np.array([3.0, 1, 2, 5]))
    )
    assert points.seconds.tolist() == [2, 5]
    assert points.context_tokens.tolist() == [11, 30]
    assert points.spread.tolist() == [0.25, 0]


def test_same_compositions_by_hand() -> None:
    a, b, c = ((0, 5),), ((0, 1),), ((0, 1), (1, 1))
    assert same_compositions([a, b, b, c], [a, b, c, c]) == 3
    assert same_compositions([a, b, b, c], [b, b, b]) == 2
    assert same_compositions([], [a]) == 0


def test_the_report_ranks_the_policies() -> None:
    trace = trace_of(60)
    recordings = [record(trace, policy) for policy in ("fcfs", "estp")]
    text = report(recordings, TRUE)
    assert "fcfs: 60 requests, 1 real run," in text
    assert text.splitlines()[-1].endswith("the same order")
    first, second = (compare([recording], TRUE).figures for recording in recordings)
    swapped = {
        "fcfs": [Figure(a.name, a.real, b.simulated) for a, b in zip(first, second, strict=True)],
        "estp": [Figure(b.name, b.real, a.simulated) for a, b in zip(first, second, strict=True)],
    }
    assert ranking(swapped).endswith("not the same order")


SETTINGS = EngineSettings(Path("model"), max_model_len=512)


def test_jobs_carry_the_order_and_draw_no_trace() -> None:
    trace = trace_of(5)
    estimates = {"estp": Estimates("estp", np.arange(5)[::-1], np.array([5.0, 4, 3, 2, 1.2345]))}
    job = replay_job(trace, "estp", estimates, SETTINGS)
    assert [request["priority"] for request in job["requests"]] == [1234, 2000, 3000, 4000, 5000]
    assert job["engine"]["scheduling_policy"] == "priority"
    first = replay_job(trace, "fcfs", estimates, SETTINGS)
    assert {request["priority"] for request in first["requests"]} == {0}
    assert first["engine"]["scheduling_policy"] == "fcfs"
    drawn = calibration_job(SETTINGS, 3)
    assert drawn == calibration_job(SETTINGS, 3) != calibration_job(SETTINGS, 4)
    assert all(r["prompt_tokens"] + r["output_tokens"] < 512 for r in drawn["requests"])
    with pytest.raises(InputError, match="does not fit into max_model_len = 64"):
        replay_job(trace, "fcfs", {}, EngineSettings(Path("model"), max_model_len=64))


def write(recording: Recording, path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps(recording.case).encode()))


def test_a_finished_run_is_read_and_not_made_again(tmp_path: Path) -> None:
    trace = trace_of(30)
    settings = EngineSettings(Path("/somewhere/m"), max_num_seqs=4, max_num_batched_tokens=64, block_size=16)
    job = replay_job(trace, "fcfs", {}, settings)
    recording = record(trace.replace(priority=np.zeros(30)), "fcfs")
    write(recording, tmp_path / "run.json.gz")
    assert run_job(job, None, tmp_path / "run.json.gz").case == recording.case
    other = replay_job(trace_of(30, seed=1), "fcfs", {}, settings)
    with pytest.raises(InputError, match="the record of another job"):
        run_job(other, None, tmp_path / "run.json.gz")


def test_what_goes_wrong_with_the_environment_is_one_sentence(tmp_path: Path) -> None:
    job = replay_job(trace_of(3), "fcfs", {}, SETTINGS)
    out = tmp_path / "run.json.gz"
    with pytest.raises(InputError, match="name its interpreter with --python"):
        run_job(job, None, out)
    with pytest.raises(InputError, match="there is no interpreter"):
        run_job(job, tmp_path / "nowhere", out)
    # This environment has no vLLM, as that of a user who has not made one.
    with pytest.raises(InputError, match=r"vLLM failed \(exit code 1\): ModuleNotFoundError: .*'vllm'"):
        run_job(job, Path(sys.executable), out)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(silent.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(InputError, match=r"exit code 3\): no message"):
        run_job(job, silent, out)
    assert not out.exists()


def test_other_files_are_told_from_recorded_runs(tmp_path: Path) -> None:
    steps = Path(__file__).parent / "data/vllm_steps.json.gz"
    with pytest.raises(InputError, match=r"no run that estp recorded .* lacks label"):
        read_recording(steps)
    recording = record(trace_of(5), "fcfs")
    with pytest.raises(InputError, match="has no calibration grid"):
        calibrate([recording])


def test_the_runner_needs_nothing_of_this_package() -> None:
    tree = ast.parse(Path(runner.__file__).read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & {
        "experiments",
        "predictor",
        "sim",
        "traces",
        "numpy",
    }
