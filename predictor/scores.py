"""How good estimates are: each measure defined once (DESIGN: prediction metrics)."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from predictor.head import Bins, Floats


def scores(estimate: Floats, truth: NDArray[np.integer], bins: Bins) -> dict[str, float]:
    """Measures of (n,) estimates in tokens against (n,) true lengths.

    mae = mean |e - t|; rmse = sqrt mean (e - t)^2; tau = Kendall's tau-b (nan when all estimates are alike);
    bin_accuracy = share whose estimate lies in the bin of the true length.
    """
    error = estimate - truth
    tau = float("nan") if np.ptp(estimate) == 0 else float(kendalltau(estimate, truth).statistic)
    return {
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(np.square(error).mean())),
        "tau": tau,
        "bin_accuracy": float((bins.index(estimate) == bins.index(truth)).mean()),
    }


def paired_difference(
    first: Floats, second: Floats, prompts: NDArray[np.object_], rng: np.random.Generator, draws: int = 4000
) -> tuple[float, float, float]:
    """Mean of `first - second` and its 95% bootstrap interval, resampling whole prompts.

    `first`, `second`: (n,) absolute errors on the same rows; rows of one prompt (samples, repeated splits)
    are not independent of each other, so a prompt is drawn with all its rows.
    """
    _, group = np.unique(prompts.astype(str), return_inverse=True)
    total = np.bincount(group, weights=first - second)
    count = np.bincount(group)
    chosen = rng.integers(len(total), size=(draws, len(total)))
    means = total[chosen].sum(1) / count[chosen].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(total.sum() / count.sum()), float(low), float(high)
