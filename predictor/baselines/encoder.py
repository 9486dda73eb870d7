"""Baselines that read the prompt's text with a small encoder of their own, fine-tuned: SSJF and LTR.

SSJF (Qiu et al., arXiv 2404.08509): BERT-base reads the prompt, two layers over its [CLS] state give a length
(`SsjfReg`, L1 loss) or one of five classes cut at the 25th, 50th, 75th and 99th percentile of the training
lengths (`SsjfMc`). LTR (Fu et al., arXiv 2408.15792): the same encoder gives a score, trained with ListMLE.

Deviations: any encoder that `AutoModel.from_pretrained` loads (LTR's own is an OPT-125M); the first token's
state stands for the prompt whatever it is called; the encoder stays trainable in all epochs (SSJF freezes it
after three); the epoch with the least validation loss is kept; lengths are divided by their training mean for
the L1 loss; a class counts in the estimate with the mean training length in it; of two percentiles that
coincide one class is left out. Prompts longer than `max_tokens` lose their beginning, as in SSJF.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from predictor.baselines.keeping import train_keeping_best
from predictor.baselines.listwise import GROUP_TOKENS, LIST_SIZE, list_mle
from predictor.head import Floats
from predictor.methods import Data, Forecast, Predict, Reads, Rows
from predictor.scores import kendall_tau
from predictor.train import Split
from traces.errors import InputError

BERT = "google-bert/bert-base-uncased"
PERCENTILES = (25, 50, 75, 99)


@dataclass(frozen=True)
class FineTuning:
    """How an encoder is fine-tuned; `encoder` is a folder or hub name."""

    encoder: str = BERT
    learning_rate: float = 2e-5
    batch_size: int = LIST_SIZE
    epochs: int = 6
    patience: int = 2
    max_tokens: int = 512
    device: str = "cpu"


class TextScorer(nn.Module):
    """Prompts -> (n, outputs): an encoder, Linear-ReLU-Linear-ReLU-Linear over its first token's state."""

    def __init__(self, tuning: FineTuning, prompts: list[str], outputs: int) -> None:
        super().__init__()
        tokenizer, self.encoder = load_encoder(tuning.encoder)
        limit = getattr(self.encoder.config, "max_position_embeddings", tuning.max_tokens)
        tokenizer.truncation_side = "left"
        encoded = tokenizer(prompts, truncation=True, max_length=min(limit, tuning.max_tokens))["input_ids"]
        self.tokens = [torch.tensor(ids) for ids in encoded]
        width = self.encoder.config.hidden_size
        self.top = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)
        )
        self.to(tuning.device)

    def forward(self, rows: Tensor) -> Tensor:
        """(n,) row indices -> (n, outputs) float32."""
        chosen = [self.tokens[i] for i in rows.tolist()]
        device = next(self.parameters()).device
        lengths = torch.tensor([len(ids) for ids in chosen])
        mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).long()
        ids = pad_sequence(chosen, batch_first=True)
        states = self.encoder(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
        out: Tensor = self.top(states[:, 0].float())
        return out

    def batches(self, rows: Rows, size: int, alike: bool) -> Iterator[Tensor]:
        """Rows in random batches (torch's own seed); `alike`: of texts of like length, which need little padding."""
        shuffled = torch.tensor(rows)[torch.randperm(len(rows))]
        if not alike:
            yield from shuffled.split(size)
            return
        chunks = [sorted(c.tolist(), key=lambda i: len(self.tokens[i])) for c in shuffled.split(8 * size)]
        cut = [torch.tensor(c[k : k + size]) for c in chunks for k in range(0, len(c), size)]
        for k in torch.randperm(len(cut)).tolist():
            yield cut[k]

    @torch.no_grad()
    def all(self, rows: Rows) -> Tensor:
        """(n, outputs) on the CPU, in the order of `rows`, without gradients."""
        order = sorted(range(len(rows)), key=lambda k: len(self.tokens[rows[k]]))
        parts = [self(torch.tensor(rows[order[k : k + 64]])).cpu() for k in range(0, len(rows), 64)]
        return torch.cat(parts)[torch.tensor(np.argsort(order))]


def fine_tune(
    data: Data,
    split: Split,
    seed: int,
    tuning: FineTuning,
    outputs: int,
    loss: Callable[[Tensor, Tensor], Tensor],
    validation: Callable[[Tensor], float],
    listwise: bool = False,
) -> TextScorer:
    """Train by `loss(scores, rows)`, keep the epoch of least `validation(scores)`; linear decay as in SSJF.

    `listwise`: batches are lists that are compared within themselves, so texts of all lengths must meet in them.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        scorer = TextScorer(tuning, data.prompts, outputs)
        optimiser = torch.optim.AdamW(scorer.parameters(), lr=tuning.learning_rate, weight_decay=0.01)
        steps = tuning.epochs * -(-len(split.train) // tuning.batch_size)
        decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)

        def step() -> None:
            for rows in scorer.batches(split.train, tuning.batch_size, alike=not listwise):
                optimiser.zero_grad()
                loss(scorer(rows).cpu(), rows).backward()
                optimiser.step()
                decay.step()

        train_keeping_best(
            scorer, step, lambda: validation(scorer.all(split.validation)), tuning.epochs, tuning.patience
        )
    return scorer


@dataclass(frozen=True)
class SsjfReg:
    """Regression on the length, L1 loss."""

    tuning: FineTuning = FineTuning()
    name: str = "ssjf-reg"
    reads: frozenset[Reads] = frozenset()

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        scale = float(data.lengths[split.train].mean())
        truth = torch.tensor(data.lengths / scale, dtype=torch.float32)

        def loss(scores: Tensor, rows: Tensor) -> Tensor:
            return (scores[:, 0] - truth[rows]).abs().mean()

        scorer = fine_tune(
            data, split, seed, self.tuning, 1, loss,
            lambda scores: float(loss(scores, torch.tensor(split.validation))),
        )  # fmt: skip
        return lambda rows: Forecast(np.maximum(scorer.all(rows)[:, 0].double().numpy() * scale, 1.0))


@dataclass(frozen=True)
class SsjfMc:
    """Classification into five length classes, cross-entropy."""

    tuning: FineTuning = FineTuning()
    name: str = "ssjf-mc"
    reads: frozenset[Reads] = frozenset()

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        lengths = data.lengths
        edges = class_edges(lengths[split.train])
        classes = np.searchsorted(edges[1:-1], lengths, side="right")
        labels = torch.tensor(classes)
        means = np.array(
            [lengths[split.train][classes[split.train] == k].mean() for k in range(len(edges) - 1)]
        )

        def loss(scores: Tensor, rows: Tensor) -> Tensor:
            return nn.functional.cross_entropy(scores, labels[rows])

        scorer = fine_tune(
            data, split, seed, self.tuning, len(means), loss,
            lambda scores: float(loss(scores, torch.tensor(split.validation))),
        )  # fmt: skip

        def predict(rows: Rows) -> Forecast:
            table = scorer.all(rows).double().softmax(-1).numpy()
            return Forecast(table @ means, probabilities=table, edges=edges)

        return predict


@dataclass(frozen=True)
class Ltr:
    """A score trained by ListMLE: ranks only."""

    tuning: FineTuning = FineTuning()
    name: str = "ltr"
    reads: frozenset[Reads] = frozenset()

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        groups = torch.tensor(data.lengths // GROUP_TOKENS)
        scorer = fine_tune(
            data, split, seed, self.tuning, 1,
            lambda scores, rows: list_mle(scores[:, 0], groups[rows]),
            lambda scores: -kendall_tau(-scores[:, 0].double().numpy(), data.lengths[split.validation]),
            listwise=True,
        )  # fmt: skip
        return lambda rows: Forecast(rank=-scorer.all(rows)[:, 0].double().numpy())


def class_edges(lengths: np.ndarray[Any, np.dtype[np.integer[Any]]]) -> Floats:
    """Rising edges of the classes, in tokens: 1, the percentiles of the training lengths, and their longest + 1.

    A length on an inner edge belongs to the class above it, as in SSJF. Classes that would be empty are left
    out. Raises InputError when only one is left.
    """
    longest = float(lengths.max()) + 1
    edges = np.unique([1.0, *np.percentile(lengths, PERCENTILES), longest])
    filled = np.bincount(np.searchsorted(edges[1:-1], lengths, side="right"), minlength=len(edges) - 1) > 0
    edges = np.concatenate([edges[:-1][filled], [longest]])
    if len(edges) < 3:
        raise InputError(
            "nearly all training lengths are alike, so there are no length classes to tell apart"
        )
    return np.asarray(edges, np.float64)


def load_encoder(name: str) -> tuple[Any, Any]:
    """Tokenizer and encoder, from safetensors only. Raises InputError, with what to do, when they are not there."""
    from transformers import AutoModel, AutoTokenizer

    try:
        encoder = AutoModel.from_pretrained(name, dtype=torch.float32, use_safetensors=True)
        return AutoTokenizer.from_pretrained(name), encoder
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"cannot load the encoder {name!r}: {reason} Give --encoder a folder written by save_pretrained or a "
            "name that is in the local hub cache or reachable online, or leave ssjf-reg, ssjf-mc and ltr out."
        ) from error
