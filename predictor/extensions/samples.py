"""One draw of each prompt as its target: what training on the distribution over its samples is compared with."""

from dataclasses import dataclass, field, replace

import numpy as np

from predictor.extensions.start import binned, pooled
from predictor.methods import Data, Predict, Reads
from predictor.train import Split, TrainSettings, fit, one_row_a_prompt


@dataclass(frozen=True)
class OneDraw:
    """ESTP trained and chosen on one random row of each prompt, as if each had been sampled once."""

    name: str = "one-draw"
    train: TrainSettings = field(default_factory=TrainSettings)
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        features = pooled(data, split)
        once = one_row_a_prompt(split, data.prompt_ids, np.random.default_rng(seed))
        fitted = fit(features, data.lengths, once, replace(self.train, seed=seed))
        return lambda rows: binned(fitted.probabilities(features[rows]), fitted.bins)
