"""Every figure that a command writes is legible at the width of a column, and its lines differ without colour.

Truth: the figure itself as matplotlib lays it out. A column of a two-column paper is 3.3 inches wide; simulated
colour blindness is that of Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), table 1; distances are CIE 1976.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from figure_check import check_legible
from matplotlib.figure import Figure

from experiments import plots
from experiments.plots import Bars, Curves
from experiments.report import of_sweep
from experiments.stats import Interval
from experiments.stress import QUESTIONS
from experiments.stress.case import make_case
from experiments.style import plot_style
from experiments.trace_plots import trace_picture
from experiments.validate.recorded_report import _plot_queue, _plot_times
from traces import Estimates, Trace

MANY = (
    "fcfs", "sjf", "ljf", "random", "srpt", "las", "mlfq", "gittins", "cvar", "egtp", "estp", "trail", "ltr",
    "shortest,predictor=estp,sigma=0.5", "aging,inner=shortest+predictor=last,rate=5", "mine.py:Mine,weight=0.25",
    "a/long/way/to/the/policies/of/somebody.py:Same,weight=0.25", "another/long/way/somebody.py:Same,weight=0.25",
)  # fmt: skip
RNG = np.random.default_rng(0)


def some_trace(n: int, scale: float = 1.0, timed: bool = True) -> Trace:
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(0.2, n)) if timed else np.zeros(n)
    lengths = (rng.lognormal(4, 1.2, (2, n)) * scale).astype(int) + 1
    return Trace(np.arange(n), arrival, *lengths)


def estimates_of(trace: Trace, names: tuple[str, ...]) -> dict[str, Estimates]:
    lengths = trace.output_tokens
    return {
        name: Estimates(
            name, trace.request_id, lengths * np.random.default_rng(i).lognormal(0, 0.7, len(trace))
        )
        for i, name in enumerate(names)
    }


@pytest.mark.parametrize("count", [1, 4, len(MANY)])
@pytest.mark.parametrize("scale", [0.001, 1.0, 50_000.0])
def test_what_compare_draws(count: int, scale: float) -> None:
    names = list(MANY[:count])
    jct = {name: scale * RNG.lognormal(0, 2, 300) for name in names}
    start = {name: np.sort(RNG.uniform(0, scale, 300)) for name in names}
    value = {name: Interval(scale * (i + 1), scale, "replications", 3) for i, name in enumerate(names)}
    panels = [Bars("mean JCT (s)", value, "lower"), Bars("throughput (tokens/s)", value, "higher")]
    with plot_style():
        check_legible(plots.jct_cdf(jct))
        check_legible(plots.queue_length(start, {name: values + scale / 9 for name, values in start.items()}))
        check_legible(plots.bars(panels))


def test_bars_of_losses_have_their_room() -> None:
    values = {"estp": Interval(60.0, 5.0, "", 3), "scenario": Interval(-6.0, 30.0, "", 3)}
    with plot_style():
        figure = plots.bars([Bars("% of sjf's gain", values, "higher")])
    check_legible(figure)
    low, high = figure.axes[0].get_xlim()
    assert low <= -36
    assert high > 65


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize(("n", "scale"), [(50, 1), (3000, 200)])
def test_estimates_beside_the_truth(count: int, n: int, scale: int) -> None:
    trace = some_trace(n, scale)
    names = (
        "estp",
        "egtp",
        "semantic",
        "mean",
        "last",
        "scenario",
        "prompt-length",
        "egtp-literal",
        "constant",
    )
    means = {name: one.mean for name, one in estimates_of(trace, names[:count]).items()}
    with plot_style():
        check_legible(plots.predicted_against_true(means, trace.output_tokens, dict.fromkeys(means, 1234.5)))


@pytest.mark.parametrize("scale", [1.0, 3000.0])
@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("n", [20, 20_000])
def test_the_picture_of_a_trace(n: int, timed: bool, scale: float) -> None:
    with plot_style():
        check_legible(trace_picture(some_trace(n, scale, timed)))


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_stress_draws(question: str) -> None:
    trace = some_trace(60, 0.4, timed=False)
    estimates = estimates_of(trace, ("egtp", "estp", "scenario", "last", "prompt-length"))
    case = make_case(trace, estimates, num_requests=120, seeds=(0, 1))
    with plot_style():
        check_legible(import_module(QUESTIONS[question]).answer(case).figure())


def test_what_a_sweep_draws() -> None:
    metrics = {"mean_jct_s": "x", "output_throughput": "x"}
    x = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    for metric in metrics:
        lines = {name: [Interval(value * 20_000, value, "", 3) for value in x] for name in MANY}
        for log in ("", "x", "xy"):
            panel = Curves("request rate (requests/s)", of_sweep.UNITS[metric], x, lines, log=log)
            with plot_style():
                check_legible(plots.curves([panel]))


def kept(monkeypatch: pytest.MonkeyPatch, module: str) -> list[Figure]:
    """The figures that a module saves from now on."""
    figures: list[Figure] = []

    def keep(figure: Figure, folder: Path, stem: str) -> list[Path]:
        figures.append(figure)
        return []

    monkeypatch.setattr(f"{module}.save_figure", keep)
    return figures


def test_what_diagnose_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from experiments.diagnosis import Diagnosis, draw

    figures = kept(monkeypatch, "experiments.diagnosis")
    kinds = ("first", "chat template", "instruction", "punctuation", "numbers", "other")
    shares = {"tokens": 0.3, "attention": 0.9, "weight": 0.1}
    tenths = tuple(np.geomspace(0.9, 0.001, 10))
    one = Diagnosis(**{field.name: None for field in fields(Diagnosis)} | {
        "kinds": dict.fromkeys(kinds, shares), "positions": dict.fromkeys(("uniform", "attention", "weight"), tenths)
    })  # fmt: skip
    draw(one, "estp", tmp_path)
    check_legible(figures[0])


def test_what_validate_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    figures = kept(monkeypatch, "experiments.validate.recorded_report")
    n = 40
    trace = some_trace(n)
    start, ticks = trace.arrival_s, np.arange(n, dtype=float)

    def served(slower: float) -> dict[str, Any]:
        times = {"queued_s": start, "first_token_s": start + slower, "completion_s": start + 9 * slower}
        return {**times, "running": ticks * slower, "waiting": ticks}

    recording: Any = SimpleNamespace(trace=trace, **served(1), series={"t": ticks, **served(1)})
    run: Any = SimpleNamespace(**served(1.1), judged=ticks < 20)
    with plot_style():
        _plot_queue(recording, run, tmp_path)
        _plot_times(recording, run, tmp_path)
    for figure in figures:
        check_legible(figure)
