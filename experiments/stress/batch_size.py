"""How does padding grow with the batch?

All requests are there at once and leave in padded batches, as in offline inference or a rollout. A
batch runs to its longest answer, so without a predictor padding grows with the batch; in the order of
the true lengths, batches are of equals.
"""

from __future__ import annotations

from experiments.compare import Comparison
from experiments.plots import Curves
from experiments.stats import t_interval
from experiments.stress.answer import Answer, change, leads, listed, plus_minus, ranking
from experiments.stress.case import Case, run, samples
from traces.arrivals import Arrivals

TITLE = "How does padding grow with the batch?"
SIZES = (1, 2, 4, 8, 16, 32, 64)


def answer(case: Case) -> Answer:
    static = [case.served_by("static", batch_size=size) for size in SIZES]
    found = run(case, [one.job(case.policies, Arrivals("burst")) for one in static])
    panels = [
        Curves(
            "batch size (requests)",
            label,
            SIZES,
            {p: [t_interval(samples(one, p, metric)) for one in found] for p in case.policies},
            log=log,
            x_ticks={size: f"{size}" for size in SIZES},
        )
        for metric, label, log in (
            ("padding_ratio", "padding ratio", "x"),
            ("output_throughput", "speed (tokens/s)", "xy"),
        )
    ]
    return Answer(_sentence(found, case.policies), panels)


def _sentence(found: list[Comparison], policies: tuple[str, ...]) -> str:
    small, large = found[SIZES.index(8)], found[-1]
    grows = ", ".join(
        f"{listed([p])} {plus_minus(t_interval(samples(small, p, 'padding_ratio')))} to "
        f"{plus_minus(t_interval(samples(large, p, 'padding_ratio')))}"
        for p in policies
    )
    speed = {p: samples(large, p, "output_throughput") for p in policies}
    best, base = ranking(speed, lower=False)[0], policies[0]
    told = f"at {SIZES[-1]}, {leads(speed, 'the most tokens/s', lower=False)}"
    if best != base:
        told += f" ({listed([best])} against {listed([base])}: {change(speed[best], speed[base])})"
    return f"From batches of 8 to {SIZES[-1]} the padding ratio changes: {grows}; {told}."
