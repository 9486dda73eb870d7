"""Maximum likelihood for bursts: a Poisson process that switches between two rates (Fischer and Meier-Hellstern 1993).

With the rates on the diagonal of L and the switching in the generator Q, the gaps t have the joint density
p exp((Q - L) t_1) L exp((Q - L) t_2) L ... 1, where p is the state at an arrival. Names are those of
`traces.processes.Bursts`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from traces.families import Fit, Floats, Parameter, distance, log_normal, scipy_part

# Gaps in a row that are looked at: more cost time and hardly narrow the intervals.
MOST_GAPS = 20_000
# Where the search begins: how long a calm time lasts, in mean gaps. There is more than one hill.
STARTS = (10.0, 100.0, 1000.0)
STEP = 1e-3


def fit_bursts(gaps: Floats) -> Fit | None:
    """The best two-state process; intervals from the curvature of the likelihood in the logarithms.

    Args:
        gaps: (n,) positive seconds, in order; of more than ``MOST_GAPS`` the first.

    None where the likelihood has no peak with a curvature: the gaps do not tell two states apart.
    """
    optimize = scipy_part("optimize")
    count, gaps = len(gaps), gaps[:MOST_GAPS]
    mean = float(gaps.mean())

    def loss(logs: Floats) -> float:
        return -_log_likelihood(logs, gaps)

    best: Any = None
    for calm in STARTS:
        start = np.log([0.5 / mean, 3 / mean, 1 / (calm * mean), 4 / (calm * mean)])
        bounds = [(x - 12, x + 12) for x in start]
        found = optimize.minimize(loss, start, method="L-BFGS-B", bounds=bounds)
        best = found if best is None or found.fun < best.fun else best
    logs = np.asarray(best.x)
    if logs[0] > logs[1]:
        logs = logs[[1, 0, 3, 2]]
    try:
        covariance = np.linalg.inv(_curvature(loss, logs))
    except np.linalg.LinAlgError:
        return None
    variances = np.diag(covariance)
    if not (np.isfinite(variances) & (variances > 0)).all():
        return None
    rate, burst_rate, leave, end = np.exp(logs).tolist()
    values = {"rate": rate, "burst_rate": burst_rate, "calm_s": 1 / leave, "burst_s": 1 / end}
    parameters: dict[str, Parameter] = {
        name: log_normal(value, math.sqrt(variance))
        for (name, value), variance in zip(values.items(), variances.tolist(), strict=True)
    }

    def cdf(x: Floats) -> Floats:
        state = _state_at_arrival(rate, burst_rate, leave, end)
        (a, b), (c, d), scale = _exponential(x, rate, burst_rate, leave, end)
        return np.asarray(1 - np.exp(scale) * (state[0] * (a + b) + state[1] * (c + d)))

    # As if of all gaps, so that it stands beside that of the other families.
    aic = 2 * (4 + float(best.fun) * count / len(gaps))
    return Fit("bursts", parameters, aic, distance(gaps, cdf))


def _log_likelihood(logs: Floats, gaps: Floats) -> float:
    rate, burst_rate, leave, end = np.exp(logs).tolist()
    (a, b), (c, d), scale = _exponential(gaps, rate, burst_rate, leave, end)
    a, b, c, d = a * rate, b * burst_rate, c * rate, d * burst_rate
    total = float(scale.sum())
    # The product of all matrices, neighbours first, so that it is a few operations on whole arrays.
    while len(a) > 1:
        if len(a) % 2:
            a, b, c, d = (np.append(x, one) for x, one in ((a, 1.0), (b, 0.0), (c, 0.0), (d, 1.0)))
        e, f, g, h = a[1::2], b[1::2], c[1::2], d[1::2]
        a, b, c, d = a[::2], b[::2], c[::2], d[::2]
        a, b, c, d = a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h
        size = np.maximum(np.maximum(a, b), np.maximum(c, d))
        a, b, c, d = a / size, b / size, c / size, d / size
        total += float(np.log(size).sum())
    state = _state_at_arrival(rate, burst_rate, leave, end)
    return total + math.log(state[0] * float((a + b)[0]) + state[1] * float((c + d)[0]))


def _exponential(
    t: Floats, rate: float, burst_rate: float, leave: float, end: float
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats], Floats]:
    """exp((Q - L) t) as its rows, each entry over exp(scale); by the two eigenvalues, which are real."""
    middle = -(leave + rate + end + burst_rate) / 2
    half = (end + burst_rate - leave - rate) / 2
    root = math.sqrt(half**2 + leave * end)
    fade = np.exp(-2 * root * t)
    even, odd = (1 + fade) / 2, (1 - fade) / (2 * root)
    return (even + half * odd, leave * odd), (end * odd, even - half * odd), (middle + root) * t


def _state_at_arrival(rate: float, burst_rate: float, leave: float, end: float) -> tuple[float, float]:
    calm, burst = end * rate, leave * burst_rate
    return calm / (calm + burst), burst / (calm + burst)


def _curvature(loss: Any, at: Floats) -> Floats:
    """Second derivatives by central differences."""
    count = len(at)
    steps = np.eye(count) * STEP
    matrix = np.empty((count, count))
    for i in range(count):
        for j in range(i, count):
            corners = [
                loss(at + s * steps[i] + r * steps[j]) for s, r in ((1, 1), (1, -1), (-1, 1), (-1, -1))
            ]
            matrix[i, j] = matrix[j, i] = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * STEP**2)
    return matrix
