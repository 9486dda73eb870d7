"""Seeded prompts in three scenarios that mirror ForeLen's (arXiv 2602.11812): longseq, reasoning, rl.

The task, its asked-for form and the material are drawn independently, so that neither the scenario nor the
prompt's length tells how long the answer will be: a long document may be asked for one name, and a
one-line question for a guide in ten steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from predictor.prompts import longseq, reasoning, rl

MAKERS: dict[str, Callable[[np.random.Generator], str]] = {
    "longseq": longseq.make,
    "reasoning": reasoning.make,
    "rl": rl.make,
}
SAMPLES = {"longseq": 1, "reasoning": 1, "rl": 4}
TEMPERATURE = {"longseq": 0.7, "reasoning": 0.7, "rl": 1.0}


@dataclass(frozen=True)
class Prompt:
    """One prompt: how often it is sampled and at which temperature belongs to its scenario."""

    prompt_id: str
    scenario: str
    text: str
    samples: int
    temperature: float


def generate(counts: dict[str, int], seed: int) -> list[Prompt]:
    """Different prompts, `counts[scenario]` of each scenario; the first n of a scenario do not depend on n.

    Raises ValueError for an unknown scenario, and when a scenario runs out of different prompts.
    """
    prompts = []
    for index, (scenario, make) in enumerate(MAKERS.items()):
        rng = np.random.default_rng([seed, index])
        seen: dict[str, None] = {}
        draws = 0
        while len(seen) < counts.get(scenario, 0):
            seen.setdefault(make(rng))
            draws += 1
            if draws > 20 * counts[scenario] + 1000:
                raise ValueError(f"scenario {scenario!r} has fewer than {counts[scenario]} different prompts")
        prompts += [
            Prompt(f"{scenario}-{k:04d}", scenario, text, SAMPLES[scenario], TEMPERATURE[scenario])
            for k, text in enumerate(seen)
        ]
    unknown = sorted(set(counts) - set(MAKERS))
    if unknown:
        raise ValueError(f"unknown scenario {unknown[0]!r}; the scenarios are {', '.join(MAKERS)}")
    return prompts
