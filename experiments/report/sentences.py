"""What a comparison means, in sentences that its numbers bear out; policies within noise are never ranked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from experiments.compare import LOWER, Comparison
from experiments.labels import labels
from experiments.stats import Interval
from experiments.stress.answer import listed, percent, plus_minus, share_of_gain
from experiments.table import judge

BASELINE, ORACLE = "fcfs", "sjf"
TOLD = ("sjf", "ljf", "sjf-noise")
PHRASES = {
    "mean_jct_s": ("mean job completion time", " s"),
    "p99_jct_s": ("99th percentile of job completion time", " s"),
    "mean_ttft_s": ("mean time to first token", " s"),
    "output_throughput": ("throughput", " tokens/s"),
    "goodput": ("goodput", " requests/s"),
    "padding_ratio": ("padding ratio", " padded tokens a real one"),
}


def findings(comparison: Comparison, predictions: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The sentences, the most telling first.

    Args:
        comparison: of one or more policies.
        predictions: predictor -> its errors in tokens, as summary.json has them.
    """
    one_run = [metric for metric in PHRASES if not _sure(comparison, metric)]
    found = [_standing(comparison, metric) for metric in PHRASES if metric not in one_run]
    found[1:1] = [
        _without_truth(comparison),
        *_against_baseline(comparison),
        *_of_the_oracles_gain(comparison),
    ]
    if one_run and not any(_sure(comparison, metric) and judge(comparison, metric)[0] for metric in PHRASES):
        found = [_single(comparison), *found]
    return [sentence for sentence in found if sentence] + _predictions(predictions)


def caveats(comparison: Comparison, batching: str, latency: str, settings: Mapping[str, object]) -> list[str]:
    """What limits the findings.

    Args:
        comparison: of one or more policies.
        batching, latency: names of the batching and the latency model.
        settings: of one run (`sim.simulate.Result.settings`).
    """
    found = []
    if latency == "roofline":
        found.append("Step times come from a roofline model of the device, not from a measurement of it.")
    if len(comparison.setup.seeds) == 1:
        found.append(
            "This is one run. An interval, where there is one, is by batch means, and too narrow where the "
            "queue's memory is longer than a batch."
        )
    else:
        found.append(
            f"Intervals (±) are 95% t intervals over {len(comparison.setup.seeds)} replications; all policies "
            "meet the same requests in each, and differences are judged pair by pair."
        )
    rejected = max(int(result.metrics["rejected"]) for result in comparison.results.values())
    if rejected:
        found.append(f"Up to {rejected} requests of a run did not fit the server and were rejected.")
    when = {"arrival": "as soon as a request arrives", "prefill": "only after a request's prefill"}
    if any(result.settings.get("predictors_read") for result in comparison.results.values()):
        cost = settings.get("estimate_cost_s") or 0
        found.append(
            f"Estimates are there {when[str(settings['estimate_available'])]}, at a cost of {cost:g} s each; "
            "a predictor that reads the LLM's prefill has none before it."
        )
    told = [policy for policy in comparison.setup.policies if knows_lengths(policy)]
    if told:
        found.append(f"{_names(comparison, told)}: told the real lengths, which no scheduler knows.")
    if batching == "continuous":
        found.append("Under continuous batching nothing is padded.")
    return found


def _sure(comparison: Comparison, metric: str) -> bool:
    best, _, known = judge(comparison, metric)
    return known or not best


def _single(comparison: Comparison) -> str:
    best = comparison.best("mean_jct_s")
    if best is None:
        return ""
    lowest = comparison.interval(best, "mean_jct_s").mean
    return (
        f"In this one run {_called(comparison, best)} has the lowest mean job completion time, {lowest:.4g} s, but "
        "one run does not tell whether that is more than noise: draw arrivals, with 5 replications or more."
    )


def _standing(comparison: Comparison, metric: str) -> str:
    phrase, unit = PHRASES[metric]
    best, within, known = judge(comparison, metric)
    values = {policy: comparison.interval(policy, metric) for policy in comparison.setup.policies}
    means = {policy: value.mean for policy, value in values.items()}
    if not known or any(map(math.isnan, means.values())):
        return ""
    if not best:
        alike = next(iter(values.values()))
        same = "" if len(means) == 1 else ", the same under every policy"
        return f"The {phrase} is {plus_minus(alike)}{unit}{same}." if alike.mean else ""
    side = "lowest" if LOWER.fullmatch(metric) else "highest"
    others = [policy for policy in means if policy != best]
    if len(within) == len(others):
        low, high = min(means.values()), max(means.values())
        return (
            f"No policy can be told from {_called(comparison, best)} in {phrase}: {_span(low, high)}{unit}."
        )
    best_text = f"{_called(comparison, best)} has the {side} {phrase}, {plus_minus(values[best])}{unit}"
    if within:
        return f"{best_text}; {_names(comparison, within)} cannot be told from it."
    if len(others) == 1:
        return f"{best_text}, against {plus_minus(values[others[0]])} under {_called(comparison, others[0])}."
    return f"{best_text}; every other policy differs from it by more than noise."


def knows_lengths(policy: str) -> bool:
    """Whether the policy is one of those that are told the real lengths."""
    return policy.split(",")[0] in TOLD or "predictor=oracle" in policy.split(",")


def _without_truth(comparison: Comparison) -> str:
    """Who is best of those that a scheduler could run, where an oracle is best of all."""
    setup = comparison.setup
    real = tuple(policy for policy in setup.policies if not knows_lengths(policy))
    if len(real) in (0, 1, len(setup.policies)) or not knows_lengths(comparison.best("mean_jct_s") or ""):
        return ""
    results = {key: result for key, result in comparison.results.items() if key[0] in real}
    sentence = _standing(
        replace(comparison, setup=replace(setup, policies=real), results=results), "mean_jct_s"
    )
    return (
        f"Among those that are not told the real lengths: {sentence[0].lower()}{sentence[1:]}"
        if sentence
        else ""
    )


def _against_baseline(comparison: Comparison) -> list[str]:
    policies = [policy for policy in comparison.setup.policies if policy != BASELINE]
    if BASELINE not in comparison.setup.policies or not policies:
        return []
    base = comparison.interval(BASELINE, "mean_jct_s").mean
    gaps = {policy: comparison.difference(policy, BASELINE, "mean_jct_s") for policy in policies}
    if any(math.isnan(gap.half_width) for gap in gaps.values()):
        return []
    told: list[str] = []
    for verb, sign in (("lower", -1), ("raise", 1)):
        parts = [
            f"{_called(comparison, policy)} by {_amount(gap)} s ({100 * abs(gap.mean) / base:.0f}%)"
            for policy, gap in gaps.items()
            if not gap.includes_zero and gap.mean * sign > 0
        ]
        if parts:
            many = "" if len(parts) > 1 else "s"
            told.append(
                f"Against {BASELINE}, what {verb}{many} the mean job completion time: {'; '.join(parts)}."
            )
    alike = [policy for policy, gap in gaps.items() if gap.includes_zero]
    if alike:
        told.append(
            f"{_names(comparison, alike)} cannot be told from {BASELINE} in mean job completion time."
        )
    return told


def _of_the_oracles_gain(comparison: Comparison) -> list[str]:
    policies, seeds = comparison.setup.policies, comparison.setup.seeds
    if not {BASELINE, ORACLE} <= set(policies) or len(seeds) < 2:
        return []
    jct = {
        policy: np.array([float(result.metrics["mean_jct_s"]) for result in comparison.of_policy(policy)])
        for policy in policies
    }
    parts = []
    for policy in policies:
        if policy in (BASELINE, ORACLE):
            continue
        share = share_of_gain(jct[BASELINE], jct[ORACLE], jct[policy])
        if not math.isnan(share.mean):
            parts.append(f"{_called(comparison, policy)} {percent(share)}")
    return (
        [f"Of what the oracle gains over {BASELINE} there, this much is reached: {', '.join(parts)}."]
        if parts
        else []
    )


def _predictions(predictions: Mapping[str, Mapping[str, float]]) -> list[str]:
    if not predictions:
        return []
    parts = [f"{name} by {errors['mae_tokens']:.4g} tokens" for name, errors in predictions.items()]
    return [f"Estimates miss the real length on average (MAE): {', '.join(parts)}."]


def _called(comparison: Comparison, policy: str) -> str:
    return labels(comparison.setup.policies)[policy]


def _names(comparison: Comparison, policies: Sequence[str]) -> str:
    return listed([_called(comparison, policy) for policy in policies])


def _amount(gap: Interval) -> str:
    return plus_minus(Interval(abs(gap.mean), gap.half_width, gap.method, gap.samples))


def _span(low: float, high: float) -> str:
    shown = [f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}" for value in (low, high)]
    return f"about {shown[0]}" if shown[0] == shown[1] else f"{shown[0]} to {shown[1]}"
