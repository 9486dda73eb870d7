"""An engine with known coefficients gives them back, and a simulation with them meets its runs exactly.

Truth: the synthetic engine's formula; a clock that only moves when the engine works or the loop sleeps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import main
from experiments.hf.calibration import Grid, calibrate, render
from experiments.hf.engine import BatchTimes, PaddedEngine
from experiments.hf.fidelity import Fidelity, compare, ranking, report
from experiments.hf.static_runs import StaticRun, ranks, read_run, run_static, write_run
from experiments.validate.figures import Figure, summaries, worst
from experiments.validate.figures import render as render_figures
from sim.latency import Affine, read_latency_file
from traces import Estimates, Trace
from traces.errors import InputError

TRUE = Affine(a=0.03, b=2e-3, c=4e-3, d=3e-6)


@dataclass
class Synthetic:
    """Takes the time that an affine model says, times noise, on a clock of its own."""

    noise: float = 0.0
    drift: float = 0.0
    now_s: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    references: int = 0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def run(self, prompts: Sequence[Sequence[int]], steps: int) -> BatchTimes:
        size, width = len(prompts), max(map(len, prompts))
        spans = [TRUE.step_time(size * width, 0, 0)]
        spans += [TRUE.step_time(0, size, size * (width + j)) for j in range(1, steps)]
        spans = [span * (1 + self.noise * self.rng.standard_normal()) for span in spans]
        self.now_s += sum(spans)
        return BatchTimes(spans[0], tuple(spans[1:]))

    def reference_s(self) -> float:
        self.references += 1
        return 0.001 * (1 + self.drift * self.references)

    def prompt(self, tokens: int, rng: np.random.Generator) -> list[int]:
        return [0] * tokens


def test_calibration_recovers_known_coefficients_within_one_percent() -> None:
    file = calibrate(Synthetic(), {"model": "known"}, Grid(), seed=0)
    for name in "abcd":
        assert getattr(file.affine, name) == pytest.approx(getattr(TRUE, name), rel=0.01)
    assert file.errors["affine"].largest < 1e-6
    assert file.errors["table"].largest < 0.01
    assert len(file.points) == 2 * (16 + 6)


def test_calibration_recovers_them_through_noise_and_says_so() -> None:
    quiet = calibrate(Synthetic(noise=0.002), {}, Grid(repeats=15), seed=0)
    for name in "abc":
        assert getattr(quiet.affine, name) == pytest.approx(getattr(TRUE, name), rel=0.01)
    assert not any("noisy" in note for note in quiet.about["notes"])
    assert any("noisy" in note for note in calibrate(Synthetic(noise=0.3), {}, Grid(), seed=0).about["notes"])
    assert any(
        "noisy" in note for note in calibrate(Synthetic(drift=0.02), {}, Grid(), seed=0).about["notes"]
    )


@pytest.mark.parametrize(
    "wrong", [{"repeats": 2}, {"batch_sizes": (4,)}, {"prompt_tokens": (64, 16)}, {"held_out_sizes": ()}]
)
def test_a_grid_that_cannot_be_fitted_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="calibration"):
        Grid(**wrong)  # type: ignore[arg-type]


def some_trace(count: int = 24, rate: float = 0.5) -> Trace:
    rng = np.random.default_rng(1)
    return Trace(
        request_id=np.array([f"r{i}" for i in range(count)]),
        arrival_s=np.concatenate([[0.0], np.cumsum(rng.exponential(1 / rate, count - 1))])
        if rate
        else np.zeros(count),
        prompt_tokens=rng.integers(5, 60, count).astype(np.int32),
        output_tokens=rng.integers(1, 40, count).astype(np.int32),
    )


def some_estimates(trace: Trace) -> dict[str, Estimates]:
    rng = np.random.default_rng(2)
    mean = trace.output_tokens * rng.uniform(0.5, 2, len(trace))
    return {"estp": Estimates(predictor="estp", request_id=trace.request_id, mean=mean)}


def serve(trace: Trace, policy: str, engine: Synthetic, repeat: int = 0) -> StaticRun:
    prompts = [[0] * int(tokens) for tokens in trace.prompt_tokens]
    rank = ranks(trace, policy, some_estimates(trace))
    batches = run_static(engine, prompts, trace, rank, 4, engine.clock, engine.sleep)
    return StaticRun("some", policy, repeat, 4, (0.001, 0.001), batches)


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "estp"])
@pytest.mark.parametrize("rate", [0.0, 0.5, 5.0])
def test_the_loop_and_the_simulator_serve_alike_if_steps_take_what_is_said(policy: str, rate: float) -> None:
    trace = some_trace(rate=rate)
    found = compare([serve(trace, policy, Synthetic())], trace, TRUE, some_estimates(trace))
    assert found.same_batches == 1
    assert found.padding[0] == found.padding[1]
    assert all(abs(figure.error) < 1e-9 for figure in found.figures)
    assert found.speed == pytest.approx(1)


def test_every_request_runs_once_with_its_own_length() -> None:
    trace = some_trace()
    run = serve(trace, "sjf", Synthetic())
    assert sorted(row for batch in run.batches for row in batch.rows) == list(range(len(trace)))
    first_s, end_s = run.times(len(trace))
    assert (first_s <= end_s).all()
    assert all(b.start_s >= a.end_s for a, b in zip(run.batches, run.batches[1:], strict=False))


def test_a_slower_machine_shows_as_an_error_and_as_its_speed() -> None:
    trace = some_trace(rate=0.0)
    slow = Affine(*(0.5 * value for value in (TRUE.a, TRUE.b, TRUE.c, TRUE.d)))
    found = compare([serve(trace, "fcfs", Synthetic())], trace, slow, {})
    assert found.figures[0].error == pytest.approx(-0.5)
    assert found.speed == pytest.approx(2)
    assert found.padding[0] == found.padding[1]


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "estp"])
def test_told_the_time_of_each_batch_the_simulator_forms_the_same_on_any_machine(policy: str) -> None:
    trace = some_trace(rate=3.0)
    slow = Affine(*(0.4 * value for value in (TRUE.a, TRUE.b, TRUE.c, TRUE.d)))
    found = compare([serve(trace, policy, Synthetic())], trace, slow, some_estimates(trace))
    assert found.same_batches < 1
    assert found.same_decisions == 1
    # By arrival it does not serve what was served by length: the share is no constant.
    turned = replace(serve(trace, "sjf", Synthetic()), policy="fcfs")
    assert compare([turned], trace, slow, {}).same_decisions < 1


def test_the_report_names_padding_order_and_the_worst_figure() -> None:
    trace = some_trace(rate=0.0)
    runs = [serve(trace, policy, Synthetic(), i) for i in range(2) for policy in ("fcfs", "sjf")]
    text = report(runs, {"some": trace}, TRUE, {})
    assert "order by mean JCT, real and simulated: sjf < fcfs" in text
    assert "padding the same, token for token" in text
    assert "worst of all" in text


def test_an_order_turned_within_the_noise_is_said_to_be_noise() -> None:
    def one(real: tuple[float, ...], simulated: float) -> Fidelity:
        return Fidelity([Figure("mean JCT s", real, (simulated,))], [], 1.0, 1.0, 1.0)

    assert "within the noise" in ranking({"a": one((1.0, 1.2), 1.3), "b": one((1.1, 1.25), 1.1)})
    assert "beyond the noise" in ranking({"a": one((1.0, 1.01), 1.3), "b": one((1.1, 1.25), 1.1)})


def test_a_run_is_read_as_written_and_not_for_other_settings(tmp_path: Path) -> None:
    run = serve(some_trace(), "fcfs", Synthetic())
    facts = {"model": "known", "batch_size": 4}
    write_run(run, facts, tmp_path / "run.json")
    assert read_run(tmp_path / "run.json", facts) == run
    with pytest.raises(InputError, match="another setting of batch_size"):
        read_run(tmp_path / "run.json", facts | {"batch_size": 8})
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be read"):
        read_run(tmp_path / "run.json")


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InputError, match="'egtp' is neither fcfs nor sjf"):
        ranks(some_trace(), "egtp", {})


def test_an_error_within_the_spread_counts_as_met() -> None:
    noisy, steady = Figure("x", (1.0, 1.2), (1.2,)), Figure("x", (1.0, 1.0), (1.2,))
    assert noisy.met
    assert not steady.met
    assert noisy.spread == pytest.approx(0.2 / 1.1)
    assert Figure("padding", (0.0, 0.0), (0.0,)).error == 0
    assert worst({"a": [noisy], "b": [steady]}) == ("b", steady)
    assert "!" in render_figures({"a": [steady]}).splitlines()[2]
    assert [f.name for f in summaries("JCT", "s", [1, np.nan], [2, np.nan])] == [
        "mean JCT s",
        "p50 JCT s",
        "p99 JCT s",
    ]


def test_a_real_model_is_calibrated_and_validated_by_the_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tiny LM: every batch really runs; only that padding agrees and nothing is run twice is asserted."""
    model = str(Path(__file__).parent / "data" / "tiny_lm")
    out = tmp_path / "latency.json"
    grid = ["--batch-sizes", "1", "4", "--prompt-tokens", "8", "32", "--held-out-sizes", "2"]
    arguments = ["--model", model, "--device", "cpu", "--repeats", "3"]
    assert main(["calibrate", *arguments, *grid, "--held-out-tokens", "16", "--out", str(out)]) == 0
    about = read_latency_file(out).about
    assert (about["engine"], about["model"], about["dtype"]) == ("hf", "tiny_lm", "float32")
    assert "/" not in json.dumps({key: about[key] for key in ("model", "versions")})
    assert "held-out points" in capsys.readouterr().out

    trace = tmp_path / "trace.jsonl"
    prompts = ["a b c", "one two three four", "x", "hello there", "again and again"]
    from predictor.backbone import load_backbone

    backbone = load_backbone(model, "cpu")
    rows = [
        {
            "arrival_s": 0,
            "prompt_tokens": len(backbone.encode(text)),
            "output_tokens": 3 * i + 2,
            "prompt": text,
        }
        for i, text in enumerate(prompts)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)) + "\n")
    validate = ["validate", str(trace), *arguments, "--latency", f"file={out}", "--num-prompts", "5"]
    validate += ["--batch-size", "2", "--rates", "inf", "--records", str(tmp_path / "runs")]
    assert main([*validate, "--budget-s", "0"]) == 1
    assert main(validate) == 0
    printed = capsys.readouterr().out
    assert printed.count("padding the same, token for token") == 2
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")}
    assert len(made) == 6
    assert main(validate) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.json")} == made


def test_a_padded_engine_times_every_step() -> None:
    from predictor.backbone import load_backbone

    ticks = iter(range(100))
    engine = PaddedEngine(
        load_backbone(str(Path(__file__).parent / "data" / "tiny_lm"), "cpu"), lambda: float(next(ticks))
    )
    assert engine.run([[1, 2, 3], [4]], 5) == BatchTimes(1.0, (1.0,) * 4)
    assert len(engine.prompt(7, np.random.default_rng(0))) == 7


def test_a_rendered_calibration_says_what_is_used() -> None:
    assert "used unless told otherwise: affine" in render(calibrate(Synthetic(), {}, Grid(), seed=0))
