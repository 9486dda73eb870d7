"""A sweep's cells are the runs of `compare`; the table has the same bytes however often it was cut short or spread.

Truth: `experiments.compare` on the same settings, and an uninterrupted sweep on one process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import environment, files, wait_for, write_trace

from experiments.cli import main
from experiments.compare import Setup, compare
from experiments.sweep import Plan, read_plan, render, standings, sweep
from sim import Affine, ContinuousBatching, StaticBatching
from traces import Estimates, InputError, read_trace, write_estimates
from traces.arrivals import Arrivals

LATENCY = "affine,a=0.01,b=0.0001,c=0.001,d=0.000001"
YAML = f"""
trace: t.csv
arrivals: poisson
replications: 2
num_prompts: 20
latency: {LATENCY}
grid:
  policy: [fcfs, sjf]
  request_rate: [2, 1e1]
  server:
    - {{batching: static, batch_size: 4}}
    - {{batching: continuous, max_num_seqs: 4, num_blocks: 100}}
"""
CELLS = 16


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace of 30 requests and a sweep of it, as the working directory."""
    monkeypatch.chdir(tmp_path)
    write_trace(tmp_path / "t.csv")
    (tmp_path / "s.yaml").write_text(YAML)
    return tmp_path


def test_cells_are_the_runs_of_compare(folder: Path) -> None:
    done = sweep(read_plan("s.yaml"), "out", workers=1)
    assert done.table is not None
    assert (len(done.table), done.failed, done.missing) == (CELLS, [], 0)
    servers: dict[str, Any] = {
        "static": StaticBatching(batch_size=4),
        "continuous": ContinuousBatching(max_num_seqs=4, num_blocks=100),
    }
    for rate in (2.0, 10.0):
        for name, batching in servers.items():
            server = {"batching": batching, "latency": Affine(a=0.01, b=1e-4, c=1e-3, d=1e-6)}
            setup = Setup(("fcfs", "sjf"), (0, 1), Arrivals("poisson", rate), 20, server)
            expected = compare(read_trace("t.csv"), setup)
            part = done.table.filter(pl.col("request_rate") == rate, pl.col("batching") == name)
            assert len(part) == 4
            for row in part.iter_rows(named=True):
                metrics = expected.results[row["policy"], row["seed"]].metrics
                assert {key: row[key] for key in metrics} == pytest.approx(metrics, nan_ok=True, abs=0)
            (one,) = standings(part, "mean_jct_s")
            for policy in ("fcfs", "sjf"):
                assert one.values[policy] == expected.interval(policy, "mean_jct_s")
            assert one.best == expected.best("mean_jct_s")
            gap = expected.difference("fcfs", "sjf", "mean_jct_s")
            assert (one.within == ["fcfs"]) == (gap.includes_zero and one.best == "sjf")


def test_rows_are_in_the_order_of_the_grid_with_the_settings_that_vary(folder: Path) -> None:
    done = sweep(read_plan("s.yaml"), "out", workers=1)
    assert done.table is not None
    assert done.table.columns[:6] == [
        "policy",
        "request_rate",
        "batching",
        "batch_size",
        "max_num_seqs",
        "num_blocks",
    ]
    rows = done.table.select("policy", "request_rate", "batching", "batch_size", "seed").rows()
    assert rows[:4] == [
        ("fcfs", 2.0, "static", 4, 0),
        ("fcfs", 2.0, "static", 4, 1),
        ("fcfs", 2.0, "continuous", None, 0),
        ("fcfs", 2.0, "continuous", None, 1),
    ]
    assert [row[0] for row in rows] == ["fcfs"] * 8 + ["sjf"] * 8
    assert pl.read_parquet("out/results.parquet").equals(done.table)
    assert len((folder / "out/results.csv").read_text().splitlines()) == CELLS + 1


def test_workers_and_shards_change_no_byte(folder: Path) -> None:
    sweep(read_plan("s.yaml"), "one", workers=1)
    sweep(read_plan("s.yaml"), "two", workers=2)
    expected = files(folder / "one")
    assert files(folder / "two") == expected
    left = []
    for i in (2, 3, 1):
        told: list[str] = []
        done = sweep(read_plan("s.yaml"), "parts", workers=1, shard=(i, 3), say=told.append)
        assert told == []
        left.append(done.missing)
        assert (done.table is None) == (done.missing > 0)
    assert left == [11, 6, 0]
    assert files(folder / "parts") == expected


@settings(max_examples=8)
@given(data=st.data())
def test_a_sweep_goes_on_from_any_state_of_its_folder(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("sweep")
    write_trace(folder / "t.csv")
    fixed = {"trace": str(folder / "t.csv"), "arrivals": "burst", "num_prompts": 5, "latency": LATENCY}
    plan = Plan({**fixed, "replications": 2}, {"policy": ["fcfs", "sjf", "random"]})
    sweep(plan, folder / "out", workers=1)
    expected = files(folder / "out")
    cells = sorted((folder / "out/cells").iterdir())
    fate = data.draw(st.lists(st.sampled_from(["kept", "gone", "cut"]), min_size=6, max_size=6))
    kept = {}
    for path, what in zip(cells, fate, strict=True):
        if what == "kept":
            kept[path] = path.stat().st_mtime_ns
        elif what == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-40])
    (folder / "out/results.parquet").unlink()
    told: list[str] = []
    sweep(plan, folder / "out", workers=1, say=told.append)
    assert files(folder / "out") == expected
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    assert told == (
        [f"{len(kept)} of 6 cells are in {folder / 'out'} already; {6 - len(kept)} to go"] if kept else []
    )


SLOW = """
import time
class Slow:
    def __call__(self, request, now_s):
        time.sleep(0.02)
        return request.prompt_tokens
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "experiments.cli", "sweep", "s.yaml", *arguments]


def test_killed_and_run_again(folder: Path) -> None:
    (folder / "slow.py").write_text(SLOW)
    text = YAML.replace("[fcfs, sjf]", "[fcfs, slow.py:Slow]").replace(
        "request_rate: [2, 1e1]", "request_rate: [2]"
    )
    (folder / "s.yaml").write_text(text)
    cells = folder / "out/cells"

    def ended() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in cells.glob("*.json")} if cells.is_dir() else {}

    process = subprocess.Popen(
        command("--out", "out", "--workers", "2"),
        env=environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(ended()) >= 3)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = ended()
    assert 3 <= len(before) < 8
    assert not (folder / "out/results.parquet").exists()

    again = subprocess.run(
        command("--out", "out"), env=environment(), capture_output=True, text=True, check=True
    )
    assert again.stderr == f"{len(before)} of 8 cells are in out already; {8 - len(before)} to go\n"
    after = ended()
    assert {name: after[name] for name in before} == before
    assert main(["sweep", "s.yaml", "--out", "whole", "--workers", "1"]) == 0
    left_over = {name for name in files(folder / "out") if name.endswith(".part")}
    assert {name: data for name, data in files(folder / "out").items() if name not in left_over} == files(
        folder / "whole"
    )


FAULTY = """
class Faulty:
    def __call__(self, request, now_s):
        if now_s > 4:
            raise KeyError("late")
        return 0.0
"""


def test_a_cell_that_fails_stops_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text(FAULTY)
    (folder / "s.yaml").write_text(YAML.replace("[fcfs, sjf]", "[fcfs, mine.py:Faulty]"))
    assert main(["sweep", "s.yaml", "--workers", "1"]) == 1
    out, err = capsys.readouterr()
    table = pl.read_parquet("out/s/results.parquet")
    failed = table.filter(pl.col("error").is_not_null())
    assert 0 < len(failed) < 8
    assert set(failed["policy"]) == {"mine.py:Faulty"}
    assert failed["mean_jct_s"].null_count() == len(failed)
    assert table.filter(pl.col("error").is_null())["mean_jct_s"].is_finite().all()
    first = failed.row(0, named=True)
    assert "policy mine.py:Faulty raised KeyError at mine.py:5 for request" in first["error"]
    assert str(folder) not in first["error"]
    assert "cell policy=mine.py:Faulty, request_rate=2.0, batching=static, batch_size=4" in err
    assert f"{len(failed)} cells failed; the same command tries them again" in err
    assert "Traceback" not in err
    assert "Faulty" in out

    # A mended policy is another policy: its cells are run again, the others are not.
    (folder / "mine.py").write_text(FAULTY.replace("4", "1e9"))
    assert main(["sweep", "s.yaml", "--workers", "1"]) == 0
    assert "8 of 16 cells are in out/s already; 8 to go" in capsys.readouterr().err


def test_a_failed_cell_is_tried_again_and_changed_input_is_another_cell(folder: Path) -> None:
    (folder / "s.yaml").write_text(YAML.replace("[fcfs, sjf]", "[fcfs, egtp]"))
    done = sweep(read_plan("s.yaml"), "out", workers=1)
    assert len(done.failed) == 8
    assert "'egtp'" in done.failed[0][1]
    told: list[str] = []
    sweep(read_plan("s.yaml"), "out", workers=1, say=told.append)
    assert told[0] == "8 of 16 cells are in out already; 8 to go"
    write_estimates([Estimates("egtp", np.arange(30), np.arange(30.0))], "e.parquet")
    (folder / "s.yaml").write_text("estimates: e.parquet" + YAML.replace("[fcfs, sjf]", "[fcfs, egtp]"))
    told.clear()
    assert not sweep(read_plan("s.yaml"), "out", workers=1, say=told.append).failed
    assert told == []


def test_a_policy_that_kills_its_process_loses_its_own_cells_only(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import os, signal\n\n\ndef kills(request, now_s):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    text = YAML.replace("[fcfs, sjf]", "[fcfs, mine.py:kills]").replace("replications: 2", "replications: 1")
    (folder / "s.yaml").write_text(text.replace("[2, 1e1]", "[2]"))
    done = sweep(read_plan("s.yaml"), "out", workers=2)
    assert [cell.policy for cell, _ in done.failed] == ["mine.py:kills"] * 2
    assert "its worker process was killed (out of memory?)" in done.failed[0][1]
    assert done.table is not None
    assert done.table["error"].null_count() == 2


def test_printed_table_marks_the_best_and_never_ranks_noise(folder: Path) -> None:
    text = YAML.replace("[fcfs, sjf]", '[fcfs, sjf, "shortest,predictor=oracle,sigma=0.0"]')
    (folder / "s.yaml").write_text(text.replace("replications: 2", "replications: 3"))
    done = sweep(read_plan("s.yaml"), "out", workers=1)
    assert done.table is not None
    shown = render(done.table)
    # The oracle twice can never be told apart.
    for one in standings(done.table, "mean_jct_s"):
        if one.best not in (None, "fcfs"):
            assert len({"sjf", "shortest,predictor=oracle,sigma=0.0"} & set(one.within)) == 1
    assert "± is a 95% t interval over 3 replications" in shown
    (folder / "s.yaml").write_text(YAML.replace("replications: 2", "replications: 1"))
    single = sweep(read_plan("s.yaml"), "single", workers=1)
    assert single.table is not None
    assert "One run a point tells nothing about noise" in render(single.table)
    assert "~" not in render(single.table)
    assert "... and 6 more rows: see results.csv" in render(single.table, rows=2)


def test_seeds_may_be_an_axis(folder: Path) -> None:
    fixed = {"trace": "t.csv", "arrivals": "burst", "latency": LATENCY, "policy": "random"}
    done = sweep(Plan(fixed, {"seed": [4, 7]}), "out", workers=1)
    assert done.table is not None
    assert done.table.select("policy", "seed").rows() == [("random", 4), ("random", 7)]
    with pytest.raises(InputError, match="comes twice"):
        Plan({**fixed, "replications": 2}, {"seed": [4, 5]}).cells()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("num_prompts: 20", "num_promts: 20"), "line 5: no setting is called 'num_promts'; did you mean num_prompts?"),
        (("  request_rate:", "  request_rat:"), "no setting is called 'request_rat'; did you mean request_rate?"),
        (("arrivals: poisson", "arrivals: poison"), "s.yaml, line 3: arrivals is 'poison'; did you mean poisson?"),
        (("replications: 2", "replications: two"), "s.yaml, line 4: replications is 'two'; it must be a whole number"),
        (("[2, 1e1]", "[2, fast]"), "s.yaml, line 9: request_rate is 'fast'; it must be a number"),
        (("sjf]", "sfj]"), "s.yaml, line 8: unknown policy 'sfj': did you mean sjf"),
        (("sjf]", "shortest,predictor=estp]"), "predictor=estp is no policy; in a list, quote a value that has commas"),
        (("batch_size: 4", "batch_sise: 4"), "line 11: no setting is called 'batch_sise'; did you mean batch_size?"),
        (("batch_size: 4", "max_num_seqs: 4"), "--max-num-seqs is not an option of static batching"),
        (("batch_size: 4", "batch_size: 0"), "batch_size = 0 must be a whole number, at least 1"),
        (("[fcfs, sjf]", "fcfs"), "s.yaml, line 8: the axis policy needs a list of values"),
        (("[fcfs, sjf]", "[fcfs, fcfs]"), "comes twice"),
        (("[fcfs, sjf]", "[mine.py:Mine]"), "line 8: policy file mine.py does not exist"),
        (("num_prompts: 20", "trace: u.csv"), "s.yaml, line 5: trace is in line 2 already"),
        (("num_prompts: 20", "request_rate: 3"), "line 9: request_rate is set by the settings of all cells too"),
        (("num_prompts: 20", "num_prompts: 31"), None),
        (("  policy: [fcfs, sjf]\n", ""), "s.yaml names no policy"),
        (("t.csv", "u.csv"), "there is no file u.csv"),
        (("t.csv", "'-'"), "line 2: a sweep cannot read standard input"),
        (("trace: t.csv", ""), "the sweep names no trace"),
        (("arrivals: poisson", "arrivals: recorded"), "a request rate is for poisson and gamma arrivals"),
        ((LATENCY, "affine,a=x"), "line 6: latency model 'affine,a=x': a = 'x' is not float"),
        ((LATENCY, "!!python/object/apply:os.getcwd []"), "s.yaml, line 6: could not determine a constructor"),
        (("[fcfs, sjf]", "[fcfs, sjf"), "s.yaml, line 9: expected ',' or ']'"),
        (("grid:\n", "grid: 3\nx:\n"), "line 7: grid needs axes"),
        ((YAML, "- 1"), "s.yaml holds no settings"),
        ((YAML, ""), "s.yaml holds no settings"),
        ((YAML, "estimates: none.parquet" + YAML), "there is no file none.parquet"),
        ((YAML, "router: nearest" + YAML), "line 1: unknown router 'nearest'"),
        ((YAML, "goodput: speed:5" + YAML), "line 1: goodput bound 'speed:5'"),
        ((YAML, "enable_chunked_prefill: 1" + YAML), "enable_chunked_prefill is 1; it must be true or false"),
    ],
)  # fmt: skip
def test_faults_of_the_file_end_in_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str | None
) -> None:
    assert change[0] in YAML
    (folder / "s.yaml").write_text(YAML.replace(*change))
    if message is None:  # only the run knows how many requests there are
        assert main(["sweep", "s.yaml", "--workers", "1"]) == 1
        assert "31 requests were asked for; the trace has 30" in capsys.readouterr().err
        return
    assert main(["sweep", "s.yaml", "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("estp: ")
    assert err.count("\n") == 1
    assert out == ""
    assert not (folder / "out/results.parquet").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "0/2"], "--shard '0/2' is not of the form i/n"),
        (["--shard", "3/2"], "--shard '3/2'"),
        (["--shard", "half"], "--shard 'half'"),
        (["--workers", "0"], "0 workers cannot work"),
        (["--address", "localhost:1"], "an address is for --backend ray or dask"),
        (["--out", "t.csv"], "t.csv is a file; name a folder"),
    ],
)
def test_faults_of_options(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["sweep", "s.yaml", *options]) == 2
    assert message in capsys.readouterr().err


@settings(max_examples=100)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-3, 9)
        | st.floats()
        | st.sampled_from(["fcfs", "poisson", "a,b=1"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["grid", "policy", "seed", "goodput", "arrivals", "estimates"]), inner
            )
        ),
    )
)
def test_any_yaml_is_a_plan_or_a_clear_error(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(json.dumps(content))
    # Whatever else it raises is a fault.
    with contextlib.suppress(InputError):
        read_plan(path).cells()
