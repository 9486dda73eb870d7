"""`estp compare` from the command line: its files, the same bytes from a rerun, and nothing half written on errors.

Every fault that a person can make ends in exit code 2 and one sentence on standard error.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from experiments.cli import main
from traces import Estimates, write_estimates

ROOT = Path(__file__).parent.parent
HEAD = "arrival_s,prompt_tokens,output_tokens\n"
LATENCY = ["--latency", "affine,a=0.01,b=0.0001,c=0.001,d=0.000001"]
TIMES = ("jct", "ttft", "tpot", "queueing")
KEYS = (
    [f"{stat}_{what}_s" for what in TIMES for stat in ("mean", "p50", "p90", "p95", "p99")]
    + ["mean_slowdown", "output_throughput", "request_throughput", "goodput", "padding_ratio", "duration_s"]
    + ["busy_share", "occupancy", "completed", "rejected", "preemptions", "recomputed_tokens", "peak_kv_blocks"]
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace of 60 requests and two predictors' estimates, as the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 60, 60)
    arrivals = np.cumsum(rng.exponential(0.3, 60))
    rows = "".join(f"{a},{10 + i},{o}\n" for i, (a, o) in enumerate(zip(arrivals, lengths, strict=True)))
    (tmp_path / "t.csv").write_text(HEAD + rows)
    ids = np.arange(60)
    tables = [Estimates(name, ids, lengths + shift + 0.0) for name, shift in (("estp", 1), ("egtp", ids % 9))]
    write_estimates(tables, "e.parquet")
    return tmp_path


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_files_and_rerun(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = ["--arrivals", "poisson", "--rate", "5", "--replications", "2"]
    options = ["t.csv", "--estimates", "e.parquet", *LATENCY, *drawn, "--goodput", "ttft:900"]
    assert main(["compare", *options, "--out", "one", "--result-format", "vllm"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("policy")
    assert err == ""
    made = files(folder / "one")
    stems = ("jct_cdf", "jct", "padding_throughput", "queue_length", "predictions")
    pictures = {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    runs = {
        f"vllm-{i}-{p}-seed{s}.json" for i, p in enumerate(("fcfs", "sjf", "estp", "egtp")) for s in (0, 1)
    }
    assert set(made) == pictures | runs | {"summary.json", "records.parquet"}

    summary = json.loads(made["summary.json"])
    assert summary["schema_version"] == 1
    assert [(one["policy"], one["seed"]) for one in summary["runs"]] == [
        (policy, seed) for seed in (0, 1) for policy in ("fcfs", "sjf", "estp", "egtp")
    ]
    for one in summary["runs"]:
        assert set(KEYS) <= set(one["metrics"])
        assert one["settings"]["seed"] == one["seed"]
        assert one["settings"]["arrivals"] == {
            "kind": "poisson",
            "rate": 5.0,
            "burstiness": 1.0,
            "time_scale": 1.0,
        }
    assert summary["predictions"]["estp"]["mae_tokens"] == 1.0
    records = pl.read_parquet(folder / "one" / "records.parquet")
    assert len(records) == 60 * 4 * 2
    assert records.columns[:3] == ["policy", "seed", "request_id"]
    means = records.group_by("policy", "seed").agg(
        (pl.col("completion_s") - pl.col("arrival_s")).mean().alias("jct")
    )
    for policy, seed, jct in means.iter_rows():
        (run,) = (r for r in summary["runs"] if (r["policy"], r["seed"]) == (policy, seed))
        assert run["metrics"]["mean_jct_s"] == pytest.approx(jct)
    vllm = json.loads(made["vllm-0-fcfs-seed0.json"])
    assert vllm["mean_e2el_ms"] == pytest.approx(1000 * summary["runs"][0]["metrics"]["mean_jct_s"])
    assert vllm["request_rate"] == 5.0

    assert main(["compare", "--rerun", "one/summary.json", "--out", "two"]) == 0
    assert files(folder / "two") == made
    # Only what the comparison makes is replaced; a stale plot goes, a person's notes stay.
    (folder / "two" / "notes.txt").write_text("mine")
    assert main(["compare", "t.csv", *LATENCY, "--out", "two"]) == 0
    left = files(folder / "two")
    assert "predictions.png" not in left
    assert left["notes.txt"] == b"mine"
    assert [one["policy"] for one in json.loads(left["summary.json"])["runs"]] == ["fcfs", "sjf"]


def test_workers_change_nothing(folder: Path) -> None:
    options = ["compare", "t.csv", "--policy", "fcfs", "--policy", "random", *LATENCY, "--arrivals", "burst"]
    assert main([*options, "--replications", "2", "--out", "one"]) == 0
    command = [sys.executable, "-m", "experiments.cli", *options, "--replications", "2", "--workers", "2"]
    subprocess.run([*command, "--out", "two"], check=True, env=environment(), capture_output=True)
    assert files(folder / "two") == files(folder / "one")


def test_rerun_refuses_changed_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text("def Mine(request, now_s):\n    return request.prompt_tokens\n")
    assert main(["compare", "t.csv", *LATENCY, "--policy", "mine.py:Mine", "--out", "one"]) == 0
    capsys.readouterr()
    text = (folder / "t.csv").read_text()
    (folder / "t.csv").write_text(text + "99,1,1\n")
    assert main(["compare", "--rerun", "one/summary.json"]) == 2
    assert "t.csv is not the file that one/summary.json was made from" in capsys.readouterr().err
    (folder / "t.csv").write_text(text)
    (folder / "mine.py").write_text("def Mine(request, now_s):\n    return -request.prompt_tokens\n")
    assert main(["compare", "--rerun", "one/summary.json"]) == 2
    assert "mine.py is not the file" in capsys.readouterr().err


def test_skip_reports_what_it_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open("t.csv", "a") as file:
        file.write("99,0,1\n98,1,x\n")
    assert main(["compare", "t.csv", *LATENCY, "--on-error", "skip", "--out", "one"]) == 0
    err = capsys.readouterr().err
    assert "left out 2 rows of the trace" in err
    assert "line 62, column 'prompt_tokens': '0' is not a length" in err
    assert json.loads((folder / "one/summary.json").read_text())["inputs"][0]["dropped"]["count"] == 2


def test_continuous_batching_in_a_new_folder(folder: Path) -> None:
    limits = [
        "--batching",
        "continuous",
        "--max-num-seqs",
        "4",
        "--num-blocks",
        "50",
        "--no-enable-prefix-caching",
    ]
    assert main(["compare", "t.csv", *LATENCY, *limits, "--out", "deep/er"]) == 0
    (run, _) = json.loads((folder / "deep/er/summary.json").read_text())["runs"]
    settings = run["settings"]["batching"]
    assert (settings["max_num_seqs"], settings["num_blocks"]) == (4, 50)
    assert settings["enable_prefix_caching"] is False
    assert run["metrics"]["padding_ratio"] == 0
    assert main(["compare", "--rerun", "deep/er/summary.json", "--out", "again"]) == 0
    assert files(folder / "again") == files(folder / "deep/er")


BAD_POLICY = "class Bad:\n    def __call__(self, request, now_s):\n        return 1 / 0\n"
PEEKS = "def Peeks(request, now_s):\n    return request.output_tokens\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["none.csv"], "there is no file none.csv"),
        ([], "there is no trace"),
        (["t.csv", "--columns", "arrival_s"], "--columns 'arrival_s' is not of the form NAME=COLUMN"),
        (["t.csv", "--columns", "arrival_s=when"], "t.csv lacks the column 'when'"),
        (["t.csv", "--format", "azure-2o23"], "did you mean 'azure-2023'?"),
        (["zero.csv"], "zero.csv, line 2, column 'output_tokens': '0' is not a length"),
        (["word.csv"], "word.csv, line 3, column 'prompt_tokens': 'ten' is not a number"),
        (["back.csv"], "back.csv, line 3, column 'arrival_s': '0' is earlier than the row before"),
        (["twice.csv"], "twice.csv, line 3, column 'id': 'a' is the id of an earlier request"),
        (["lengths.csv"], "the trace has no arrival times"),
        (["t.csv", "--estimates", "none.parquet"], "there is no file none.parquet"),
        (["t.csv", "--estimates", "t.csv"], "t.csv is not readable as Parquet"),
        (["t.csv", "--estimates", "e.parquet", "--estimates", "e.parquet"], "'estp' is in an earlier"),
        (["t.csv", "--estimates", "few.parquet"], "'estp' has no estimate for requests 1, 2, 3 and 56 more"),
        (["t.csv", "--estimates", "more.parquet"], "'estp' has estimates for request 60 not in the trace"),
        (["t.csv", "--policy", "estp"], "'estp'"),
        (["t.csv", "--policy", "fcsf"], "did you mean fcfs"),
        (["t.csv", "--policy", "fcfs", "--policy", "fcfs"], "policy fcfs is given twice"),
        (["t.csv", "--policy", "bad.py:Bad"], "bad.py:3 for request 0: division by zero"),
        (["t.csv", "--policy", "bad.py:Worse"], "Worse"),
        (["t.csv", "--policy", "none.py:Bad"], "none.py"),
        (["t.csv", "--policy", "peeks.py:Peeks"], "output_tokens"),
        (["t.csv", "--latency", "affine,a=x"], "affine,a=x"),
        (["t.csv", "--latency", "roofline,model=llama-9"], "llama-9"),
        (["t.csv", "--batch-size", "0"], "batch_size = 0 must be a whole number, at least 1"),
        (["t.csv", "--max-num-seqs", "4"], "--max-num-seqs is not an option of static batching"),
        (["t.csv", "--router", "nearest"], "unknown router 'nearest'"),
        (["t.csv", "--goodput", "speed:5"], "goodput bound 'speed:5'"),
        (["t.csv", "--rate", "3"], "a request rate is for poisson and gamma arrivals"),
        (["t.csv", "--arrivals", "poisson"], "poisson arrivals need a request rate"),
        (["t.csv", "--arrivals", "gamma", "--rate", "1", "--cv", "2", "--burstiness", "3"], "give one"),
        (["t.csv", "--arrivals", "gamma", "--rate", "1", "--cv", "0"], "coefficient of variation is 0"),
        (["t.csv", "--time-scale", "0"], "time_scale of arrivals is 0"),
        (["t.csv", "--replications", "3"], "3 replications of recorded arrivals would all be one run"),
        (["t.csv", "--arrivals", "burst", "--replications", "0"], "--replications is 0"),
        (["t.csv", "--seed", "-1"], "--seed is -1"),
        (["t.csv", "--num-prompts", "61"], "61 requests were asked for; the trace has 60"),
        (["t.csv", "--workers", "0"], "0 workers"),
        (["t.csv", "--out", "t.csv/x/y"], "t.csv is a file; name a folder"),
        (["t.csv", "--rerun", "s.json"], "--rerun takes every setting from the summary"),
        (["--rerun", "s.json"], "there is no file s.json"),
        (["--rerun", "t.csv"], "t.csv is not readable as JSON"),
    ],
)
def test_faults_end_in_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    (folder / "zero.csv").write_text(HEAD + "0,1,0\n")
    (folder / "word.csv").write_text(HEAD + "0,1,1\n1,ten,1\n")
    (folder / "back.csv").write_text(HEAD + "1,1,1\n0,1,1\n")
    (folder / "twice.csv").write_text("id," + HEAD + "a,0,1,1\na,1,1,1\n")
    (folder / "lengths.csv").write_text("prompt_tokens,output_tokens\n1,1\n2,2\n")
    (folder / "bad.py").write_text(BAD_POLICY)
    (folder / "peeks.py").write_text(PEEKS)
    write_estimates([Estimates("estp", np.array([0]), np.array([1.0]))], "few.parquet")
    write_estimates([Estimates("estp", np.arange(61), np.ones(61))], "more.parquet")
    before = sorted(path.name for path in folder.iterdir())
    defaults = [] if "--rerun" in options or "--latency" in options else LATENCY
    where = [] if "--out" in options else ["--out", "result"]
    assert main(["compare", *options, *defaults, *where]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("estp: ")
    assert err.count("\n") == 1
    assert out == ""
    assert [name for name in sorted(os.listdir(folder)) if name != "__pycache__"] == before


def test_out_that_is_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "t.csv", *LATENCY, "--out", "e.parquet"]) == 2
    assert "e.parquet is a file; name a folder" in capsys.readouterr().err


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_process_has_no_traceback(folder: Path) -> None:
    command = [sys.executable, "-m", "experiments.cli", "compare", "none.csv"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "estp: there is no file none.csv\n")


def test_pipe_that_closes(folder: Path) -> None:
    command = f"{sys.executable} -m experiments.cli compare t.csv {' '.join(LATENCY)} | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment(), check=False)
    assert "Traceback" not in done.stderr


def cpu_seconds(arguments: list[str]) -> tuple[float, str]:
    """CPU time of one run, and its output; of the best of three, as other work disturbs the caches."""
    best, text = 1e9, ""
    for _ in range(3):
        before = os.times()
        command = [sys.executable, "-m", "experiments.cli", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        best, text = min(best, spent), done.stdout
    return best, text


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"]])
def test_help_is_quick(arguments: list[str]) -> None:
    seconds, text = cpu_seconds(arguments)
    assert text.startswith("usage: estp")
    assert seconds < 0.5


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom experiments.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'polars', 'numpy', 'matplotlib', 'scipy', 'sim', 'traces'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True
    )
    assert done.stdout.strip().split("\n")[-1] == "[]"


def test_unknown_option_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compare", "t.csv", "--polcy", "fcfs"])
    assert caught.value.code == 2
    assert "--policy" in capsys.readouterr().err


def test_a_timeline_of_every_policy(tmp_path, capsys):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,8,4\n0,8,2\n1,4,3\n")
    limits = ["--num-blocks", "64", "--max-num-seqs", "1"]
    server = ["--batching", "continuous", *limits, "--latency", "affine,a=0.1"]
    policies = ["--policy", "fcfs", "--policy", "srpt,limit=0.5"]
    assert main(["compare", str(trace), *server, *policies, "--timeline", str(tmp_path / "lines")]) == 0
    names = ["timeline-0-fcfs.json.gz", "timeline-1-srpt-limit-0-5.json.gz"]
    assert sorted(path.name for path in (tmp_path / "lines").iterdir()) == names
    events = json.loads(gzip.decompress((tmp_path / "lines" / names[1]).read_bytes()))["traceEvents"]
    assert {"queued", "prefill", "decode"} <= {event["name"] for event in events}
    assert main(["compare", str(trace), "--latency", "affine,a=0.1", "--timeline", str(tmp_path / "no")]) == 2
    assert "continuous" in capsys.readouterr().err


def test_a_horizon_withholds_means_unless_asked(tmp_path, capsys):
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,8,4\n0,8,40\n")
    options = [
        str(trace),
        "--policy",
        "fcfs",
        "--latency",
        "affine,a=0.1",
        "--batch-size",
        "1",
        "--horizon-s",
        "1",
    ]
    assert main(["compare", *options, "--out", str(tmp_path / "whole")]) == 0
    assert main(["compare", *options, "--partial", "--out", str(tmp_path / "part")]) == 0
    whole, part = (
        json.loads((tmp_path / name / "summary.json").read_text())["runs"][0]["metrics"]
        for name in ("whole", "part")
    )
    assert (whole["completed"], whole["unfinished"]) == (1, 1)
    assert whole["mean_jct_s"] is None
    # One prefill step and three decodes of 0.1 s.
    assert part["mean_jct_s"] == pytest.approx(0.4)
