"""Fits recover the coefficients that made the points, and a latency file gives back what was written."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import StaticBatching, simulate
from sim.latency import Affine, LatencyFile, Table, load_latency, read_latency_file
from sim.latency.fitting import FitError, Points, error_of, fit_affine
from sim.simulate import from_settings
from traces import Trace
from traces.errors import InputError

GRID = [(p, 0, 0) for p in (8, 64, 512)] + [(0, d, d * c) for d, c in itertools.product((1, 4, 8), (16, 400))]


def points_of(latency: Affine, noise: float = 0.0, seed: int = 0) -> Points:
    prefill, requests, context = np.array(GRID, np.float64).T
    seconds = latency.step_time(prefill, requests, context)
    seconds = seconds * (1 + noise * np.random.default_rng(seed).standard_normal(len(seconds)))
    return Points(prefill, requests, context, seconds, np.zeros(len(seconds)))


coefficient = st.floats(1e-7, 1e-2)


@given(a=coefficient, b=coefficient, c=coefficient, d=coefficient)
def test_the_fit_recovers_the_coefficients(a: float, b: float, c: float, d: float) -> None:
    true = Affine(a, b, c, d)
    fitted = fit_affine(points_of(true))
    assert error_of(fitted, points_of(true)).largest < 1e-6


def test_no_coefficient_falls_below_zero() -> None:
    fitted = fit_affine(points_of(Affine(a=0.01, b=1e-4), noise=0.02))
    assert min(dataclasses.astuple(fitted)) >= 0
    assert fitted.a == pytest.approx(0.01, rel=0.05)


def test_points_of_prefill_alone_make_no_model() -> None:
    with pytest.raises(InputError, match="no decode step was measured"):
        fit_affine(Points(np.arange(1, 9), np.zeros(8), np.zeros(8), np.arange(1, 9), np.zeros(8)))


def make_file(path: Path, use: str = "affine") -> LatencyFile:
    affine = Affine(0.01, 1e-4, 1e-3, 1e-6)
    table = Table([0, 100], [0, 8], [0, 1000], [[[0.02, 0.03], [0.04, 0.05]], [[0.1, 0.2], [0.3, 0.4]]])
    about = {"engine": "hf", "model": "tiny", "notes": ["quiet"]}
    errors = {"affine": FitError(3, 0.01, 0.02, -0.001)}
    file = LatencyFile(about, points_of(affine), affine, table, errors, use)
    file.write(path)
    return file


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    written = make_file(tmp_path / "cpu.json")
    read = read_latency_file(tmp_path / "cpu.json")
    assert (read.about, read.affine, read.table, read.errors, read.use) == (
        written.about,
        written.affine,
        written.table,
        written.errors,
        written.use,
    )
    assert read.points.seconds == pytest.approx(written.points.seconds, abs=1e-9)


def test_a_simulation_takes_the_file_and_can_be_run_again_without_it(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    file = make_file(path)
    assert load_latency(f"file={path}") == file.affine
    assert load_latency(f"file={path},use=table") == file.table
    ones = np.ones(3, np.int32)
    trace = Trace(request_id=np.arange(3), arrival_s=np.zeros(3), prompt_tokens=5 * ones, output_tokens=ones)
    result = simulate(trace, batching=StaticBatching(3), latency=f"file={path}")
    assert result.metrics["mean_jct_s"] == pytest.approx(0.01 + 15e-4)
    path.unlink()
    again = simulate(trace, **from_settings(result.settings))
    assert again.records.equals(result.records, null_equal=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("{}", "not of the schema"),
        ('{"schema": "estp-latency-1"}', "damaged"),
    ],
)
def test_a_faulty_file_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        load_latency(f"file={path}")


def test_an_unknown_use_is_refused(tmp_path: Path) -> None:
    make_file(tmp_path / "cpu.json")
    with pytest.raises(InputError, match="no model 'tabel'; it has affine, table"):
        load_latency(f"file={tmp_path / 'cpu.json'},use=tabel")
    with pytest.raises(InputError, match="not use=affine"):
        load_latency(f"file={tmp_path / 'cpu.json'},a=1")
