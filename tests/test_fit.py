"""Fitted parameters of synthetic traces lie within their 95% intervals about as often as they should.

Truth: the parameters that the traces were drawn with, and maximum likelihood by scipy's own fits.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import linalg, stats

from traces import InputError, modulated
from traces.describe import describe, tail_index
from traces.families import fit_gamma, fit_lognormal, fit_tail, fit_weibull
from traces.fit import fit
from traces.synthetic import parse_spec, synthesise

SEEDS = 60


@pytest.mark.parametrize(
    ("process", "truth"),
    [
        ("poisson", {"rate": 3.0}),
        ("gamma", {"rate": 3.0, "shape": 0.4}),
        ("weibull", {"rate": 3.0, "shape": 0.6}),
    ],
)
def test_parameters_are_recovered(process: str, truth: dict[str, float]) -> None:
    arrivals = ",".join([process, *(f"{name}={value}" for name, value in truth.items())])
    lengths = {"median": 350.0, "sigma": 0.9}
    covered = dict.fromkeys([*truth, *lengths, "correlation", "alpha"], 0)
    for seed in range(SEEDS):
        fits = fit(
            synthesise(
                parse_spec(
                    f"arrivals={arrivals} prompt=lognormal,median=350,sigma=0.9 "
                    f"output=pareto,least=100,alpha=1.7 correlation=0.4 requests=600 seed={seed}"
                )
            ),
            goodness=False,
        )
        own = next(family for family in fits.arrivals if family.family == process)
        found = {**own.parameters, **fits.prompt[0].parameters, "alpha": fits.tails["output"]}
        assert fits.correlation is not None
        found["correlation"] = fits.correlation
        for name, value in {**truth, **lengths, "correlation": 0.4, "alpha": 1.7}.items():
            covered[name] += found[name].low <= value <= found[name].high
    # 57 are expected; fewer than 50 of 60 has a chance of 1 in 2000.
    assert min(covered.values()) >= 50, covered


def test_bursts_are_recovered() -> None:
    truth = {"rate": 2.0, "burst_rate": 30.0, "calm_s": 20.0, "burst_s": 4.0}
    arrivals = ",".join(["bursts", *(f"{name}={value}" for name, value in truth.items())])
    covered = dict.fromkeys(truth, 0)
    for seed in range(12):
        fits = fit(synthesise(parse_spec(f"arrivals={arrivals} requests=2000 seed={seed}")), goodness=False)
        assert fits.arrivals[0].family == "bursts"
        for name, value in truth.items():
            found = fits.arrivals[0].parameters[name]
            covered[name] += found.low <= value <= found.high
    # Nine of ten would be expected at the least; fewer than 8 of 12 has a chance of 1 in 200.
    assert min(covered.values()) >= 8, covered
    assert fits.spec().startswith("arrivals=bursts,rate=")


def test_the_likelihood_of_bursts_is_that_of_the_definition() -> None:
    gaps = np.array([0.3, 1.2, 0.05, 0.7, 2.0])
    rate, burst_rate, leave, end = 0.5, 4.0, 0.2, 0.9
    rates = np.diag([rate, burst_rate])
    switching = np.array([[-leave, leave], [end, -end]])
    state = np.array([end * rate, leave * burst_rate])
    density = state / state.sum()
    for gap in gaps:
        density = density @ linalg.expm((switching - rates) * gap) @ rates
    logs = np.log([rate, burst_rate, leave, end])
    assert modulated._log_likelihood(logs, gaps) == pytest.approx(math.log(density.sum()), rel=1e-12)


def test_pareto_lengths_are_recovered() -> None:
    covered = {"least": 0, "alpha": 0}
    for seed in range(SEEDS):
        spec = f"arrivals=poisson,rate=1 output=pareto,least=20,alpha=1.5 requests=600 seed={seed}"
        best = fit(synthesise(parse_spec(spec)), goodness=False).output[0]
        assert best.family == "pareto"
        for name, value in (("least", 20), ("alpha", 1.5)):
            covered[name] += best.parameters[name].low <= value <= best.parameters[name].high
    assert min(covered.values()) >= 50, covered


def test_the_right_family_is_first_and_fits() -> None:
    for process in ("gamma,rate=2,shape=0.3", "weibull,rate=2,shape=0.5"):
        fits = fit(synthesise(parse_spec(f"arrivals={process} requests=1500 seed=2")), seed=1)
        assert fits.arrivals[0].family == process.split(",")[0]
        assert fits.arrivals[0].p_value is not None
        assert fits.arrivals[0].p_value > 0.05
        poisson = next(family for family in fits.arrivals if family.family == "poisson")
        assert poisson.p_value == 0.01
        # What is fitted can be drawn again.
        assert len(synthesise(parse_spec(fits.spec()))) == 1500


def test_maximum_likelihood_agrees_with_scipy() -> None:
    rng = np.random.default_rng(5)
    gaps = rng.gamma(0.7, 2.0, 400)
    shape, _, scale = stats.gamma.fit(gaps, floc=0)
    own = fit_gamma(gaps)[0]
    assert own.parameters["shape"].value == pytest.approx(shape, rel=1e-4)
    assert own.aic == pytest.approx(4 - 2 * stats.gamma.logpdf(gaps, shape, 0, scale).sum(), rel=1e-6)
    assert own.distance == pytest.approx(stats.kstest(gaps, "gamma", (shape, 0, scale)).statistic, abs=1e-4)
    shape, _, scale = stats.weibull_min.fit(gaps, floc=0)
    own = fit_weibull(gaps)[0]
    assert own.parameters["shape"].value == pytest.approx(shape, rel=1e-3)
    assert own.aic == pytest.approx(4 - 2 * stats.weibull_min.logpdf(gaps, shape, 0, scale).sum(), rel=1e-6)
    own = fit_lognormal(gaps)[0]
    sigma = np.log(gaps).std(ddof=1)
    assert own.aic == pytest.approx(
        4 - 2 * stats.lognorm.logpdf(gaps, sigma, 0, np.exp(np.log(gaps).mean())).sum(), abs=2
    )


def test_what_cannot_be_fitted_is_said() -> None:
    tied = synthesise(parse_spec("requests=50"))
    assert fit(tied, goodness=False).notes[0] == "there are no arrival times to fit"
    coarse = synthesise(parse_spec("arrivals=poisson,rate=100 requests=500"))
    coarse = coarse.replace(arrival_s=np.floor(coarse.arrival_s))
    assert "clock is too coarse" in fit(coarse, goodness=False).notes[0]
    waves = synthesise(parse_spec("arrivals=bursts,rate=1,burst_rate=50,calm_s=20,burst_s=5 requests=3000"))
    assert "hang together" in fit(waves, goodness=False).notes[0]
    flat = synthesise(parse_spec("arrivals=poisson,rate=1 output=constant,tokens=4 requests=50"))
    found = fit(flat, goodness=False)
    assert "output lengths are all 4 tokens" in found.notes
    assert found.correlation is None
    with pytest.raises(InputError, match="more than 20 requests"):
        fit(synthesise(parse_spec("requests=20")))


def test_tails() -> None:
    rng = np.random.default_rng(1)
    tokens = np.rint(50 * rng.random(200_000) ** (-1 / 1.3))
    assert tail_index(tokens) == pytest.approx(1.3, abs=4 * 1.3 / np.sqrt(10_000))
    tail = fit_tail(tokens)
    assert tail is not None
    assert tail.low < 1.3 < tail.high
    assert tail_index(np.full(1000, 7)) is None
    assert fit_tail(np.full(1000, 7.0)) is None


def test_description_by_hand() -> None:
    trace = synthesise(parse_spec("output=constant,tokens=10 requests=41"))
    # Pairs of arrivals each second: gaps of 0 and 1 in turn, four counts in every two windows.
    trace = trace.replace(arrival_s=np.arange(41) // 2, session_id=np.r_[-1, np.repeat(np.arange(20), 2)])
    facts = describe(trace)
    assert facts["span_s"] == 20
    assert facts["rate"] == 2
    assert facts["gaps"] == {"mean_s": 0.5, "cv": 1.0, "tied": 0.5}
    assert facts["windows"]["1s"] == {"dispersion": 0.0, "peak": 1.0}
    assert "10s" not in facts["windows"]
    assert facts["output_tokens"]["total"] == 410
    assert facts["output_tokens"]["tail_index"] is None
    assert facts["correlation"] == {"spearman": None, "pearson_log": None}
    assert facts["sessions"] == {"sessions": 20, "mean_turns": 2.0, "longest": 2}
    json.dumps(facts, allow_nan=False)


def test_prefixes_by_hand() -> None:
    trace = synthesise(parse_spec("prompt=constant,tokens=10 samples=4 requests=8"))
    # Of two groups of four prompts of ten tokens all but the first of each is seen before.
    assert describe(trace)["prefixes"] == {"repeated": 0.75}
    ids = [np.array(row) for row in ([1, 2], [1], [1, 2], [3], [], [], [], [])]
    assert describe(trace.replace(hash_ids=ids))["prefixes"] == {"repeated": 0.5}
