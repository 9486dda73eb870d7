"""What may an estimate cost?

A request cannot be ranked before its estimate is there, some seconds after it came; FCFS waits for
none. The break-even is the cost at which the mean JCT is FCFS's.
"""

from __future__ import annotations

import numpy as np

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stats import paired_interval, t_interval
from experiments.stress.answer import Answer, crossing, listed, percent, plus_minus, ratio
from experiments.stress.case import Case, Floats, run, samples
from traces.arrivals import Arrivals

TITLE = "What may an estimate cost?"
COSTS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def answer(case: Case) -> Answer:
    rate = case.rate()
    arrivals = Arrivals("poisson", rate)
    policies = [policy for policy in case.policies if policy not in ("fcfs", "sjf")]
    free = case.job(["fcfs", *policies], arrivals)
    priced = [case.served_by(estimate_cost_s=cost).job(policies, arrivals) for cost in COSTS_S]
    base, *found = run(case, [free, *priced])
    fcfs = samples(base, "fcfs", "mean_jct_s")
    lines = {p: [t_interval(samples(one, p, "mean_jct_s")) for one in found] for p in policies}
    even = {p: break_even(fcfs, [samples(one, p, "mean_jct_s") for one in (base, *found)]) for p in policies}
    panel = Curves(
        "seconds from an arrival to its estimate",
        "mean JCT (s)",
        COSTS_S,
        lines,
        log="xy",
        levels={"fcfs": t_interval(fcfs)},
    )
    facts = {"request_rate": rate, "break_even_s": {p: values.tolist() for p, values in even.items()}}
    return Answer("; ".join(_part(p, base, fcfs, even[p]) for p in policies) + ".", [panel], 1, facts)


def break_even(fcfs: Floats, mine: list[Floats]) -> Floats:
    """Seconds (seeds,) that an estimate may cost until FCFS is as good: 0 from the start, nan beyond the last.

    Args:
        fcfs: (seeds,) its mean JCT.
        mine: the policy's at no cost, then at each of ``COSTS_S``.
    """
    gaps = np.array(mine) - fcfs
    costs = (0.0, *COSTS_S)
    return np.array([0.0 if gap[0] >= 0 else crossing(costs, gap.tolist(), 0.0) for gap in gaps.T])


def _part(policy: str, base: Comparison, fcfs: Floats, even: Floats) -> str:
    free = samples(base, policy, "mean_jct_s")
    name = listed([policy])
    gap = paired_interval(free, fcfs)
    if gap.includes_zero:
        return f"{name} is within noise of fcfs even if its estimates cost nothing"
    if gap.low > 0:
        return f"{name} is behind fcfs even if its estimates cost nothing"
    gain = f"{name}, {percent(ratio(fcfs - free, fcfs))} below fcfs in mean JCT with free estimates,"
    if np.isnan(even).any():
        return f"{gain} is still ahead when an estimate takes {COSTS_S[-1]:g} s"
    return f"{gain} is ahead as long as an estimate takes less than {plus_minus(t_interval(even))} s"
