"""TRAIL: ten length bins from a middle layer, and the Bayesian refinement of what remains while decoding.

Shahout et al., "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (arXiv 2410.01035). A classifier with one
hidden layer of 512 reads the mean over the prompt's tokens of a middle layer (11 of Llama-3-8B's 32), and while
decoding the state of the latest token; it gives probabilities p over k = 10 equal bins of the remaining length.
With one token per step and bins of width w, the remaining length moves to the bin below with probability 1/w:

    T(i, i) = 1 - 1/w, T(i, i + 1) = 1/w        what was in bin i + 1 is in bin i
    prior   = T posterior_before
    posterior(i) = prior(i) p(i) / sum_j prior(j) p(j)
    estimate = sum_i posterior(i) m_i           m_i the middle of bin i

Deviations: bins reach from 0 to the longest training length (theirs to 512); the layer is the same share of the
depth; Adam's learning rate and the epoch are chosen as for our other heads (they train 30 epochs and decay the
rate by a cosine); the classifier is asked every n tokens, and between two questions T is applied n times; the
lowest bin keeps its mass (T(0, 0) = 1), since a running request is not finished.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from predictor.baselines.keeping import train_keeping_best
from predictor.head import Floats
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.train import Split, reproducible

BINS = 10
DEPTH = 11 / 32


@dataclass(frozen=True)
class Probe:
    """How TRAIL's classifier is trained."""

    hidden: int = 512
    learning_rate: float = 1e-3
    batch_size: int = 32
    epochs: int = 30
    patience: int = 6


class Classifier(nn.Module):
    """Standardised features (n, d) -> (n, K) logits: Linear(d, 512)-ReLU-Linear(512, K)."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, train: Tensor, hidden: int, bins: int) -> None:
        super().__init__()
        spread = train.std(0, correction=0)
        self.register_buffer("mean", train.mean(0))
        self.register_buffer("deviation", torch.where(spread > 0, spread, 1.0))
        self.layers = nn.Sequential(nn.Linear(train.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, bins))

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.layers((features - self.mean) / self.deviation)
        return logits

    @torch.no_grad()
    def probabilities(self, features: Tensor) -> Floats:
        """(n, K) float64, rows sum to one."""
        return np.asarray(self(features.float()).double().softmax(-1).numpy())


def train_classifier(
    features: Tensor, labels: NDArray[np.int64], train: Rows, validation: Rows, seed: int, probe: Probe
) -> tuple[Classifier, float]:
    """The classifier of least validation cross-entropy, and that; features (n, d), labels (n,) bins."""
    target = torch.tensor(labels)
    with reproducible(seed):
        model = Classifier(features[train].float(), probe.hidden, BINS)
        optimiser = torch.optim.AdamW(model.parameters(), lr=probe.learning_rate, weight_decay=0.01)

        def loss(rows: Tensor) -> Tensor:
            return nn.functional.cross_entropy(model(features[rows].float()), target[rows])

        def step() -> None:
            for rows in torch.tensor(train)[torch.randperm(len(train))].split(probe.batch_size):
                optimiser.zero_grad()
                loss(rows).backward()
                optimiser.step()

        best = train_keeping_best(
            model, step, lambda: float(loss(torch.tensor(validation))), probe.epochs, probe.patience
        )
    return model, best


@dataclass(frozen=True)
class Trail:
    """TRAIL's estimate at arrival: the classifier on the mean of a middle layer."""

    name: str = "trail"
    probe: Probe = field(default_factory=Probe)
    reads: frozenset[Reads] = frozenset({"layers"})

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        layers = data.layer_features()
        layer = round(DEPTH * (layers.count - 1))
        features = layers.mean_of(layer)
        edges = equal_bins(data.lengths[split.train])
        labels = bin_of(data.lengths, edges)
        model, loss = train_classifier(features, labels, split.train, split.validation, seed, self.probe)
        settings: dict[str, Any] = {"layer": layer, "validation_cross_entropy": loss}

        def predict(rows: Rows) -> Forecast:
            table = model.probabilities(features[rows])
            return Forecast(table @ middles(edges), probabilities=table, edges=edges, settings=settings)

        return predict


def equal_bins(lengths: NDArray[np.integer], count: int = BINS) -> Floats:
    """(count + 1,) edges of equal bins from 0 to the longest of the given (training) lengths."""
    return np.linspace(0.0, float(lengths.max()), count + 1)


def bin_of(lengths: NDArray[np.integer], edges: Floats) -> NDArray[np.int64]:
    """(n,) bin of each length; longer ones count to the last bin."""
    return np.asarray(np.searchsorted(edges[1:-1], lengths, side="right"), np.int64)


def middles(edges: Floats) -> Floats:
    """(K,) m_i, tokens."""
    return np.asarray((edges[:-1] + edges[1:]) / 2)


def transition(count: int, width: float, tokens: int = 1) -> Floats:
    """(count, count) T applied `tokens` times; column j says where the mass of bin j goes. `width` in tokens, >= 1."""
    step = np.eye(count) * (1 - 1 / width) + np.eye(count, k=1) / width
    step[0, 0] = 1.0
    return np.asarray(np.linalg.matrix_power(step, tokens))


def refine(prior: Floats, likelihood: Floats) -> Floats:
    """(..., K) posterior of (..., K) prior and the classifier's (..., K) p; the prior where they exclude each other."""
    joint = prior * likelihood
    total = joint.sum(-1, keepdims=True)
    return np.asarray(np.where(total > 0, joint / np.where(total > 0, total, 1.0), prior))


def filtered(first: Floats, later: Floats, width: float, tokens: int) -> Floats:
    """(S + 1, K) posteriors of one request: `first` (K,) from the prompt, `later` (S, K) every `tokens` tokens."""
    matrix = transition(len(first), width, tokens)
    posterior = [np.asarray(first / first.sum())]
    for likelihood in later:
        posterior.append(refine(matrix @ posterior[-1], likelihood))
    return np.stack(posterior)
