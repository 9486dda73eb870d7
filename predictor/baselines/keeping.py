"""Training by epochs with an eye on validation, for every baseline that is a network."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from torch import nn


def train_keeping_best(
    module: nn.Module,
    step: Callable[[], None],
    loss: Callable[[], float],
    epochs: int,
    patience: int,
) -> float:
    """Call `step` (one pass over the training rows) at most `epochs` times; leave `module` at its best state.

    `loss` is the validation loss, asked in evaluation mode without gradients; nan counts as no improvement.
    Training ends after `patience` epochs without a better one. Returns the least loss.
    """
    best, state, since = np.inf, copy.deepcopy(module.state_dict()), 0
    for _ in range(epochs):
        module.train()
        step()
        module.eval()
        with torch.no_grad():
            value = loss()
        since += 1
        if value < best:
            best, state, since = value, copy.deepcopy(module.state_dict()), 0
        if since >= patience:
            break
    module.load_state_dict(state)
    module.eval()
    return float(best)
