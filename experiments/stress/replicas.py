"""How many replicas does a service level need?

The fewest servers at which a share of the requests meets the bounds (``--goodput``), surely: the lower
end of the 95% interval over replications must reach it. Found by bisection, which takes it that
more servers never meet fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stats import Interval, t_interval
from experiments.stress.answer import Answer, hundred, listed
from experiments.stress.case import Case, run, samples
from sim.metrics import parse_goodput
from traces.arrivals import Arrivals
from traces.errors import InputError

TITLE = "How many replicas does a service level need?"
SHARE = 0.95
# So many times what one server can do, unless a rate is given.
SERVERS_OF_LOAD = 8
MOST = 1024


def answer(case: Case) -> Answer:
    one = case.served_by(replicas=1)
    rate = case.request_rate or SERVERS_OF_LOAD * one.rate()
    bounds = case.server.goodput or default_bounds(one)
    probed: dict[int, Comparison] = {}

    def probe(replicas: int) -> Comparison:
        if replicas not in probed:
            served = case.served_by(replicas=replicas, goodput=bounds)
            (probed[replicas],) = run(case, [served.job(case.policies, Arrivals("poisson", rate))])
        return probed[replicas]

    def holds(policy: str, replicas: int) -> bool:
        share = t_interval(samples(probe(replicas), policy, "goodput_share"))
        return bool(share.mean - np.nan_to_num(share.half_width) >= SHARE)

    need = {policy: fewest(partial(holds, policy)) for policy in case.policies}
    tried = sorted(probed)
    met = {p: [hundred(t_interval(samples(probed[k], p, "goodput_share"))) for k in tried] for p in need}
    panel = Curves(
        "replicas",
        f"requests with {said(bounds)} (%)",
        tried,
        met,
        levels={"asked for": Interval(100 * SHARE, math.nan, "none", 0)},
        points={p: (k, met[p][tried.index(k)]) for p, k in need.items()},
        log="x",
        x_ticks={k: str(k) for k in tried if k & (k - 1) == 0},
    )
    facts = {"request_rate": rate, "bounds": list(bounds), "share": SHARE, "replicas": need}
    return Answer(_sentence(need, rate, bounds), [panel], 1, facts)


def default_bounds(case: Case) -> tuple[str, ...]:
    """Twice what all but the longest hundredth take alone on an idle server, rounded to half a second."""
    (found,) = run(case, [case.job(("fcfs",), Arrivals("burst"), estimates={})])
    alone_s = np.concatenate([result.records["alone_s"].to_numpy() for result in found.of_policy("fcfs")])
    return (f"e2el:{500 * max(1, round(4 * float(np.quantile(alone_s, 0.99)))):d}",)


def fewest(holds: Callable[[int], bool], most: int = MOST) -> int:
    """The least number from 1 on for which ``holds``, if it holds for every larger one as well.

    Raises:
        InputError: it does not hold even for ``most``.
    """
    high = 1
    while not holds(high):
        if high >= most:
            raise InputError(f"even {most} replicas do not meet the bounds; loosen --goodput")
        high = min(2 * high, most)
    low = high // 2
    # holds(high), and not holds(low): what stands between them shrinks by half.
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def said(bounds: tuple[str, ...]) -> str:
    """``e2el:13000`` as ``JCT within 13 s``."""
    names = {"e2el": "JCT", "ttft": "TTFT", "tpot": "TPOT"}
    return " and ".join(f"{names[name]} within {s:g} s" for name, s in parse_goodput(bounds).items())


def _sentence(need: dict[str, int], rate: float, bounds: tuple[str, ...]) -> str:
    order = sorted(set(need.values()))
    parts = [f"{k} under {listed([p for p in need if need[p] == k])}" for k in order]
    parts[0] = parts[0].replace(" under", f" replica{'s' * (order[0] > 1)} under")
    return (
        f"To be sure (95% interval) that {SHARE:.0%} of {rate:.3g} requests/s have a {said(bounds)}, it takes "
        f"{', '.join(parts)}."
    )
