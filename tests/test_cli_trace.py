"""``estp trace`` does on the command line what the functions do, and says in one sentence what is wrong.

Truth: files written and read back here, and what the functions give.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.style import plot_style
from experiments.trace_plots import trace_picture
from traces import read_trace

HEAD = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text(HEAD + "0,10,1\n1,20,2\n4,30,3\n")
    return tmp_path


def run(*words: str) -> int:
    return main(["trace", *words])


def test_convert_there_and_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("convert", "t.csv", "t.parquet") == 0
    assert run("convert", "t.parquet", "t.jsonl.gz", "--to", "mooncake") == 0
    lines = gzip.decompress((folder / "t.jsonl.gz").read_bytes()).decode().split("\n")
    assert json.loads(lines[2]) == {"timestamp": 4000, "input_length": 30, "output_length": 3}
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "t.jsonl.gz").read_bytes())))
    assert run("convert", "-", "u.csv") == 0
    assert read_trace("u.csv").arrival_s.tolist() == [0.0, 1.0, 4.0]


def test_convert_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.txt").write_text("when,in,out\n0,5,1\n3,0,1\n9,7,2\n")
    options = ["--format", "csv", "--columns", "arrival_ms=when", "prompt_tokens=in", "output_tokens=out"]
    assert run("convert", "x.txt", "x.parquet", *options) == 2
    assert "line 3, column 'in': '0' is not a length" in capsys.readouterr().err
    assert run("convert", "x.txt", "x.parquet", *options, "--on-error", "skip") == 0
    assert "left out 1 rows of the trace" in capsys.readouterr().err
    assert read_trace("x.parquet").arrival_s.tolist() == [0.0, 0.009]
    (folder / "p.jsonl").write_text('{"prompt": "two words", "output_tokens": 4}\n')
    tokenizer = str(Path(__file__).parent / "data" / "tiny_lm")
    assert run("convert", "p.jsonl", "p.parquet", "--tokenizer", tokenizer) == 0
    assert read_trace("p.parquet").metadata["tokenizer"] == tokenizer


def test_slice_scale_merge(folder: Path) -> None:
    assert run("slice", "t.csv", "late.parquet", "--start-s", "1") == 0
    assert read_trace("late.parquet").arrival_s.tolist() == [0.0, 3.0]
    assert run("scale", "t.csv", "fast.parquet", "--rate", "2", "--output", "10") == 0
    assert read_trace("fast.parquet").arrival_s.tolist() == [0.0, 0.25, 1.0]
    assert read_trace("fast.parquet").output_tokens.tolist() == [10, 20, 30]
    assert run("merge", "t.csv", "fast.parquet", "both.parquet") == 0
    both = read_trace("both.parquet")
    assert both.extra["source"].tolist().count("t.csv") == 3
    assert len(both) == 6


def test_synth_comes_back_from_its_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("synth", "a.parquet", "--arrivals", "gamma,rate=5,shape=0.5", "--requests", "50", "--seed", "7")
        == 0
    )
    line = capsys.readouterr().out.strip().split("\n")[-1]
    assert run("synth", "b.parquet", "--spec", line) == 0
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()
    assert run("synth", "c.parquet", "--spec", line, "--seed", "8") == 0
    assert (folder / "a.parquet").read_bytes() != (folder / "c.parquet").read_bytes()
    # The line stays with the trace through other commands.
    assert run("slice", "a.parquet", "d.parquet", "--first", "10") == 0
    assert read_trace("d.parquet").metadata["synthetic"]["spec"] == line
    assert run("synth", "e.parquet", "--lengths", "a.parquet", "--requests", "20") == 0
    pairs = set(
        zip(*(read_trace("a.parquet").columns()[f"{n}_tokens"] for n in ("prompt", "output")), strict=True)
    )
    drawn = zip(
        *(read_trace("e.parquet").columns()[f"{n}_tokens"] for n in ("prompt", "output")), strict=True
    )
    assert set(drawn) <= pairs


def test_describe_and_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("synth", "s.parquet", "--arrivals", "poisson,rate=5", "--requests", "300", "--samples", "2")
    capsys.readouterr()
    assert run("describe", "s.parquet", "--out", "look") == 0
    text = capsys.readouterr().out
    assert "requests   300" in text
    assert "prefixes   50.0% seen before" in text
    svg = (folder / "look" / "trace.svg").read_text()
    assert svg.count("axes_") >= 4
    assert (folder / "look" / "trace.png").stat().st_size > 10_000
    assert json.loads((folder / "look" / "description.json").read_text())["requests"] == 300
    assert run("describe", "s.parquet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["output_tokens"]["mean"] > 0
    assert run("fit", "s.parquet") == 0
    text = capsys.readouterr().out
    assert "arrivals  poisson" in text
    line = text[text.index("--spec '") + 8 :].split("'")[0]
    assert run("synth", "again.parquet", "--spec", line) == 0
    capsys.readouterr()
    assert run("fit", "s.parquet", "--json") == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 300


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "0,1,1\n",
        HEAD + "0,5,5\n0,5,5\n0,5,5\n",
        HEAD + "0,1,1\n0,2,2\n",
        HEAD + "0,1,9\n1,1,9\n2,1,9\n",
        "prompt_tokens,output_tokens\n1,2\n",
    ],
)
def test_pictures_of_little(folder: Path, text: str) -> None:
    (folder / "little.csv").write_text(text)
    # A warning (of an empty range, say) fails the test.
    with plot_style():
        trace_picture(read_trace("little.csv")).draw_without_rendering()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["convert", "none.csv", "x.parquet"], "there is no file none.csv"),
        (["convert", "t.csv", "x.what"], "name a format"),
        (["convert", "t.csv", "no/x.csv"], "cannot write no/x.csv"),
        (["slice", "t.csv", "x.csv", "--start-s", "9"], "no request arrives"),
        (["scale", "t.csv", "x.csv", "--rate", "-1"], "above 0"),
        (["merge", "t.csv", "t.csv", "x.csv"], "different names"),
        (["synth", "x.csv", "--arrivals", "poisson"], "poisson needs rate"),
        (["synth", "x.csv", "--spec", "seed=1 seed=2"], "says seed twice"),
        (["fit", "t.csv"], "more than 20 requests"),
        (["fetch", "azure"], "no public trace is called 'azure'"),
        (["describe", "t.csv", "--columns", "a"], "not of the form NAME=COLUMN"),
        (["describe", "t.csv", "--out", "t.csv"], "t.csv is a file"),
    ],
)
def test_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert run(*words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert sorted(path.name for path in folder.iterdir()) == ["t.csv"]


def test_closed_loops_are_said_to_have_no_arrivals_yet(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "synth", "u.parquet", "--users", "2", "--requests", "9"]) == 0
    assert main(["trace", "describe", "u.parquet"]) == 0
    assert "arrivals   a closed loop's: they follow from the answers" in capsys.readouterr().out
    assert main(["trace", "merge", "u.parquet", "u.parquet", "m.parquet"]) == 2
    assert main(["trace", "synth", "v.parquet", "--requests", "9"]) == 0
    assert main(["trace", "merge", "v.parquet", "u.parquet", "m.parquet"]) == 2
    assert "u.parquet is a closed loop, which has no arrivals yet" in capsys.readouterr().err
