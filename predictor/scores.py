"""How good forecasts are: each measure defined once (DESIGN: prediction metrics).

Lengths are in tokens. A forecast by bins is the distribution that is uniform within each bin; one by quantiles
is known at its levels only; one by its mean alone is a point mass there.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from predictor.head import Bins, Floats, quantiles

if TYPE_CHECKING:
    from predictor.methods import Forecast

LEVELS = tuple(np.round(np.arange(0.05, 0.96, 0.05), 2).tolist())


def scores(forecast: "Forecast", truth: NDArray[np.integer], bins: Bins) -> dict[str, float]:
    """Measures of a forecast of n rows against (n,) true lengths; nan where it does not say enough.

    mae = mean |e - t|; rmse = sqrt mean (e - t)^2; tau = Kendall's tau-b of the order (nan when all are alike);
    bin_accuracy = share whose estimate lies in the bin of the true length; crps: see `losses`; coverage_90 =
    share of truths within the 5% and 95% quantile; width_90 = mean distance of the two; calibration: see there.
    """
    n = len(truth)
    error = np.full(n, np.nan) if forecast.mean is None else forecast.mean - truth
    hits = np.nan if forecast.mean is None else (bins.index(forecast.mean) == bins.index(truth)).mean()
    at = _quantiles(forecast, (0.05, 0.95))
    low, high = at.get(0.05, np.full(n, np.nan)), at.get(0.95, np.full(n, np.nan))
    inside = (truth >= low) & (truth <= high)
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(np.square(error).mean())),
        "tau": kendall_tau(forecast.order, truth),
        "bin_accuracy": float(hits),
        "crps": float(losses(forecast, truth)["crps"].mean()),
        "coverage_90": float(inside.mean()) if np.isfinite(low + high).all() else float("nan"),
        "width_90": float((high - low).mean()),
        "calibration": calibration(forecast, truth),
    }


def kendall_tau(score: Floats, truth: NDArray[np.number]) -> float:
    """Kendall's tau-b of (n,) scores with (n,) truths: (concordant - discordant) / sqrt((P - T1)(P - T2)),

    P all pairs, T1 and T2 those tied in one of the two. nan when one of them has no two different values.
    """
    if len(truth) < 2 or np.ptp(score) == 0 or np.ptp(truth) == 0:
        return float("nan")
    return float(kendalltau(score, truth).statistic)


def losses(forecast: "Forecast", truth: NDArray[np.integer]) -> dict[str, Floats]:
    """(n,) each: `mae`, the absolute error of the mean, and `crps`, the continuous ranked probability score.

    CRPS = integral of (F(x) - 1[x >= t])^2 dx, in tokens: exact for bins; from quantiles, 2 times the pinball
    loss averaged over the levels; the absolute error for a point forecast. nan for a method that only ranks.
    """
    n = len(truth)
    absolute = np.full(n, np.nan) if forecast.mean is None else np.abs(forecast.mean - truth)
    if forecast.probabilities is not None and forecast.edges is not None:
        return {"mae": absolute, "crps": crps_of_bins(forecast.probabilities, forecast.edges, truth)}
    if forecast.quantiles:
        return {"mae": absolute, "crps": crps_of_quantiles(forecast.quantiles, truth)}
    return {"mae": absolute, "crps": absolute}


def crps_of_bins(probabilities: Floats, edges: Floats, truth: NDArray[np.number]) -> Floats:
    """(n,) CRPS of (n, K) probabilities over bins with (K + 1,) edges, uniform within a bin.

    Within a bin F is linear from a to b, and the integral of F^2 over a width w is w (a^2 + ab + b^2) / 3; the
    bin of the truth is cut there. A truth outside the edges adds its distance to them.
    """
    below = np.concatenate([np.zeros((len(probabilities), 1)), probabilities.cumsum(1)], 1)
    below /= below[:, -1:]
    a, b = below[:, :-1], below[:, 1:]
    left, right = edges[:-1], edges[1:]
    t = np.asarray(truth, np.float64)[:, None]
    cut = np.clip(t, left, right)
    at = a + (b - a) * (cut - left) / (right - left)

    def squares(x: Floats, y: Floats, width: Floats) -> Floats:
        return np.asarray(width * (x * x + x * y + y * y) / 3)

    inner = squares(a, at, cut - left) + squares(1 - at, 1 - b, right - cut)
    outside = np.maximum(edges[0] - t, 0) + np.maximum(t - edges[-1], 0)
    return np.asarray(inner.sum(1) + outside[:, 0])


def crps_of_quantiles(at: Mapping[float, Floats], truth: NDArray[np.number]) -> Floats:
    """(n,) 2 sum_q w_q (1[t < x_q] - q) (x_q - t), w_q the part of (0, 1) that is nearest to level q.

    CRPS is 2 times the integral of this pinball loss over all levels (Gneiting and Raftery 2007, section 4.2).
    """
    levels = np.array(sorted(at))
    borders = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2, [1.0]])
    total = np.zeros(len(truth))
    for level, weight in zip(levels, np.diff(borders), strict=True):
        total += 2 * weight * ((truth < at[level]) - level) * (at[level] - truth)
    return total


def calibration(forecast: "Forecast", truth: NDArray[np.integer]) -> float:
    """Mean over levels q of | share of truths at or below the q quantile - q |; 0 is perfectly calibrated.

    Levels 5%, 10% ... 95% for a forecast by bins, else those that are given (Kuleshov et al. 2018, without
    their square). nan for point forecasts.
    """
    wanted = LEVELS if forecast.quantiles is None else tuple(sorted(forecast.quantiles))
    at = _quantiles(forecast, wanted)
    if not at:
        return float("nan")
    return float(np.mean([abs((truth <= values).mean() - level) for level, values in at.items()]))


def _quantiles(forecast: "Forecast", levels: tuple[float, ...]) -> dict[float, Floats]:
    if forecast.quantiles is not None:
        return {level: forecast.quantiles[level] for level in levels if level in forecast.quantiles}
    if forecast.probabilities is None or forecast.edges is None:
        return {}
    return quantiles(forecast.probabilities, Bins(tuple(forecast.edges.tolist())), levels)


def paired_difference(
    first: Floats, second: Floats, prompts: NDArray[np.object_], rng: np.random.Generator, draws: int = 4000
) -> tuple[float, float, float]:
    """Mean of `first - second` and its 95% bootstrap interval, resampling whole prompts.

    `first`, `second`: (n,) losses on the same rows; rows of one prompt (samples, repeated splits) are not
    independent of each other, so a prompt is drawn with all its rows.
    """
    _, group = np.unique(prompts.astype(str), return_inverse=True)
    total = np.bincount(group, weights=first - second)
    count = np.bincount(group)
    chosen = rng.integers(len(total), size=(draws, len(total)))
    means = total[chosen].sum(1) / count[chosen].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(total.sum() / count.sum()), float(low), float(high)
