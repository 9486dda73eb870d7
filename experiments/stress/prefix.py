"""What does prefix caching save, and whom?

The same requests under continuous batching with and without the cache, grouped by the share of their
prompt that the cache held. A trace that tells what its prompts share is taken as it is; for any other,
prompts begin with one of some system prompts, a few of which most users have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from experiments import plots
from experiments.compare import Comparison
from experiments.report_files import hit_shares
from experiments.stats import t_interval
from experiments.stress.answer import Answer, change, percent
from experiments.stress.case import Case, Floats, capacity, run, samples
from traces import Trace
from traces.arrivals import Arrivals

TITLE = "What does prefix caching save, and whom?"
WITH, WITHOUT = "with prefix cache", "without"
PROMPTS = 24
# The k-th system prompt is used in proportion to 1 / k.
PREFIX_TOKENS, OWN_TOKENS = (100, 2000), (20, 1500)
SHARING = ("hash_ids", "prefix_id", "session_id")


def answer(case: Case) -> Answer:
    told = any(getattr(case.source, name) is not None for name in SHARING)
    trace = case.source if told else with_system_prompts(case.trace)
    case = dataclasses.replace(case, num_requests=min(case.num_requests, len(trace)))
    cached, bare = (case.served_by("continuous", enable_prefix_caching=on) for on in (True, False))
    arrivals = Arrivals("poisson", case.request_rate or case.load * capacity(bare, trace))
    on, off = run(case, [one.job(("fcfs",), arrivals, trace, {}) for one in (cached, bare)])
    pairs = [
        (hit_shares(a), hit_shares(b))
        for a, b in zip(*(one.of_policy("fcfs") for one in (on, off)), strict=True)
    ]
    # Without the cache nobody finds anything: the same requests are told apart by what the cache holds.
    found = {WITH: [with_it for with_it, _ in pairs], WITHOUT: [(a[0], b[1]) for a, b in pairs]}
    facts = {"request_rate": arrivals.rate, "prefixes": "as in the trace" if told else "made"}
    return Answer(_sentence(on, off, found), [plots.ttft_by_hit_share(found)], 1, facts)


def with_system_prompts(trace: Trace) -> Trace:
    """The trace with prompts of a system prompt and something of their own, in tokens; its outputs stay."""
    rng = np.random.default_rng(0)
    weight = 1 / np.arange(1, PROMPTS + 1)
    which = rng.choice(PROMPTS, len(trace), p=weight / weight.sum())
    shared = _log_uniform(rng, PREFIX_TOKENS, PROMPTS)[which]
    prompt = shared + _log_uniform(rng, OWN_TOKENS, len(trace))
    return trace.replace(prompt_tokens=prompt, prefix_id=which, prefix_tokens=shared)


def _log_uniform(rng: np.random.Generator, ends: tuple[int, int], n: int) -> NDArray[np.int64]:
    return np.exp(rng.uniform(np.log(ends[0]), np.log(ends[1]), n)).astype(np.int64)


def _sentence(on: Comparison, off: Comparison, found: Mapping[str, list[tuple[Floats, Floats]]]) -> str:
    held = percent(t_interval(samples(on, "fcfs", "prefix_hit_rate")))
    told = f"The cache holds {held} of the prompt tokens; mean TTFT:"
    whole = change(*(samples(one, "fcfs", "mean_ttft_s") for one in (on, off)))
    parts = []
    for whom, low, high in (
        ("who find more than 90% of their prompt", 0.9, 1.0),
        ("who find none of it", -1, 0),
    ):
        groups = [
            [ttft_s[(share > low) & (share <= high)] for share, ttft_s in found[n]] for n in (WITH, WITHOUT)
        ]
        if all(len(group) for runs in groups for group in runs):
            now, before = (np.array([group.mean() for group in runs]) for runs in groups)
            parts.append(f"{change(now, before)} for those {whom}")
    return f"{told} {whole}" + (f" ({', '.join(parts)})." if parts else ".")
