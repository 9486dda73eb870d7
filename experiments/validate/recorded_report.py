"""What a replayed recording says: the table, the errors a request, the queue over time, and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.style import BLUE, DASHED, GREY, VERMILION, new_figure, plot_style, save_figure
from experiments.validate.figures import render
from experiments.validate.recorded import Recording
from experiments.validate.replay import Replay, figures, metrics, per_request
from traces.files import atomic_path


def report(recording: Recording, run: Replay) -> str:
    """The text that `estp validate --recorded` prints."""
    everybody = np.ones(len(recording.trace), bool)
    groups = {"judged": figures(recording, run, run.judged)}
    if not run.judged.all():
        groups["all"] = figures(recording, run, everybody)
    return "\n".join([*_facts(recording, run), "", render(groups, "requests"), "", *_errors(recording, run)])


def write(recording: Recording, run: Replay, folder: Path) -> None:
    """Write ``requests.csv`` and the plots ``queue`` and ``times``."""
    with atomic_path(folder / "requests.csv") as temporary:
        per_request(recording, run).write_csv(temporary)
    with plot_style():
        if recording.series:
            _plot_queue(recording, run, folder)
        _plot_times(recording, run, folder)


def _facts(recording: Recording, run: Replay) -> list[str]:
    latency, limits = run.latency, recording.limits
    count = int(run.judged.sum())
    known = "recorded" if limits.get("num_blocks") == run.num_blocks else "not recorded"
    scheduling = "asynchronous" if recording.async_scheduling else "synchronous"
    caching = "with" if limits["enable_prefix_caching"] else "without"
    return [
        f"{recording.model} on {latency.measured.gpu}, vLLM {recording.vllm_version}: "
        f"{len(recording.trace)} requests, {recording.replicas} x {recording.tensor_parallel_size} GPU",
        f"max_num_seqs {limits['max_num_seqs']}, max_num_batched_tokens {limits['max_num_batched_tokens']}, "
        f"{run.num_blocks} KV blocks ({known}), {scheduling} scheduling, {caching} prefix caching",
        f"engine: {latency.a * 1e3:.3g} ms a step and {latency.b * 1e6:.3g} us a token, attention of prefill and "
        f"decode {latency.mixed}"
        + (f", fitted on the other {len(run.judged) - count} requests" if count < len(run.judged) else ""),
    ]


def _errors(recording: Recording, run: Replay) -> list[str]:
    real, simulated = metrics(recording, recording), metrics(recording, run)
    lines = ["error of single requests (judged), of the measured value:"]
    for name in real:
        error = np.abs(simulated[name] / real[name] - 1)[run.judged]
        error = error[np.isfinite(error)]
        p50, p90 = np.quantile(error, [0.5, 0.9])
        lines.append(
            f"  {name}: mean {error.mean():.1%}, p50 {p50:.1%}, p90 {p90:.1%}, max {error.max():.1%}"
        )
    for name in ("running", "waiting") if recording.series else ():
        told = recording.series[name]
        off = getattr(run, name) - told
        lines.append(
            f"{name} at the recorded ticks: mean {told.mean():.1f}, simulated {told.mean() + off.mean():.1f}, "
            f"off by {np.abs(off).mean():.1f} in the mean and {np.abs(off).max():.0f} at most"
        )
    lines.append(f"preemptions simulated: {run.preemptions}")
    return lines


def _plot_queue(recording: Recording, run: Replay, folder: Path) -> None:
    figure, panels = new_figure(rows=2, height=1.4, sharex=True)
    for axes, name in zip(panels, ("running", "waiting"), strict=True):
        axes.step(recording.series["t"], recording.series[name], color=GREY, where="post", label="recorded")
        axes.plot(recording.series["t"], getattr(run, name), color=BLUE, linestyle=DASHED, label="simulated")
        axes.set_ylabel(f"{name} (requests)")
    panels[-1].set_xlabel("time (s)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    save_figure(figure, folder, "queue")


def _plot_times(recording: Recording, run: Replay, folder: Path) -> None:
    figure, panels = new_figure(rows=3, height=2.6)
    real, simulated = metrics(recording, recording), metrics(recording, run)
    for axes, name in zip(panels, real, strict=True):
        for rows, colour, marker, label in (
            (run.judged, VERMILION, "o", "judged"),
            (~run.judged, GREY, "x", "fitted on"),
        ):
            if rows.any():
                look: dict[str, Any] = {
                    "color": colour,
                    "marker": marker,
                    "linestyle": "none",
                    "markersize": 2,
                }
                axes.plot(real[name][rows], simulated[name][rows], label=label, **look)
        axes.axline((0, 0), slope=1, color="black", linewidth=0.6)
        axes.set(xlabel=f"recorded {name} (s)", ylabel=f"simulated {name} (s)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    save_figure(figure, folder, "times")
