"""What may an estimate cost, and what if it is there only after the prefill?

Continuous batching in a peak, when 10% more comes than the server can do: without a queue no order
matters. An estimate made beside the server reaches it some seconds after the request came; until then
the request cannot be ranked. One that is read off the request's own prefill costs the engine's time
(`sim.parking`), and everybody's. The break-even is the cost at which the mean JCT is FCFS's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from experiments.labels import label
from experiments.plots import Curves
from experiments.stats import Interval, paired_interval, t_interval
from experiments.stress.answer import Answer, crossing, percent, plus_minus, ratio
from experiments.stress.case import Case, Floats, capacity, run, samples
from traces.arrivals import Arrivals

TITLE = "What may an estimate cost, and what if it is there only after the prefill?"
COSTS_MS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
# Beyond this an engine that estimates after each prefill does little else.
MOST_MS = {"arrival": math.inf, "prefill": 3.0}
CALLED = {"arrival": "{}", "prefill": "{} after prefill"}
PEAK = 1.1


def answer(case: Case) -> Answer:
    case = case.served_by("continuous")
    rate = case.request_rate or PEAK * capacity(case)
    policies = [policy for policy in case.policies if policy not in ("fcfs", "sjf")]
    cells = [(when, cost) for when, most in MOST_MS.items() for cost in (0.0, *COSTS_MS) if cost <= most]
    jobs = [
        case.served_by(estimate_available=when, estimate_cost_s=cost / 1000).job(
            ["fcfs", *policies] if not cost else policies, Arrivals("poisson", rate)
        )
        for when, cost in cells
    ]
    found = dict(zip(cells, run(case, jobs), strict=True))
    fcfs = samples(found["arrival", 0.0], "fcfs", "mean_jct_s")
    jct = {
        CALLED[when].format(label(policy)): {
            cost: samples(one, policy, "mean_jct_s") for (at, cost), one in found.items() if at == when
        }
        for policy in policies
        for when in MOST_MS
    }
    unknown = Interval(math.nan, math.nan, "none", 0)
    lines = {
        name: [t_interval(mine[cost]) if cost in mine else unknown for cost in COSTS_MS]
        for name, mine in jct.items()
    }
    panel = Curves(
        "an estimate takes (ms)",
        "mean JCT (s)",
        COSTS_MS,
        lines,
        log="xy",
        levels={"fcfs": t_interval(fcfs)},
    )
    even = {name: break_even(fcfs, mine) for name, mine in jct.items()}
    facts = {"request_rate": rate, "break_even_ms": {name: values.tolist() for name, values in even.items()}}
    told = ", ".join(_part(name, mine, fcfs, even[name]) for name, mine in jct.items())
    told = (
        f"In a peak, at {rate:.3g} requests/s, this is how much estimates that take no time lower mean JCT against "
        f"fcfs (and how long one may take until that is lost): {told}."
    )
    return Answer(told, [panel], 1, facts)


def break_even(fcfs: Floats, mine: Mapping[float, Floats]) -> Floats:
    """Milliseconds (seeds,) that an estimate may cost until FCFS is as good: 0 from the start, nan beyond the last.

    Args:
        fcfs: (seeds,) its mean JCT.
        mine: cost, from 0 upwards -> (seeds,) the policy's.
    """
    gaps = np.array(list(mine.values())) - fcfs
    return np.array([0.0 if gap[0] >= 0 else crossing(list(mine), gap.tolist(), 0.0) for gap in gaps.T])


def _part(name: str, mine: Mapping[float, Floats], fcfs: Floats, even: Floats) -> str:
    free, most = mine[0.0], max(mine)
    gap = paired_interval(free, fcfs)
    if not gap.high < 0:
        return f"{name} not beyond noise" if gap.includes_zero else f"{name} raises it"
    gain = f"{name} {percent(ratio(fcfs - free, fcfs))}"
    if np.isnan(even).any():
        return f"{gain} (more than {most:g} ms)"
    return f"{gain} ({plus_minus(t_interval(even))} ms)"
