"""What a row's distribution over length bins should be: its own length, or all samples of its prompt.

With stochastic decoding one prompt has many lengths. One draw as the target says "this length"; the samples of
the prompt together say what a predictor can know: how they are spread. Their soft labels are averaged, one row a
prompt, so a prompt counts once however often it was sampled.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.head import Bins, soft_labels


@dataclass(frozen=True)
class Targets:
    """labels: (n, K) float32, rows sum to one; mean: (n,) float32, tokens."""

    labels: Tensor
    mean: Tensor

    @classmethod
    def one_draw(cls, lengths: NDArray[np.integer], bins: Bins) -> "Targets":
        """Each row's own soft label and length."""
        labels = soft_labels(bins.index(lengths), len(bins.centres))
        return cls(torch.tensor(labels, dtype=torch.float32), torch.tensor(lengths, dtype=torch.float32))

    @classmethod
    def over_samples(
        cls, lengths: NDArray[np.integer], prompts: NDArray[np.object_], bins: Bins
    ) -> "Targets":
        """Each row gets the mean label and the mean length of all rows of its prompt."""
        _, group = np.unique(prompts.astype(str), return_inverse=True)
        count = np.bincount(group)
        labels = np.zeros((len(count), len(bins.centres)))
        np.add.at(labels, group, soft_labels(bins.index(lengths), len(bins.centres)))
        means = np.bincount(group, weights=lengths) / count
        return cls(
            torch.tensor((labels / count[:, None])[group], dtype=torch.float32),
            torch.tensor(means[group], dtype=torch.float32),
        )
