"""How good must a predictor be?

Shortest first by the true lengths times exp(sigma N(0, 1)): sigma = 0 is the oracle, a large one a
random order. The same curve against Kendall's tau of the noisy lengths with the true ones, and on
it every predictor that there are estimates of: at its own tau, and at the standard deviation of
log(estimate / truth), which is sigma where the error is log-normal.
"""

from __future__ import annotations

import math

import numpy as np

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stats import Interval, t_interval
from experiments.stress.answer import (
    Answer,
    crossing,
    kendall_tau,
    listed,
    percent,
    ranking,
    share_of_gain,
)
from experiments.stress.case import Case, Floats, run, samples
from traces.arrivals import Arrivals

TITLE = "How good must a predictor be?"
SIGMAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
CURVE = "sjf with noise"


def answer(case: Case) -> Answer:
    case = case.served_by("static")
    rate = case.rate()
    noisy = [f"sjf-noise,sigma={sigma:g}" for sigma in SIGMAS]
    predictors = {name: f"shortest,predictor={name}" for name in case.estimates}
    (found,) = run(case, [case.job(["fcfs", "sjf", *noisy, *predictors.values()], Arrivals("poisson", rate))])
    truth = case.trace.output_tokens.astype(np.float64)
    taus = [kendall_tau(with_noise(truth, sigma), truth) for sigma in SIGMAS]
    places = {
        name: (spread_of_error(one.mean, truth), kendall_tau(one.mean, truth))
        for name, one in case.estimates.items()
    }
    panels = []
    for metric, called in {"mean_jct_s": "mean JCT (s)", "padding_ratio": "padding ratio"}.items():
        for axis, x in enumerate((SIGMAS, taus)):
            panels.append(
                Curves(
                    ("error (sigma of log length)", "Kendall tau")[axis],
                    called,
                    x,
                    {CURVE: [t_interval(samples(found, policy, metric)) for policy in noisy]},
                    levels={p: t_interval(samples(found, p, metric)) for p in ("fcfs", "sjf")},
                    points={
                        name: (places[name][axis], t_interval(samples(found, policy, metric)))
                        for name, policy in predictors.items()
                    },
                )
            )
    facts = {
        "request_rate": rate,
        "kendall_tau_of_sigma": dict(zip(map(str, SIGMAS), taus, strict=True)),
        "predictors": {name: {"sigma": s, "kendall_tau": tau} for name, (s, tau) in places.items()},
    }
    return Answer(_sentence(found, noisy, predictors, taus, places), panels, 2, facts)


def with_noise(truth: Floats, sigma: float) -> Floats:
    """Lengths (n,) as a predictor with log-normal error tells them; one draw for every sigma."""
    return np.asarray(truth * np.exp(sigma * np.random.default_rng(0).standard_normal(len(truth))))


def spread_of_error(estimate: Floats, truth: Floats) -> float:
    """Standard deviation of log(estimate / truth); an estimate below one token counts as one."""
    return float(np.std(np.log(np.maximum(estimate, 1.0) / truth)))


def _sentence(
    found: Comparison,
    noisy: list[str],
    predictors: dict[str, str],
    taus: list[float],
    places: dict[str, tuple[float, float]],
) -> str:
    fcfs, sjf = (samples(found, policy, "mean_jct_s") for policy in ("fcfs", "sjf"))
    kept = [share_of_gain(fcfs, sjf, samples(found, policy, "mean_jct_s")).mean for policy in noisy]
    if math.isnan(kept[0]):
        return (
            "The true lengths gain nothing over FCFS here beyond noise, so no predictor can: raise the load."
        )
    parts = []
    for share in (0.9, 0.5):
        sigma, tau = crossing(SIGMAS, kept, share), crossing(taus, kept, share)
        parts.append(f"{share:.0%} up to sigma {sigma:.2f} (Kendall tau {tau:.2f})")
    values = {name: samples(found, policy, "mean_jct_s") for name, policy in predictors.items()}
    best, near, rest = ranking(values)
    gain: dict[str, Interval] = {name: share_of_gain(fcfs, sjf, values[name]) for name in values}
    told = f"{best} (tau {places[best][1]:.2f}) captures {percent(gain[best])}"
    if near:
        told += f", within noise of it {listed(near)}"
    if rest:
        told += f", and {rest[-1]} (tau {places[rest[-1]][1]:.2f}) the least, {percent(gain[rest[-1]])}"
    return f"Of the mean JCT that true lengths save over FCFS, noise leaves {' and '.join(parts)}; {told}."
