"""Fitting a head on pooled features, with the epoch chosen on validation prompts."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from predictor.head import Bins, Floats, SoftLabelHead, loss, soft_labels
from traces.errors import InputError


@dataclass(frozen=True)
class TrainSettings:
    """Optimisation. EGTP uses AdamW 2e-5, batch 16, at most 10 epochs; with some 2,000 samples that stops far
    from the minimum, so the defaults here are larger: they are what validation chose (docs/findings.md)."""

    learning_rate: float = 1e-3
    batch_size: int = 64
    epochs: int = 30
    patience: int = 6
    weight_decay: float = 0.01
    dropout: float = 0.1
    ce_weight: float = 0.95
    bins: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "epochs", "patience"):
            if getattr(self, name) <= 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be positive")
        if not 0 <= self.ce_weight <= 1:
            raise InputError(f"ce_weight is {self.ce_weight}; it must lie in [0, 1]")
        if self.bins < 2:
            raise InputError(f"bins is {self.bins}; at least 2 are needed")


@dataclass(frozen=True)
class Split:
    """Row indices of the three parts; all samples of one prompt are in one part."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def split_by_prompt(
    prompt_ids: NDArray[np.object_],
    scenarios: NDArray[np.object_],
    seed: int,
    shares: tuple[float, float] = (0.65, 0.15),
) -> Split:
    """Split rows by prompt, each scenario in the same shares; the test part is what the shares leave.

    Raises InputError when a part would be empty.
    """
    rng = np.random.default_rng(seed)
    part_of: dict[str, int] = {}
    for scenario in sorted(set(scenarios)):
        ids = sorted(set(prompt_ids[scenarios == scenario]))
        cuts = np.round(np.cumsum(shares) * len(ids))
        for rank, k in enumerate(rng.permutation(len(ids))):
            part_of[ids[k]] = int(np.searchsorted(cuts, rank, side="right"))
    parts = np.array([part_of[p] for p in prompt_ids])
    rows = [np.flatnonzero(parts == k) for k in range(3)]
    if not all(map(len, rows)):
        raise InputError(f"{len(part_of)} prompts are too few to split into training, validation and test")
    return Split(*rows)


@dataclass(frozen=True)
class Fitted:
    """A trained head and its validation loss."""

    head: SoftLabelHead
    bins: Bins
    validation_loss: float

    def probabilities(self, features: Tensor) -> Floats:
        """(n, d) features -> (n, K) float64 bin probabilities."""
        with torch.no_grad():
            return np.asarray(self.head(features.float()).double().softmax(-1).numpy())


def fit(
    features: Tensor, lengths: NDArray[np.int32], split: Split, settings: TrainSettings | None = None
) -> Fitted:
    """Train on the rows of `split.train`; keep the epoch with the least validation loss.

    `features`: (n, d) float32, `lengths`: (n,) tokens. Deterministic for a seed on one machine.
    """
    settings = settings or TrainSettings()
    bins = Bins.fit(lengths[split.train], settings.bins)
    centres = torch.tensor(bins.centres, dtype=torch.float32)
    labels = torch.tensor(soft_labels(bins.index(lengths), settings.bins), dtype=torch.float32)
    truth = torch.tensor(lengths, dtype=torch.float32)
    features = features.float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        head = SoftLabelHead(features.shape[1], settings.bins, settings.dropout)
        head.standardise(features[split.train])
        optimiser = torch.optim.AdamW(
            head.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )

        def loss_of(rows: Tensor) -> Tensor:
            return loss(
                head(features[rows]), labels[rows], truth[rows], centres, bins.edges[-1], settings.ce_weight
            )

        best, best_state, since = float("inf"), copy.deepcopy(head.state_dict()), 0
        train, validation = torch.tensor(split.train), torch.tensor(split.validation)
        for _ in range(settings.epochs):
            head.train()
            for rows in train[torch.randperm(len(train))].split(settings.batch_size):
                optimiser.zero_grad()
                loss_of(rows).backward()
                optimiser.step()
            head.eval()
            with torch.no_grad():
                value = float(loss_of(validation))
            since += 1
            if value < best:
                best, best_state, since = value, copy.deepcopy(head.state_dict()), 0
            if since >= settings.patience:
                break
    head.load_state_dict(best_state)
    return Fitted(head.eval(), bins, best)
