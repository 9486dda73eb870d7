"""LTR: a scorer trained to order answers by length; it ranks and names no tokens.

Fu et al., "Efficient LLM Scheduling by Learning to Rank" (arXiv 2408.15792): ListMLE (Xia et al. 2008) trains a
score over lists of 32 prompts, whose lengths count in groups of 10 tokens. Theirs reads the prompt with an
OPT-125M; `Ltr` in `predictor.baselines.encoder` does so with any encoder, and `LtrHidden` here scores the LLM's
own last-token state.

Deviations: lengths of one group are in random order within their list; the epoch with the best Kendall tau on
validation is kept.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from predictor.baselines.keeping import train_keeping_best
from predictor.head import Floats, SoftLabelHead
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.scores import kendall_tau
from predictor.train import Split, reproducible

GROUP_TOKENS = 10
LIST_SIZE = 32


def list_mle(scores: Tensor, lengths: Tensor) -> Tensor:
    """ListMLE of one list, shortest first, divided by the list's length m.

    scores (m,): higher is shorter; lengths (m,) in any unit. With pi the order of rising length, the loss is
    -log P(pi) = -sum_i log(exp s_pi(i) / sum_{k >= i} exp s_pi(k)) (Xia et al. 2008, Plackett-Luce). Equal
    lengths stand in the order given: shuffle the list first.
    """
    ordered = scores[torch.sort(lengths, stable=True).indices]
    rest = ordered.flip(0).logcumsumexp(0).flip(0)
    return (rest - ordered).mean()


@dataclass(frozen=True)
class LtrHidden:
    """ListMLE on the last token's last hidden state: Linear(d, d/2)-LayerNorm-ReLU-Dropout-Linear(d/2, 1)."""

    name: str = "ltr-hidden"
    learning_rate: float = 1e-3
    epochs: int = 30
    patience: int = 6
    reads: frozenset[Reads] = frozenset({"signals"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        features = torch.stack([one.hidden[-1] for one in data.signals]).float()
        groups = torch.tensor(data.lengths // GROUP_TOKENS)
        with reproducible(seed):
            scorer = SoftLabelHead(features.shape[1], 1)
            scorer.standardise(features[split.train])
            optimiser = torch.optim.AdamW(scorer.parameters(), lr=self.learning_rate, weight_decay=0.01)

            def step() -> None:
                for rows in torch.tensor(split.train)[torch.randperm(len(split.train))].split(LIST_SIZE):
                    optimiser.zero_grad()
                    list_mle(scorer(features[rows])[:, 0], groups[rows]).backward()
                    optimiser.step()

            def rank(rows: Rows) -> Floats:
                return np.asarray(-scorer(features[rows])[:, 0].double().numpy())

            def loss() -> float:
                return -kendall_tau(rank(split.validation), data.lengths[split.validation])

            best = train_keeping_best(scorer, step, loss, self.epochs, self.patience)

        def predict(rows: Rows) -> Forecast:
            with torch.no_grad():
                return Forecast(rank=rank(rows), settings={"validation_tau": -best})

        return predict
