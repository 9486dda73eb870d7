"""Synthetic traces have the parameters of their one-line specification, and come back from it byte for byte.

Truth: closed forms of each process and distribution, within five standard errors at a fixed seed.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import InputError, write_trace
from traces.processes import Bursts
from traces.synthetic import parse_spec, synthesise

N = 20_000
PROCESS = st.sampled_from(
    [
        "poisson,rate=0.3",
        "gamma,rate=5,shape=0.25",
        "weibull,rate=5,shape=0.7",
        "bursts,rate=0,burst_rate=30,calm_s=3,burst_s=0.5",
        "diurnal,rate=2,amplitude=1,period_s=60",
        "burst",
    ]
)
LENGTHS = st.sampled_from(
    [
        "lognormal,median=40,sigma=2,most=500",
        "pareto,least=3,alpha=0.5",
        "tailed,median=100,sigma=1,tail=0.1,alpha=1.2",
        "constant,tokens=7",
    ]
)


def made(text: str) -> Any:
    return synthesise(parse_spec(text))


@settings(max_examples=25)
@given(
    PROCESS,
    LENGTHS,
    LENGTHS,
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(0, 2**40),
    st.floats(-0.9, 0.9),
)
def test_the_line_in_the_metadata_brings_back_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    process: str,
    prompt: str,
    output: str,
    samples: int,
    prompts: int,
    seed: int,
    correlation: float,
) -> None:
    text = (
        f"arrivals={process} prompt={prompt} output={output} seed={seed} samples={samples} "
        f"requests={samples * prompts} correlation={correlation!r}"
    )
    trace = made(text)
    assert len(trace) == samples * prompts
    assert trace.arrival_s[0] == 0
    folder = tmp_path_factory.mktemp("synthetic")
    write_trace(trace, folder / "one.parquet")
    write_trace(made(trace.metadata["synthetic"]["spec"]), folder / "two.parquet")
    assert (folder / "one.parquet").read_bytes() == (folder / "two.parquet").read_bytes()


@pytest.mark.parametrize(
    ("process", "rate", "cv"),
    [
        ("poisson,rate=4", 4, 1.0),
        ("gamma,rate=4,shape=0.25", 4, 2.0),
        ("weibull,rate=4,shape=0.5", 4, math.sqrt(5)),  # Gamma(5) / Gamma(3)^2 - 1 = 5
    ],
)
def test_renewal_processes(process: str, rate: float, cv: float) -> None:
    gaps = np.diff(made(f"arrivals={process} requests={N}").arrival_s)
    assert gaps.mean() == pytest.approx(1 / rate, rel=5 * cv / math.sqrt(N))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_bursts_have_the_dispersion_of_their_chain() -> None:
    process = Bursts(rate=2, burst_rate=30, calm_s=4, burst_s=1)
    arrivals = process.draw(100_000, np.random.default_rng(0))
    assert process.mean_rate == pytest.approx(7.6)
    span_s = arrivals[-1]
    # Heffes and Lucantoni 1986: the variance over the mean of counts in long windows.
    leave_calm, leave_burst = 1 / 4, 1 / 1
    spread = 2 * 28**2 * leave_calm * leave_burst
    limit = 1 + spread / ((leave_calm + leave_burst) ** 2 * (2 * leave_burst + 30 * leave_calm))
    counts = np.histogram(arrivals, np.arange(0, span_s, 40))[0]
    assert counts.var() / counts.mean() == pytest.approx(limit, rel=0.25)
    assert len(arrivals) / span_s == pytest.approx(7.6, rel=5 * math.sqrt(limit / len(arrivals)))


def test_a_silent_state_has_no_arrivals() -> None:
    arrivals = Bursts(rate=0, burst_rate=50, calm_s=20, burst_s=1).draw(5000, np.random.default_rng(1))
    gaps = np.diff(arrivals)
    assert arrivals[0] == 0
    # Gaps of over a second are silences of mean 20 s, which are exponential: none of it is memory.
    assert gaps[gaps > 1].mean() == pytest.approx(20 + 1, rel=5 / math.sqrt((gaps > 1).sum()))


def test_diurnal_rate_follows_the_cosine() -> None:
    period, amplitude = 100.0, 0.8
    text = f"arrivals=diurnal,rate=20,amplitude={amplitude},period_s={period} requests={N}"
    arrivals = made(text).arrival_s
    cycles = int(arrivals[-1] // period)
    phase = arrivals[arrivals < cycles * period] % period
    quiet = ((phase < period / 4) | (phase >= 3 * period / 4)).mean()
    # The integral of (1 - a cos) over the quietest half.
    assert quiet == pytest.approx(0.5 - amplitude / math.pi, abs=5 * 0.5 / math.sqrt(N))
    assert cycles * period * 20 == pytest.approx(len(phase), rel=5 / math.sqrt(N))


def test_lengths_have_their_quantiles_and_tails() -> None:
    trace = made(
        f"prompt=tailed,median=1000,sigma=0.5,tail=0.1,alpha=1.5 output=pareto,least=1000,alpha=2 requests={N}"
    )
    prompt, output = np.sort(trace.prompt_tokens), np.sort(trace.output_tokens)
    error = 5 / math.sqrt(N)
    assert np.median(prompt) == pytest.approx(1000, rel=error)
    begins = 1000 * math.exp(0.5 * 1.2815515655446004)  # the lognormal's 90% point
    assert prompt[int(0.9 * N)] == pytest.approx(begins, rel=3 * error)
    # From there P(X > x) = 0.1 (begins / x)^1.5, and of a Pareto from the start P(X > x) = (least / x)^2.
    assert (prompt > 4 * begins).mean() == pytest.approx(0.1 * 4**-1.5, abs=error * math.sqrt(0.0125))
    assert (output > 5000).mean() == pytest.approx(1 / 25, abs=error * 0.2)
    assert output.min() >= 1000


def test_the_copula_has_its_correlation() -> None:
    trace = made(f"correlation=0.6 requests={N}")
    logs = np.corrcoef(np.log(trace.prompt_tokens), np.log(trace.output_tokens))[0, 1]
    assert logs == pytest.approx(0.6, abs=5 * (1 - 0.36) / math.sqrt(N))


def test_rollouts_share_their_prompts() -> None:
    trace = made("samples=8 requests=8000 same=0.7 output=lognormal,median=300,sigma=1")
    assert trace.arrival_s.tolist() == [0.0] * 8000
    prompts = trace.prompt_tokens.reshape(-1, 8)
    assert (prompts == prompts[:, :1]).all()
    assert trace.prefix_tokens.tolist() == trace.prompt_tokens.tolist()
    assert trace.prefix_id.tolist() == np.repeat(np.arange(1000), 8).tolist()
    assert trace.extra["sample"].tolist() == list(range(8)) * 1000
    logs = np.log(trace.output_tokens).reshape(-1, 8)
    between = logs.mean(1).var(ddof=1) - logs.var(1, ddof=1).mean() / 8
    assert between / (between + logs.var(1, ddof=1).mean()) == pytest.approx(0.7, abs=0.06)


def test_lengths_of_a_trace_keep_their_pairs(tmp_path: Path) -> None:
    path = tmp_path / "own lengths.csv"
    path.write_text("input_length,output_length\n" + "".join(f"{n},{n * n}\n" for n in range(1, 40)))
    trace = made(f"lengths='{path}' arrivals=poisson,rate=3 requests=500 seed=4")
    assert (trace.output_tokens == trace.prompt_tokens.astype(int) ** 2).all()
    line = trace.metadata["synthetic"]["spec"]
    assert made(line).prompt_tokens.tolist() == trace.prompt_tokens.tolist()
    path.write_text(path.read_text() + "7,7\n")
    with pytest.raises(InputError, match="is not the file that the specification names"):
        made(line)


def test_arrivals_and_lengths_are_drawn_apart() -> None:
    one = made("arrivals=poisson,rate=2 requests=50 seed=9")
    two = made("arrivals=gamma,rate=2,shape=3 requests=50 seed=9")
    assert one.prompt_tokens.tolist() == two.prompt_tokens.tolist()
    three = made("arrivals=poisson,rate=2 output=constant,tokens=5 requests=50 seed=9")
    assert one.arrival_s.tolist() == three.arrival_s.tolist()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("arrivals=posson,rate=1", "did you mean 'poisson'"),
        ("arrivals=gamma,rate=1", "gamma needs shape"),
        ("arrivals=gamma,rate=1,shap=2", "has no 'shap'; did you mean 'shape'"),
        ("arrivals=poisson,rate=x", "rate of poisson is 'x', which is no number"),
        ("arrivals=poisson,rate=0", "rate of poisson is 0; it must be above 0"),
        ("arrivals=poisson,rate", "not of the form key=value"),
        ("arrivals=diurnal,rate=1,amplitude=2", "amplitude of diurnal is 2"),
        ("prompt=tailed,median=1,sigma=1,tail=2,alpha=1", "must be a share"),
        ("request=5", "no part of a specification"),
        ("requests=2.5", "is no whole number"),
        ("requests=5 requests=6", "says requests twice"),
        ("requests=5 samples=2", "5 requests are not 2 samples of every prompt"),
        ("correlation=1", "must be above -1 and below 1"),
        ("lengths=x.csv correlation=0.5", "leave out correlation and samples"),
        ("lengths=none.csv", "there is no file none.csv"),
        ("think=3", "say how many users"),
        ("users=3 arrivals=poisson,rate=1", "they follow from the answers"),
        ("prompt='open", "open quote"),
    ],
)
def test_wrong_lines_are_refused(line: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(line)
