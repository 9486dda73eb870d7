"""How much of the oracle's gain does each predictor capture?

Over FCFS, in mean JCT and in padding, under padded batches: 100% is what the true lengths would save,
0% is FCFS.
"""

from __future__ import annotations

import math

from experiments.plots import Bars
from experiments.stats import Interval
from experiments.stress.answer import Answer, hundred, listed, percent, ranking, sentence, share_of_gain
from experiments.stress.case import Case, Floats, run, samples
from traces.arrivals import Arrivals

TITLE = "How much of the oracle's gain does each predictor capture?"
METRICS = {"mean_jct_s": "mean JCT", "padding_ratio": "padding"}


def answer(case: Case) -> Answer:
    case = case.served_by("static")
    rate = case.rate()
    policies = {name: f"shortest,predictor={name}" for name in case.estimates}
    (found,) = run(case, [case.job(["fcfs", "sjf", *policies.values()], Arrivals("poisson", rate))])
    panels, parts = [], []
    order: list[str] = []
    for metric, called in METRICS.items():
        fcfs, sjf = (samples(found, policy, metric) for policy in ("fcfs", "sjf"))
        mine = {name: samples(found, policy, metric) for name, policy in policies.items()}
        shares = {name: share_of_gain(fcfs, sjf, values) for name, values in mine.items()}
        order = order or sorted(shares, key=lambda name: -shares[name].mean)
        panels.append(Bars(f"{called}:\n% of sjf's gain", {n: hundred(shares[n]) for n in order}, "higher"))
        parts.append(_part(called, shares, mine))
    return Answer(sentence("; ".join(parts)), panels, 1, {"request_rate": rate})


def _part(called: str, shares: dict[str, Interval], values: dict[str, Floats]) -> str:
    if any(math.isnan(share.mean) for share in shares.values()):
        return (
            f"of {called} the true lengths save nothing over FCFS beyond noise, so there is no gain to share"
        )
    best, near, rest = ranking(values)
    if near and not rest:
        return f"noise does not tell apart how much of the gain in {called} each captures"
    told = f"of what the true lengths save in {called}, {listed([best])} captures {percent(shares[best])}"
    if near:
        told += f" ({listed(near)} within noise of it)"
    if rest:
        told += f" and {listed(rest[-1:])}, the least, {percent(shares[rest[-1]])}"
    return told
