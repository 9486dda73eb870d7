"""Up to which load does each policy keep up?

The request rate rises in steps of FCFS's capacity. A policy falls behind by what is left to do when
the last request has come: ``(drain(rate) - drain(lightest rate)) / span`` of the arrivals, the drain
being the time from the last arrival to the last completion. Its knee is the rate that it serves where
it falls behind by 5%, ``rate / 1.05``: for a server of constant service time, where its utilisation is 1.
"""

from __future__ import annotations

import numpy as np

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stats import paired_interval, t_interval
from experiments.stress.answer import Answer, change, crossing, listed, plus_minus, ranking, sentence
from experiments.stress.case import Case, Floats, capacity, run, samples
from traces.arrivals import Arrivals

TITLE = "Up to which load does each policy keep up?"
LOADS = (0.3, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.35, 1.5, 1.75)
BEHIND = 0.05


def answer(case: Case) -> Answer:
    most = capacity(case)
    rates = [load * most for load in LOADS]
    found = run(case, [case.job(case.policies, Arrivals("poisson", rate)) for rate in rates])
    knees = {policy: knee(found, policy) for policy in case.policies}
    lines = {
        policy: [t_interval(samples(one, policy, "mean_jct_s")) for one in found] for policy in case.policies
    }
    known = {policy: float(values.mean()) for policy, values in knees.items() if np.isfinite(values).all()}
    panel = Curves(
        "request rate (requests/s; upright: saturation)", "mean JCT (s)", rates, lines, log="y", marks=known
    )
    facts = {
        "capacity_of_fcfs": most,
        "knee_requests_per_s": {policy: values.tolist() for policy, values in knees.items()},
    }
    return Answer(
        _sentence({policy: knees[policy] for policy in known}, rates, case.policies), [panel], 1, facts
    )


def knee(found: list[Comparison], policy: str) -> Floats:
    """Requests per second at which a policy saturates, (seeds,); nan where it keeps up with every rate.

    Args:
        found: a comparison a rate; the first is so light that nothing is left behind.
    """
    span_s = np.array([[one.workloads[s].trace.arrival_s[-1] for s in one.setup.seeds] for one in found])
    drain_s = np.array([samples(one, policy, "duration_s") for one in found]) - span_s
    behind = (drain_s - drain_s[0]) / span_s
    # The rate as it was drawn, which differs from the one asked for by some percent.
    rate = (len(found[0].workloads[found[0].setup.seeds[0]].trace) - 1) / span_s
    crossed = [crossing(*columns, BEHIND) for columns in zip(rate.T, behind.T, strict=True)]
    return np.asarray(crossed, np.float64) / (1 + BEHIND)


def _sentence(knees: dict[str, Floats], rates: list[float], policies: tuple[str, ...]) -> str:
    endless = [policy for policy in policies if policy not in knees]
    beyond = f"even {rates[-1]:.3g} requests/s are not too much for {listed(endless)}" if endless else ""
    if not knees:
        return sentence(beyond)
    best, near, rest = ranking(knees, lower=False)
    if near and not rest:
        return f"Noise does not tell apart where {listed([best, *near])} saturate."
    told = f"most is carried by {listed([best])}, {plus_minus(t_interval(knees[best]))} requests/s"
    if near:
        told += f" ({listed(near)} within noise of it)"
    for ahead, policy in zip(["", *rest], rest, strict=False):
        less = change(knees[policy], knees[best])
        told += f"; {listed([policy])} saturates at {plus_minus(t_interval(knees[policy]))} ({less})"
        if ahead and paired_interval(knees[ahead], knees[policy]).includes_zero:
            told += f", within noise of {listed([ahead])}"
    return sentence(f"{beyond}; of the others {told}" if beyond else told)
