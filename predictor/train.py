"""Fitting a head on pooled features, with the epoch chosen on validation prompts."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from predictor.head import Bins, Floats, SoftLabelHead, loss
from predictor.targets import Targets
from predictor.threads import one_thread
from traces.errors import InputError

Target = Literal["rows", "samples"]


@dataclass(frozen=True)
class TrainSettings:
    """Optimisation. EGTP uses AdamW 2e-5, batch 16, at most 10 epochs; with some 2,000 samples that stops far
    from the minimum, so the defaults here are larger: they are what validation chose (docs/findings.md).

    `targets`: rows, each row's own length; samples, one row a prompt, whose target is the distribution over all
    of the prompt's rows, so that a prompt counts once however often it was sampled.
    """

    learning_rate: float = 1e-3
    batch_size: int = 64
    epochs: int = 30
    patience: int = 6
    weight_decay: float = 0.01
    dropout: float = 0.1
    ce_weight: float = 0.95
    bins: int = 20
    seed: int = 0
    targets: Target = "rows"

    def __post_init__(self) -> None:
        if self.targets not in get_args(Target):
            raise InputError(f"targets {self.targets!r} is not one of {', '.join(get_args(Target))}")
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


def one_row_a_prompt(
    split: Split, prompts: NDArray[np.object_], rng: np.random.Generator | None = None
) -> Split:
    """The split with one row of each prompt in training and validation: its first, or one that `rng` draws."""

    def once(rows: NDArray[np.int64]) -> NDArray[np.int64]:
        order = rows if rng is None else rng.permutation(rows)
        _, first = np.unique(prompts[order].astype(str), return_index=True)
        return np.sort(order[first])

    return Split(once(split.train), once(split.validation), split.test)


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


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """Draw from the seed and compute on one thread."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def fit(
    features: Tensor,
    lengths: NDArray[np.int32],
    split: Split,
    settings: TrainSettings | None = None,
    prompts: NDArray[np.object_] | None = None,
) -> Fitted:
    """Train on the rows of `split.train`; keep the epoch with the least validation loss.

    `features`: (n, d) float32, `lengths`: (n,) tokens; `prompts`: (n,) the prompt of each row, which
    `targets="samples"` needs: then all rows of a prompt count as one, whose target is their distribution.
    Deterministic for a seed on one machine, whatever the number of threads.
    """
    settings = settings or TrainSettings()
    bins, split, loss_of = objective(lengths, split, settings, prompts)
    features = features.float()
    with reproducible(settings.seed):
        head = SoftLabelHead(features.shape[1], settings.bins, settings.dropout)
        head.standardise(features[split.train])
        best = minimise(head, lambda rows: loss_of(head(features[rows]), rows), split, settings)
    return Fitted(head, bins, best)


def objective(
    lengths: NDArray[np.int32],
    split: Split,
    settings: TrainSettings,
    prompts: NDArray[np.object_] | None = None,
) -> tuple[Bins, Split, Callable[[Tensor, Tensor], Tensor]]:
    """The bins, the split's rows to train and choose on, and the loss of (b, K) logits for (b,) such rows."""
    bins = Bins.fit(lengths[split.train], settings.bins)
    targets = Targets.one_draw(lengths, bins)
    if settings.targets == "samples":
        assert prompts is not None, "targets of samples need the prompt of each row"
        targets = Targets.over_samples(lengths, prompts, bins)
        split = one_row_a_prompt(split, prompts)
    centres = torch.tensor(bins.centres, dtype=torch.float32)

    def loss_of(logits: Tensor, rows: Tensor) -> Tensor:
        mean = targets.mean[rows]
        return loss(logits, targets.labels[rows], mean, centres, bins.edges[-1], settings.ce_weight)

    return bins, split, loss_of


def minimise(
    module: nn.Module,
    loss_of: Callable[[Tensor], Tensor],
    split: Split,
    settings: TrainSettings,
    groups: list[dict[str, Any]] | None = None,
) -> float:
    """AdamW on `loss_of(rows)`; the module ends in eval mode at its best epoch, whose validation loss is returned.

    `groups`: parameters with options of their own, instead of all of the module's alike. Draws the order of the
    rows from torch's global generator: seed it (and fork it) around the call.
    """
    optimiser = torch.optim.AdamW(
        groups or module.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    best, best_state, since = float("inf"), copy.deepcopy(module.state_dict()), 0
    train, validation = torch.tensor(split.train), torch.tensor(split.validation)
    for _ in range(settings.epochs):
        module.train()
        for rows in train[torch.randperm(len(train))].split(settings.batch_size):
            optimiser.zero_grad()
            loss_of(rows).backward()
            optimiser.step()
        module.eval()
        with torch.no_grad():
            value = float(loss_of(validation))
        since += 1
        if value < best:
            best, best_state, since = value, copy.deepcopy(module.state_dict()), 0
        if since >= settings.patience:
            break
    module.load_state_dict(best_state)
    module.eval()
    return best
