"""What do bursts do?

The same mean rate with gamma gaps of a rising coefficient of variation (CV): 1 is Poisson, at 8 most
requests come in clumps with long silences between them.
"""

from __future__ import annotations

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stats import t_interval
from experiments.stress.answer import Answer, change, leads, listed, plus_minus, ranking, ratio
from experiments.stress.case import Case, run, samples
from traces.arrivals import Arrivals, burstiness_of

TITLE = "What do bursts do?"
CVS = (1.0, 2.0, 4.0, 8.0)


def answer(case: Case) -> Answer:
    rate = case.rate()
    jobs = [case.job(case.policies, Arrivals("gamma", rate, burstiness_of(cv))) for cv in CVS]
    found = run(case, jobs)
    panels = [
        Curves(
            "CV of the gaps between arrivals",
            label,
            CVS,
            {p: [t_interval(samples(one, p, metric)) for one in found] for p in case.policies},
            log="xy",
            x_ticks={cv: f"{cv:g}" for cv in CVS},
        )
        for metric, label in (("mean_jct_s", "mean JCT (s)"), ("p99_jct_s", "p99 JCT (s)"))
    ]
    return Answer(_sentence(found, case.policies), panels, 1, {"request_rate": rate})


def _sentence(found: list[Comparison], policies: tuple[str, ...]) -> str:
    steady, bursty = ({p: samples(one, p, "mean_jct_s") for p in policies} for one in (found[0], found[-1]))
    grows = ", ".join(f"{listed([p])} {plus_minus(ratio(bursty[p], steady[p]))}" for p in policies)
    best, base = ranking(bursty)[0], policies[0]
    told = leads(bursty, "the least there")
    if best != base:
        there, steadily = (change(one[best], one[base]) for one in (bursty, steady))
        told += f"; against {listed([base])}, {listed([best])} is at {there} (under Poisson: {steadily})"
    return (
        f"From Poisson arrivals to gaps of CV {CVS[-1]:g}, mean JCT grows by these factors: {grows}; {told}."
    )
