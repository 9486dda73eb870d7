"""What do heavy tails of the output lengths do?

Each request keeps its rank and the trace its mean length, but the lengths become Pareto's: the share
longer than x falls as x^-alpha, so the smaller alpha is, the more of all tokens lie in a few answers.
Estimates go through the same map, so every predictor orders the requests as well as before. The load
stays at the same share of what FCFS can serve.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stress.answer import Answer, change, leads, listed, ranking, ratio
from experiments.stress.case import Case, Floats, Job, capacity, run, samples
from traces import Estimates, Trace
from traces.arrivals import Arrivals

TITLE = "What do heavy tails do?"
ALPHAS = (1.2, 1.5, 2.0, 3.0, 5.0)
TICKS = (1.2, 2.0, 3.0, 5.0)
# No server writes without end; beyond this an answer is cut.
LONGEST = 32_768
METRICS = {"mean_jct_s": "mean JCT / {}'s", "p99_jct_s": "p99 JCT / {}'s"}


def answer(case: Case) -> Answer:
    jobs, rates = [], []
    for alpha in ALPHAS:
        job, rate = _job(case, alpha)
        jobs.append(job)
        rates.append(rate)
    found = run(case, jobs)
    base = case.policies[0]
    panels = [
        Curves(
            "tail index alpha (left: heavier)",
            label.format(listed([base])),
            ALPHAS,
            {
                p: [ratio(samples(one, p, metric), samples(one, base, metric)) for one in found]
                for p in case.policies
            },
            log="xy",
            x_ticks={alpha: f"{alpha:g}" for alpha in TICKS},
        )
        for metric, label in METRICS.items()
    ]
    facts = {"request_rate_of_alpha": dict(zip(map(str, ALPHAS), rates, strict=True))}
    return Answer(_sentence(found, case.policies), panels, 1, facts)


def _job(case: Case, alpha: float) -> tuple[Job, float]:
    trace, estimates = with_tail(case.trace, case.estimates, alpha)
    rate = case.request_rate or case.load * capacity(case, trace)
    return case.job(case.policies, Arrivals("poisson", rate), trace, estimates), rate


def with_tail(
    trace: Trace, estimates: Mapping[str, Estimates], alpha: float
) -> tuple[Trace, dict[str, Estimates]]:
    """The trace with lengths of a Pareto tail and the same mean, and its estimates through the same map.

    Equal lengths get ranks side by side in a random order: a length that was cut has no rank of its own.
    """
    old = trace.output_tokens.astype(np.float64)
    n = len(old)
    ordered = np.sort(old)
    new = pareto(n, alpha, float(old.mean()))
    rank = np.empty(n, np.int64)
    rank[np.lexsort((np.random.default_rng(0).random(n), old))] = np.arange(n)

    def mapped(length: Floats) -> Floats:
        """The middle of what lengths like this one have become."""
        between = np.searchsorted(ordered, length, "left") + np.searchsorted(ordered, length, "right")
        return np.asarray(np.interp(between / 2, np.arange(n) + 0.5, new))

    lengths = np.maximum(np.round(new[rank]), 1).astype(np.int64)
    return trace.replace(output_tokens=lengths), {
        name: dataclasses.replace(
            one,
            mean=mapped(one.mean),
            quantiles={level: mapped(tokens) for level, tokens in one.quantiles.items()},
            # What lies beyond all lengths has nowhere to go; bins must not become empty by that.
            bin_edges=None
            if one.bin_edges is None
            else mapped(one.bin_edges) + np.arange(len(one.bin_edges)) * 1e-6,
        )
        for name, one in estimates.items()
    }


def pareto(n: int, alpha: float, mean: float) -> Floats:
    """n quantiles, rising, of a Pareto distribution cut at ``LONGEST``, scaled to this mean."""
    shape = (1 - (np.arange(n) + 0.5) / n) ** (-1 / alpha)
    low, high = 0.0, mean
    for _ in range(100):
        scale = (low + high) / 2
        if np.minimum(scale * shape, LONGEST).mean() < mean:
            low = scale
        else:
            high = scale
    return np.asarray(np.minimum(high * shape, LONGEST))


def _sentence(found: list[Comparison], policies: tuple[str, ...]) -> str:
    heavy = found[0]
    base = policies[0]
    parts = []
    for metric, called in (("mean_jct_s", "mean JCT"), ("p99_jct_s", "p99 JCT")):
        values = {p: samples(heavy, p, metric) for p in policies}
        best = ranking(values)[0]
        told = leads(values, f"the least {called}")
        if best != base:
            light = change(samples(found[-1], best, metric), samples(found[-1], base, metric))
            told += f", {listed([best])} against {listed([base])}: {change(values[best], values[base])}"
            told += f" (with alpha {ALPHAS[-1]:g}: {light})"
        parts.append(told)
    return f"With a Pareto tail of alpha {ALPHAS[0]:g}, {'; '.join(parts)}."
