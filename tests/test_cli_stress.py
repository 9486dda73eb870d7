"""`estp stress`: a plot, its data, a sentence and the command that makes the same bytes again, whoever works.

Every fault that a person can make ends in exit code 2 and one sentence on standard error.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from experiments.cli import main
from experiments.commands.stress import Stress
from experiments.options import Server
from experiments.stress import QUESTIONS
from traces import Estimates, write_estimates

LATENCY = "roofline,model=smollm2-135m,device=l4"
SMALL = ["--num-prompts", "60", "--replications", "2", "--latency", LATENCY]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace of 80 requests without arrivals, two predictors' estimates; the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 200, 80)
    rows = "".join(f"{10 + i},{length}\n" for i, length in enumerate(lengths))
    (tmp_path / "t.csv").write_text("prompt_tokens,output_tokens\n" + rows)
    ids = np.arange(80)
    tables = [
        Estimates(name, ids, lengths * rng.lognormal(0, sigma, 80))
        for name, sigma in (("estp", 0.3), ("mine", 1))
    ]
    write_estimates(tables, "e.parquet")
    return tmp_path


def test_every_question_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stress", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(QUESTIONS)
    assert all(line.endswith("?") for line in lines)


def test_every_question_answers_on_a_persons_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--trace", "t.csv", "--estimates", "e.parquet", *SMALL, "--workers", "1"]
    assert main(["stress", "all", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("[")[2] for line in lines[::2]] == [f"{name}]" for name in QUESTIONS]
    for sentence in lines[1::2]:
        assert sentence.endswith(".")
        assert "nan" not in sentence


def test_a_question_that_cannot_be_asked_does_not_stop_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--trace", "t.csv", *SMALL, "--workers", "1", "--batch-size", "4"]
    assert main(["stress", "prefix", "oracle-gain", *given]) == 2
    out, err = capsys.readouterr()
    assert (
        err == "estp: stress prefix: --batch-size is not an option of continuous batching; see --batching\n"
    )
    assert "[oracle-gain]" in out


def test_a_folder_has_plot_data_sentence_and_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--trace", "t.csv", "--estimates", "e.parquet", *SMALL, "--workers", "1"]
    assert main(["stress", "oracle-gain", *given, "--out", "a/b"]) == 0
    out = capsys.readouterr().out
    made = {file.name for file in (folder / "a/b").iterdir()}
    assert made == {f"oracle-gain.{kind}" for kind in ("png", "svg", "csv", "json")}
    page = json.loads((folder / "a/b/oracle-gain.json").read_text())
    assert page["sentence"] in out
    assert page["question"] in out
    assert page["settings"]["inputs"][0]["path"] == "t.csv"
    table = pl.read_csv(
        folder / "a/b/oracle-gain.csv", schema_overrides={"along": pl.String, "x": pl.Float64}
    )
    assert table.columns == ["measure", "policy", "along", "x", "mean", "half_width"]
    assert table.drop("along", "x").to_dicts() == [
        {key: row[key] for key in ("measure", "policy", "mean", "half_width")} for row in page["data"]
    ]


def test_the_same_bytes_from_the_command_and_from_two_workers(folder: Path) -> None:
    mine = "shortest,predictor=noisy,sigma=0.5"
    given = ["--trace", "t.csv", "--policy", "fcfs", "--policy", mine, *SMALL]
    assert main(["stress", "bursts", *given, "--workers", "1", "--out", "one"]) == 0
    command = json.loads((folder / "one" / "bursts.json").read_text())["command"]
    assert main([*shlex.split(command)[1:], "--workers", "2", "--out", "two"]) == 0
    for file in (folder / "one").iterdir():
        assert file.read_bytes() == (folder / "two" / file.name).read_bytes(), file.name


def test_a_command_says_what_differs_from_the_defaults() -> None:
    asked = Stress(
        ("load", "tails"),
        trace="my trace.csv",
        columns=("prompt_tokens=in", "output_tokens=out"),
        policy=("fcfs", "a.py:Mine"),
        server=Server(batch_size=4, goodput=("ttft:500", "tpot:50"), enable_prefix_caching=False),
        out=Path("x"),
        workers=7,
    )
    assert asked.command("load") == (
        "estp stress load --trace 'my trace.csv' --columns prompt_tokens=in output_tokens=out --policy fcfs "
        "--policy a.py:Mine --batch-size 4 --no-enable-prefix-caching --goodput ttft:500 tpot:50"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a question, or all: predictor"),
        (["lod"], "unknown question 'lod': did you mean load"),
        (["load", "--estimates", "e.parquet"], "name it with --trace"),
        (["load", "--replications", "1"], "one replication tells nothing"),
        (["load", "--num-prompts", "0"], "--num-prompts is 0"),
        (["load", "--load", "-1"], "--load is -1.0"),
        (["load", "--horizon-s", "9"], "--horizon-s 9.0 cuts into the load"),
        (["load", "--workers", "0"], "0 workers cannot work"),
        (["load", "--seed", "-1"], "--seed is -1"),
        (["load", "--trace", "none.csv"], "none.csv"),
        (["load", "--max-num-seqs", "4"], "--max-num-seqs is not an option of static batching"),
        (["load", "--out", "t.csv"], "t.csv is a file; name a folder"),
    ],
)
def test_faults(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["stress", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("estp: ")
    assert error.count("\n") == 1


def test_compare_draws_ttft_by_hit_share_where_prefixes_are_shared(folder: Path) -> None:
    rows = "".join(f"{i},{64 + i},5,1,64\n" for i in range(30))
    (folder / "p.csv").write_text("arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n" + rows)
    names = ["prompt_tokens", "output_tokens", "prefix_id", "prefix_tokens"]
    given = [
        "p.csv",
        "--policy",
        "fcfs",
        "--batching",
        "continuous",
        "--num-blocks",
        "200",
        "--latency",
        LATENCY,
    ]
    given += ["--columns", "arrival_s=arrival_s", *(f"{name}={name}" for name in names)]
    assert main(["compare", *given, "--out", "out"]) == 0
    assert (folder / "out" / "ttft_by_hit_share.svg").exists()
    assert main(["compare", *given, "--no-enable-prefix-caching", "--out", "out"]) == 0
    assert not (folder / "out" / "ttft_by_hit_share.svg").exists()
