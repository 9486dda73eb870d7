"""PLP: the remaining length, predicted anew every n decode tokens from the state of the latest one.

Progressive Length Prediction (arXiv 2602.11812, with EGTP) estimates what remains at each decoding step, for
answers that are sampled and so cannot be known from the prompt. Here: the soft-label head of EGTP on the last
hidden state of the latest token, over bins of the remaining length, trained on the states at every n-th token
of the training answers, and on the mean of the prompt's states with the whole length.

Deviations: the paper's exact input is not public to us; ours is the latest state alone, and the number of tokens
generated so far stands beside it as its logarithm, since a server knows it. Estimates come every n tokens.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from predictor.decoding import AnswerStates
from predictor.head import Floats
from predictor.train import Fitted, Split, TrainSettings, fit


def plp_rows(states: AnswerStates) -> tuple[Tensor, np.ndarray[tuple[int], np.dtype[np.int64]], Floats]:
    """All rows of all answers: features (A + S, d + 1), answer (A + S,) and remaining tokens (A + S,).

    The first A rows are the prompts, before anything is generated.
    """
    generated = torch.tensor(np.concatenate([np.zeros(len(states.rows)), states.generated]))
    features = torch.cat([states.prompt[:, 1], states.states[:, 1]]).float()
    answer = np.concatenate([np.arange(len(states.rows)), states.answer])
    remaining = np.concatenate([states.lengths, states.remaining]).astype(np.float64)
    return torch.cat([features, generated.log1p().float()[:, None]], 1), answer, remaining


def fit_plp(states: AnswerStates, split: Split, seed: int, settings: TrainSettings | None = None) -> Floats:
    """(A + S,) estimates of the remaining tokens in the order of `plp_rows`; `split` is over answers 0 .. A - 1."""
    features, answer, remaining = plp_rows(states)
    parts = Split(
        *(np.flatnonzero(np.isin(answer, part)) for part in (split.train, split.validation, split.test))
    )
    tuned = replace(settings or TrainSettings(), seed=seed)
    fitted: Fitted = fit(features, remaining.astype(np.int32), parts, tuned)
    return np.asarray(np.maximum(fitted.probabilities(features) @ fitted.bins.centres, 1.0))
