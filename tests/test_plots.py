"""Plots show the numbers they are given, in each policy's own colour, as files that never change by the day."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex

from experiments import plots
from experiments.labels import label, labels
from experiments.plots import Bars, Curves
from experiments.stats import Interval
from experiments.style import POLICY_COLOURS, plot_style, save_figure


def test_cdf_ends_at_the_slowest_request() -> None:
    values = {"fcfs": np.array([1.0, 2.0, 4.0, 100.0]), "estp": np.array([1.0, 1.0, 2.0, 3.0])}
    with plot_style():
        axes = plots.jct_cdf(values).axes[0]
    for line, (policy, jct) in zip(axes.lines, values.items(), strict=True):
        x, y = line.get_data()
        assert line.get_label() == policy
        assert line.get_color() == POLICY_COLOURS[policy]
        assert (x[0], x[-1]) == (jct.min(), jct.max())
        assert (y[0], y[-1]) == (0, 1)
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "job completion time (s)"


def test_bars_have_lengths_intervals_and_units() -> None:
    values = {"fcfs": Interval(4.0, 1.0, "replications", 5), "sjf": Interval(2.0, float("nan"), "none", 1)}
    with plot_style():
        axes = plots.bars([Bars("mean JCT (s)", values, "lower")]).axes[0]
    assert [bar.get_width() for bar in axes.patches] == [4.0, 2.0]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == [
        POLICY_COLOURS["fcfs"].lower(),
        POLICY_COLOURS["sjf"].lower(),
    ]
    (drawn,) = axes.collections
    assert [segment[:, 0].tolist() for segment in drawn.get_segments()] == [[3.0, 5.0]]
    assert axes.get_xlabel() == "mean JCT (s)\n(lower is better)"


def three(*means: float) -> list[Interval]:
    return [Interval(mean, 0.1 * mean, "replications", 3) for mean in means]


def test_curves_show_lines_bands_levels_points_and_marks() -> None:
    panel = Curves(
        "load",
        "JCT (s)",
        [1.0, 2.0, 4.0],
        {"estp": three(1, 10, 100)},
        log="xy",
        levels={"fcfs": Interval(50.0, 5.0, "replications", 3)},
        points={"last": (3.0, Interval(20.0, 2.0, "replications", 3))},
        marks={"estp": 2.5},
        x_ticks={1.0: "one", 4.0: "four"},
    )
    with plot_style():
        figure = plots.curves([panel])
        figure.draw_without_rendering()
    (axes,) = figure.axes
    level, line, mark, point = axes.lines[:4]
    assert list(line.get_xdata()) == [1, 2, 4]
    assert list(line.get_ydata()) == [1, 10, 100]
    assert line.get_color() == mark.get_color() == POLICY_COLOURS["estp"]
    assert list(level.get_ydata()) == [50, 50]
    assert list(mark.get_xdata()) == [2.5, 2.5]
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (3, 20)
    band = max(axes.collections, key=lambda drawn: drawn.get_paths()[0].vertices[:, 1].max())
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(110)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("load", "JCT (s)")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one", "four"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["estp", "fcfs", "last"]


def test_curves_keep_an_even_axis_for_what_spans_little_and_say_a_shared_label_once() -> None:
    panels = [
        Curves("load", what, [1, 2], {"estp": three(2, 3)}, log="y") for what in ("JCT (s)", "wait (s)")
    ]
    with plot_style():
        figure = plots.curves(panels)
    assert [axes.get_yscale() for axes in figure.axes] == ["linear", "linear"]
    assert figure.get_supxlabel() == "load"
    assert [axes.get_xlabel() for axes in figure.axes] == ["", ""]
    assert [axes.get_ylabel() for axes in figure.axes] == ["JCT (s)", "wait (s)"]


def test_ttft_by_hit_share_groups_and_leaves_out_what_nobody_has() -> None:
    share, nan = np.array([0.0, 0.1, 0.25, 0.95, 1.0, np.nan]), np.nan
    runs = [(share, np.array([8.0, 2, 4, 1, 3, nan])), (share[:3], np.array([6.0, 3, 5]))]
    panel = plots.ttft_by_hit_share({"fcfs": runs})
    assert panel.x_ticks == {0: "0", 1: "0–25", 2: "90–100"}
    # The second replication has nobody with most of their prompt in the cache.
    assert [(value.mean, value.samples) for value in panel.lines["fcfs"]] == [(7, 2), (3.5, 2), (2, 1)]


def test_waiting_is_the_exact_time_average() -> None:
    # One waits from 0 to 2 and one from 1 to 4: areas 1, 2, 1, 1 in four bins of one second.
    edges = np.arange(5.0)
    waiting = plots.mean_waiting(np.array([0.0, 1.0]), np.array([2.0, 4.0]), edges)
    assert waiting.tolist() == [1, 2, 1, 1]
    # One that is never scheduled waits to the end.
    assert plots.mean_waiting(np.array([0.5]), np.array([np.nan]), edges).tolist() == [0.5, 1, 1, 1]


@pytest.mark.parametrize("n", [100, 3000])
def test_predictions_share_one_scale(n: int) -> None:
    true = np.linspace(1, 1000, n)
    with plot_style():
        figure = plots.predicted_against_true(
            {"egtp": true, "estp": true * 2}, true, {"egtp": 0.0, "estp": 500.5}
        )
    first, second = figure.axes[:2]
    assert first.get_xlim() == second.get_ylim()
    assert first.get_xscale() == second.get_yscale() == "log"
    assert second.get_title() == "estp:\nMAE 500.5 tokens"


def test_files_have_the_same_bytes_again_and_leave_settings_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    pages = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        with plot_style():
            figure = plots.queue_length({"fcfs": np.arange(9.0)}, {"fcfs": np.arange(9.0) * 2})
            paths = save_figure(figure, folder, "queue")
        assert [path.name for path in paths] == ["queue.png", "queue.svg"]
        pages.append([path.read_bytes() for path in paths])
    assert pages[0] == pages[1]
    assert b"dc:date" not in pages[0][1]
    assert dict(matplotlib.rcParams) == before


def test_labels_are_short_and_differ() -> None:
    assert label("x/mine.py:Mine,weight=0.2") == "Mine (weight=0.2)"
    assert label("shortest,predictor=last") == "last"
    assert label("srpt,predictor=estp,limit=0.8") == "srpt (estp, limit=0.8)"
    assert label("aging,inner=shortest+predictor=last,rate=5") == "last + aging (rate=5)"
    assert label("starvation-cap,inner=mlfq") == "mlfq + starvation-cap"
    assert labels(["a.py:Mine", "b.py:Mine", "fcfs"]) == {
        "a.py:Mine": "a.py:Mine",
        "b.py:Mine": "b.py:Mine",
        "fcfs": "fcfs",
    }
