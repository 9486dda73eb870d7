"""What if long answers are predicted short?

A growing share of the longest tenth of the requests is estimated at one token, as if somebody fooled
the predictor. Each holds up the batch that it slips into, and whoever is long and honest waits
behind all of them. "sjf" here is the oracle, fooled like the others; FCFS asks nobody. The last
predictor is also tried with aging, which makes up for a token of the estimate by a wait.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stats import paired_interval, t_interval
from experiments.stress.answer import Answer, change, listed, plus_minus
from experiments.stress.case import Case, Job, run, samples
from traces import Estimates
from traces.arrivals import Arrivals

TITLE = "What if long answers are predicted short?"
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
LONG = 0.9
ORACLE = "sjf"
# Tokens that a second of waiting is worth.
RATE = 20.0


def answer(case: Case) -> Answer:
    rate = case.rate()
    others = [policy for policy in case.policies if policy not in ("fcfs", "sjf")]
    aging = [f"aging,inner={policy.replace(',', '+')},rate={RATE:g}" for policy in others[-1:]]
    policies = ["fcfs", f"shortest,predictor={ORACLE}", *others, *aging]
    found = run(case, [_job(case, policies, rate, share) for share in SHARES])
    panels = [
        Curves(
            "of the longest tenth, predicted short (%)",
            label,
            [100 * share for share in SHARES],
            {p: [t_interval(samples(one, p, metric)) for one in found] for p in policies},
            log="y",
        )
        for metric, label in (("mean_jct_s", "mean JCT (s)"), ("max_queueing_s", "longest wait (s)"))
    ]
    return Answer(_sentence(found, policies), panels, 1, {"request_rate": rate})


def _job(case: Case, policies: list[str], rate: float, share: float) -> Job:
    truth = Estimates(ORACLE, case.trace.request_id, case.trace.output_tokens.astype(np.float64))
    told = {name: fooled(one, truth, share) for name, one in {**case.estimates, ORACLE: truth}.items()}
    return case.job(policies, Arrivals("poisson", rate), estimates=told)


def fooled(estimates: Estimates, truth: Estimates, share: float) -> Estimates:
    """One token for this share of the longest tenth; the same requests for every predictor, more for more.

    The shortest bin, where there are bins.
    """
    chance = np.random.default_rng(0).random(len(truth))
    mine = (truth.mean >= np.quantile(truth.mean, LONG)) & (chance < share)
    bins = estimates.probabilities
    if bins is not None:
        first = np.arange(bins.shape[1]) == 0
        bins = np.where(mine[:, None], first, bins)
    quantiles = {level: np.where(mine, 1.0, tokens) for level, tokens in estimates.quantiles.items()}
    mean = np.where(mine, 1.0, estimates.mean)
    return dataclasses.replace(estimates, mean=mean, quantiles=quantiles, probabilities=bins)


def _sentence(found: list[Comparison], policies: list[str]) -> str:
    honest, worst = found[0], found[-1]
    parts = []
    for policy in policies[1:]:
        before, after, base = (
            samples(one, p, "mean_jct_s") for one, p in ((honest, policy), (worst, policy), (worst, "fcfs"))
        )
        gap = paired_interval(after, base)
        side = "within noise of" if gap.includes_zero else "above" if gap.low > 0 else "still below"
        parts.append(f"{listed([policy])} {change(after, before)}, {side} fcfs")
    waits = ", ".join(
        f"{listed([p])} {plus_minus(t_interval(samples(worst, p, 'max_queueing_s')))} s" for p in policies
    )
    return (
        f"With the whole longest tenth predicted at one token, mean JCT changes: {'; '.join(parts)}; "
        f"the longest wait is then {waits}."
    )
