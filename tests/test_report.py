"""A report is one page that reaches for nothing, escapes every text, and says only what its numbers bear out.

Truth: `summary.json`'s own judgements, scipy's paired t test, the files that its commands make again, and Chromium.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel
from sweeps import files

from experiments.cli import main
from experiments.compare import Comparison, Setup, Workload
from experiments.plots import Curves
from experiments.report import of_compare, of_stress, of_sweep, svg, write_report
from experiments.report.sentences import findings
from experiments.report_files import read_summary
from experiments.stats import Interval
from experiments.stress.answer import Answer, write
from experiments.style import plot_style
from experiments.sweep import Plan, sweep
from experiments.table import judge
from sim import Result
from traces import Estimates, InputError, Trace, write_estimates, write_trace
from traces.arrivals import Arrivals

NASTY = '<script>alert("{{ 7 * 7 }}")</script><img src=x onerror=alert(1)> https://example.com/a.png & \' "'
LATENCY = "affine,a=0.01,b=0.0001,c=0.001,d=0.000001"
BAD = "class Bad:\n    def __call__(self, request, now_s):\n        raise KeyError('<b>bold</b>')\n"
REACHES = "<script>console.error('oops')</script><img src='http://127.0.0.1:9/a.png'>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with results of all three commands, as the working directory."""
    place = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        rng = np.random.default_rng(0)
        lengths = rng.integers(1, 60, 60)
        ids = np.array([f"<i>{i}</i>" for i in range(60)], dtype=object)
        prompts = np.array([f"{i} {NASTY}" for i in range(60)], dtype=object)
        trace = Trace(
            ids, np.cumsum(rng.exponential(0.3, 60)), rng.integers(5, 50, 60), lengths, prompt=prompts
        )
        write_trace(trace, "t.parquet")
        write_estimates([Estimates("estp", ids, lengths * rng.lognormal(0, 0.5, 60))], "e.parquet")
        (place / "bad.py").write_text(BAD)
        drawn = ["--arrivals", "poisson", "--rate", "40", "--replications", "3", "--latency", LATENCY]
        assert main(["compare", "t.parquet", "--estimates", "e.parquet", *drawn, "--out", "compared"]) == 0
        fixed = {"trace": "t.parquet", "arrivals": "poisson", "replications": 2, "latency": LATENCY}
        servers = [{"batching": "static", "batch_size": 4}, {"batching": "continuous", "num_blocks": 99}]
        grid = {"policy": ["fcfs", "sjf", "bad.py:Bad"], "request_rate": [4, 8], "server": servers}
        sweep(Plan(fixed, grid), "swept", workers=1)
        (place / "asked").mkdir()
        line = [Interval(1.0, 0.1, "replications", 3), Interval(2.0, 0.1, "replications", 3)]
        answer = Answer(f"A sentence {NASTY}", [Curves("x", "y (s)", [1, 2], {"fcfs": line})])
        with plot_style():
            write(
                answer, "one", f"Why {NASTY}?", place / "asked", "estp stress one", {"server": {"a": NASTY}}
            )
        for name in ("compared", "swept", "asked"):
            assert main(["report", name]) == 0
        yield place


class Parsed(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", ["compared", "swept", "asked"])
def test_the_page_reaches_for_nothing_and_runs_nothing(folder: Path, name: str) -> None:
    path = folder / name / "report.html"
    page = Parsed(path.read_text())
    assert path.stat().st_size < 3_000_000
    assert not {tag for tag, _ in page.tags} & {
        "script",
        "iframe",
        "object",
        "embed",
        "foreignobject",
        "base",
    }
    names: list[str] = []
    for tag, attributes in page.tags:
        for key, value in attributes.items():
            assert not key.startswith("on"), (tag, key)
            if key in ("src", "href", "xlink:href", "action", "data", "poster"):
                assert (value or "").startswith(("#", "data:")), (tag, key, value)
            assert not re.search(r"url\((?!#)", value or ""), (tag, key, value)
            names += [str(value)] if key == "id" else []
    assert len(names) == len(set(names))
    wanted = [
        str(value)[1:]
        for _, a in page.tags
        for key, value in a.items()
        if key == "href" and str(value)[0] == "#"
    ]
    assert wanted
    assert set(wanted) <= set(names)
    assert "@import" not in path.read_text()


def test_every_text_is_escaped(folder: Path) -> None:
    compared = Parsed((folder / "compared/report.html").read_text()).text
    assert " ".join(NASTY.split())[:100] in compared
    assert "<i>" in compared
    assert "<b>bold</b>" in Parsed((folder / "swept/report.html").read_text()).text
    asked = Parsed((folder / "asked/report.html").read_text()).text
    assert f"A sentence {NASTY}" in asked
    assert 'alert("49")' not in asked


def test_the_same_folder_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name in ("compared", "swept", "asked"):
        again = write_report(folder / name, tmp_path / "again.html").read_bytes()
        # The command that makes it again names the folder as it was named.
        named = str(folder / name).encode()
        assert again.replace(named, name.encode()) == (folder / name / "report.html").read_bytes()


def test_a_comparison_is_read_back_as_it_was_judged(folder: Path) -> None:
    summary = read_summary(folder / "compared/summary.json")
    comparison = of_compare.read_comparison(folder / "compared", summary)
    for metric, expected in summary["comparison"].items():
        best, within, known = judge(comparison, metric)
        assert (best or None) == expected["best"], metric
        for policy, one in expected["policies"].items():
            shown = comparison.interval(policy, metric)
            assert shown.mean == pytest.approx(np.nan if one["mean"] is None else one["mean"], nan_ok=True)
            assert one.get("within_noise", False) == ((policy in within) if known else None)
    page = Parsed((folder / "compared/report.html").read_text()).text
    for text in (
        "sjf has the lowest mean job completion time",
        "Of what the oracle gains over fcfs",
        "this much is reached: estp",
    ):
        assert text in page


def test_the_commands_make_the_files_again(folder: Path) -> None:
    options = read_summary(folder / "compared/summary.json")["options"]
    words = shlex.split(of_compare.command_of(options))
    assert words[:3] == ["estp", "compare", "t.parquet"]
    assert main([*words[1:], "--out", "again"]) == 0
    made = files(folder / "compared")
    del made["report.html"]
    assert files(folder / "again") == made
    shown = Parsed((folder / "compared/report.html").read_text()).text
    assert of_compare.command_of(options) in shown
    assert "estp compare --rerun compared/summary.json" in shown

    options["server"] |= {
        "goodput": ["ttft:500", "tpot:50"],
        "enable_prefix_caching": False,
        "max_num_seqs": 4,
    }
    options["server"]["batching"] = "continuous"
    text = of_compare.command_of(options)
    for part in (
        "--goodput ttft:500 tpot:50",
        "--no-enable-prefix-caching",
        "--max-num-seqs 4",
        "--request-rate 40.0",
    ):
        assert part in text


def test_the_yaml_of_a_sweep_is_its_plan(folder: Path) -> None:
    summary = json.loads((folder / "swept/sweep.json").read_text())
    shown = of_sweep.as_yaml(summary)
    plan = Plan({key: value for key, value in shown.items() if key != "grid"}, shown["grid"])
    table = pl.read_parquet(folder / "swept/results.parquet")
    assert [tuple(cell.varied.values()) for cell in plan.cells()] == table.select(plan.varied()).rows()
    page = Parsed((folder / "swept/report.html").read_text()).text
    assert "8 cells failed, all under Bad" in page
    assert "Against fcfs, sjf's mean job completion time is, of 4 points," in page


def test_plots_of_nothing_but_zeros_are_left_out_with_the_reason(folder: Path) -> None:
    page = (folder / "swept/report.html").read_text()
    assert "The padding ratio is 0 at 2 of 4 points, for continuous batching pads nothing" in page
    drawn = [line for line in page.splitlines() if "<figcaption>padding ratio along" in line]
    assert len(drawn) == 1
    assert "batching=static" in drawn[0]


def test_a_comparison_without_padding_says_why_none_is_drawn(folder: Path) -> None:
    assert "<figcaption>Padding and throughput<" in (folder / "compared/report.html").read_text()
    words = ["--batching", "continuous", "--request-rate", "40", "--arrivals", "poisson"]
    assert main(["compare", "t.parquet", "--policy", "fcfs", *words, "--out", "unpadded"]) == 0
    page = write_report(folder / "unpadded").read_text()
    assert "padding is not drawn: nothing is padded here" in page
    assert "<figcaption>Padding" not in page


def test_what_a_plot_shows_is_a_table_with_a_policy_a_column() -> None:
    def row(
        policy: str, x: float | None, mean: float | None, half_width: float | None = 0.5
    ) -> dict[str, Any]:
        found = {"measure": "mean JCT (s)", "policy": policy, "along": "load"}
        return found | {"x": x, "mean": mean, "half_width": half_width}

    rows = [row("fcfs", 1.0, 2.0), row("fcfs", 2.0, 3.0), row("shortest,predictor=mine", 2.0, 2.25, None)]
    shared = of_stress._table("mean JCT (s)", "load", [*rows, row("asked", None, 4.0)])
    assert shared.head == ["policy", "load", "mean JCT (s)"]  # 4 of 9 cells: a row each
    assert shared.rows[-1] == ["asked", "any", "4.00 ±0.50"]
    pivoted = of_stress._table("mean JCT (s)", "load", rows)
    assert pivoted.head == ["load", "fcfs", "mine"]
    assert pivoted.rows == [["1", "2.00 ±0.50", ""], ["2", "3.00 ±0.50", "2.25"]]


def test_settings_of_a_question_are_a_table_and_no_json(folder: Path) -> None:
    text = Parsed((folder / "asked/report.html").read_text()).text
    assert "Of every question" in text
    assert '{"a":' not in text
    settings = {
        "inputs": [{"path": "t.csv", "sha256": "ab"}],
        "server": {"batching": "static", "release": None, "goodput": [], "partial": False},
        "seeds": [0, 1],
        "load": 0.9,
    }
    asked = {
        name: {"settings": {**settings, "load": load}} for name, load in (("a", 0.9), ("b", 0.5), ("c", 0.9))
    }
    first, second = of_stress._settings(asked)
    assert (first.caption, second.caption) == ("Of a, c", "Of b")
    assert first.rows == [
        ["t.csv", "SHA-256 ab"],
        ["batching", "static"],
        ["partial", "no"],
        ["seeds", "0, 1"],
        ["load", "0.9"],
    ]


def comparison_of(values: dict[str, list[float]]) -> Comparison:
    """A comparison whose mean JCT is as given and whose other metrics are alike."""
    seeds = tuple(range(len(values["fcfs"])))
    alike = {
        "output_throughput": 5.0,
        "padding_ratio": 0.0,
        "goodput": 1.0,
        "p99_jct_s": 9.0,
        "mean_ttft_s": 1.0,
    }
    results = {
        (policy, seed): Result(pl.DataFrame(), {**alike, "mean_jct_s": value, "rejected": 0}, {})
        for policy, row in values.items()
        for seed, value in enumerate(row)
    }
    trace = Trace(np.arange(1), np.zeros(1), np.ones(1), np.ones(1))
    workloads = {seed: Workload(trace, {}, trace.request_id) for seed in seeds}
    return Comparison(Setup(tuple(values), seeds, Arrivals("burst")), results, workloads)


jct = st.lists(st.floats(0.5, 3.0).map(lambda value: round(value, 2)), min_size=4, max_size=4)


@settings(max_examples=60)
@given(st.fixed_dictionaries({"fcfs": jct, "sjf": jct, "estp": jct, "egtp": jct}))
def test_sentences_never_rank_within_noise(values: dict[str, list[float]]) -> None:
    def differ(first: str, second: str) -> bool:
        gaps = np.subtract(values[first], values[second])
        if np.ptp(gaps) < 1e-9:
            return bool(abs(gaps[0]) > 1e-9)
        return bool(ttest_rel(values[first], values[second]).pvalue < 0.05)

    means = {policy: float(np.mean(row)) for policy, row in values.items()}
    said = findings(comparison_of(values), {})
    for sentence in said:
        if found := re.match(r"(\w+) has the lowest mean job completion time, [^;]*; (.*)\.$", sentence):
            best, rest = found.groups()
            assert means[best] == min(means.values())
            near = [] if rest.startswith("every other") else re.findall(r"\w+", rest.split(" cannot")[0])
            others = {policy for policy in values if policy != best}
            assert {policy for policy in others if not differ(policy, best)} == set(near) - {"and"}
        for verb, sign in (("lower", -1), ("raise", 1)):
            if found := re.match(
                rf"Against fcfs, what {verb}s? the mean job completion time: (.*)\.$", sentence
            ):
                for part in found[1].split("; "):
                    policy = part.split(" ")[0]
                    assert differ(policy, "fcfs")
                    assert np.sign(means[policy] - means["fcfs"]) == sign
    told = " ".join(said)
    for policy in ("sjf", "estp", "egtp"):
        if not differ(policy, "fcfs"):
            assert f"{policy} by " not in told
    if not differ("fcfs", "sjf") or means["sjf"] > means["fcfs"]:
        assert "oracle gains" not in told


def test_one_run_ranks_nobody() -> None:
    said = findings(comparison_of({"fcfs": [2.0], "sjf": [1.0]}), {})
    assert said[0].startswith(
        "In this one run sjf has the lowest mean job completion time, 1 s, but one run does not tell"
    )
    assert not any("Against" in sentence or "reached" in sentence for sentence in said)


EVIL = """<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"
 viewBox="0 0 9 9" onload="x()">
<script>alert(1)</script><style>@import url(http://example.com/a.css)</style>
<foreignObject><body xmlns="http://www.w3.org/1999/xhtml"><iframe src="http://example.com"/></body></foreignObject>
<a href="javascript:x()"><path id="lost" d="M 0 0"/></a>
<image href="http://example.com/a.png" width="3"/><image href="data:image/png;base64,AAAA" height="4"/>
<g id="a b" onclick="x()" style="fill: url(http://example.com/a.svg#b)"><path id="p" d="M 0 0
L 1 1" style="clip-path: url(#c); fill: #ffffff"/></g>
<use xlink:href="#p"/><use xlink:href="http://example.com/a.svg#p"/><g clip-path="url(#c)"/></svg>"""


def test_an_svg_keeps_its_shapes_and_nothing_else() -> None:
    assert svg.from_text(EVIL, "one", 'a "label"', "evil.svg") == (
        '<svg viewBox="0 0 9 9" role="img" aria-label="a &#34;label&#34;"><image width="3"></image>'
        '<image href="data:image/png;base64,AAAA" height="4"></image><g id="one-a b">'
        '<path id="one-p" d="M 0 0 L 1 1" style="clip-path: url(#one-c); fill: #ffffff"></path></g>'
        '<use href="#one-p"></use><use></use><g clip-path="url(#one-c)"></g></svg>'
    )


@pytest.mark.parametrize(
    "text", ["", "<svg", "<html/>", "<!DOCTYPE svg [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><svg>&a;</svg>"]
)
def test_what_is_no_svg_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"plot\.svg is no SVG"):
        svg.from_text(text, "one", "", "plot.svg")


def test_a_large_svg_gives_way_to_its_picture(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(EVIL + " " * svg.MOST_BYTES)
    (tmp_path / "a.png").write_bytes(b"png")
    assert (
        svg.from_file(tmp_path / "a.svg", "<label>")
        == '<img alt="&lt;label&gt;" src="data:image/png;base64,cG5n">'
    )


def test_faults(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(place: Path, message: str) -> None:
        assert main(["report", str(place)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1

    refused(tmp_path / "none", "there is no folder")
    refused(tmp_path, "has no results; name a folder")
    (tmp_path / "summary.json").write_text("{}")
    refused(tmp_path, "is no summary.json of estp compare")
    one, two, three = (
        Path(shutil.copytree(folder / name, tmp_path / name)) for name in ("compared", "swept", "asked")
    )
    (one / "jct.svg").write_text("<svg")
    refused(one, "jct.svg is no SVG")
    (one / "records.parquet").unlink()
    refused(one, "there is no file")
    shutil.copy(two / "results.parquet", one / "records.parquet")
    refused(one, "holds sweep results, where records is needed")
    (two / "results.parquet").unlink()
    refused(two, "some cells have not run")
    (two / "sweep.json").write_text("[]")
    refused(two, "is no sweep.json of estp sweep")
    (three / "one.json").write_text("{")
    refused(three, "one.json is not readable as JSON")


def browse(path: Path, folder: Path, *options: str) -> tuple[str, list[str], list[str]]:
    """Standard output of Chromium, its console lines about a page, and the addresses that the page asked for."""
    log = folder / "net.json"
    command = [
        str(shutil.which("chromium")), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", f"--log-net-log={log}",
        f"--user-data-dir={folder / 'profile'}", *options, path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    text = log.read_text()
    # A browser that is stopped leaves the list open.
    content: Any = json.loads(text if text.rstrip().endswith("}") else text.rstrip().rstrip(",") + "]}")
    start = content["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [
        event["params"]
        for event in content["events"]
        if event["type"] == start and "url" in event.get("params", {})
    ]
    # Chromium's own requests have no origin; those of a page from a file have the origin "null".
    own = [
        one["url"]
        for one in asked
        if one.get("initiator") != "not an origin" and not one["url"].startswith("file:")
    ]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line], own


@pytest.mark.slow
def test_chromium_finds_no_fault_and_asks_for_nothing(folder: Path, tmp_path: Path) -> None:
    if shutil.which("chromium") is None:
        pytest.skip("needs the program chromium")
    (tmp_path / "reaches.html").write_text(REACHES)
    _, console, asked = browse(tmp_path / "reaches.html", tmp_path, f"--screenshot={tmp_path / 'a.png'}")
    assert ("oops" in console[0], asked) == (True, ["http://127.0.0.1:9/a.png"])
    for name in ("compared", "swept", "asked"):
        page = folder / name / "report.html"
        picture = tmp_path / "b.png"
        _, console, asked = browse(page, tmp_path, f"--screenshot={picture}", "--window-size=1100,2000")
        assert (console, asked) == ([], [])
        assert picture.stat().st_size > 20_000
    # On a phone nothing sticks out: the page is measured by a script, which its own policy would forbid.
    text = (folder / "compared/report.html").read_text()
    text = re.sub(r"<meta http-equiv[^>]*>", "", text)
    measure = "<script>e = document.documentElement; document.title = e.scrollWidth + ' of ' + e.clientWidth</script>"
    (tmp_path / "phone.html").write_text(text.replace("</body>", f"{measure}</body>"))
    out, _, _ = browse(tmp_path / "phone.html", tmp_path, "--dump-dom", "--window-size=500,900")
    found = re.search(r"<title>(\d+) of (\d+)</title>", out)
    assert found
    assert found[1] == found[2]
