"""The one interface of all length predictors, so that each meets the same prompts, splits and measures.

A method is fitted on the training and validation rows of a split, and gives back a function from row indices
to a forecast. It sees the whole `Data`, but of the lengths it may read only those of its two parts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from predictor.features import PromptSignals
from predictor.head import Floats
from predictor.layers import LayerFeatures
from predictor.rows import prompt_ids, prompts_of, scenarios_of
from predictor.train import Split
from traces import Trace
from traces.errors import InputError

Rows = NDArray[np.int64]
Reads = Literal["signals", "layers"]


@dataclass(frozen=True, eq=False)
class Data:
    """A trace of n rows with what was read off the LLM for its prompts.

    signals: (n,) in row order; empty when no method asked for them.
    layers: mean and last-token state of every layer; None when no method asked for them.
    """

    trace: Trace
    signals: Sequence[PromptSignals] = ()
    layers: LayerFeatures | None = None

    @cached_property
    def prompts(self) -> list[str]:
        """The prompt of each row."""
        return prompts_of(self.trace)

    @cached_property
    def prompt_ids(self) -> NDArray[np.object_]:
        """(n,) what a split keeps together; rows of one prompt may be several samples."""
        return prompt_ids(self.trace)

    @cached_property
    def scenarios(self) -> NDArray[np.object_]:
        """(n,) the scenario of each row; `-` where the trace has none."""
        return scenarios_of(self.trace)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """(n,) true output lengths in tokens. A method reads those of training and validation rows only."""
        return self.trace.output_tokens

    def layer_features(self) -> LayerFeatures:
        """The layers; InputError when they were not read."""
        if self.layers is None:
            raise InputError("this method needs the hidden states of every layer, which were not read")
        return self.layers


@dataclass(frozen=True, eq=False)
class Forecast:
    """What a predictor says about n rows.

    mean: (n,) tokens, the estimate that errors are measured on; None for a method that only ranks.
    rank: (n,) scores, smaller is shorter, for a method that only ranks; None otherwise.
    probabilities: (n, K) over the bins between `edges` (K + 1,) tokens, lengths uniform within a bin, or None.
    quantiles: level in (0, 1) -> (n,) tokens, or None. Where they are given, intervals are taken from them and
        not from the bins.
    settings: JSON-able: what was chosen on validation.
    """

    mean: Floats | None = None
    rank: Floats | None = None
    probabilities: Floats | None = None
    edges: Floats | None = None
    quantiles: Mapping[float, Floats] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert (self.mean is None) != (self.rank is None), "a forecast has a mean or a rank, and not both"
        assert (self.probabilities is None) == (self.edges is None), "probabilities and edges come together"

    def take(self, keep: NDArray[Any]) -> "Forecast":
        """The forecast of these rows (integers or a boolean mask)."""
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else column[keep]
            for name in ("mean", "rank", "probabilities")
        }
        at = None if self.quantiles is None else {q: column[keep] for q, column in self.quantiles.items()}
        return replace(self, **columns, quantiles=at)

    @property
    def order(self) -> Floats:
        """(n,) what sorts the rows from short to long: the mean, or the rank."""
        score = self.mean if self.mean is not None else self.rank
        assert score is not None
        return score


Predict = Callable[[Rows], Forecast]
"""Row indices of the same data -> the forecast of those rows, in their order."""


class Method(Protocol):
    """A length predictor before it is fitted: a frozen dataclass, whose fields are its settings."""

    @property
    def name(self) -> str:
        """Its name in tables and options."""
        ...

    @property
    def reads(self) -> frozenset[Reads]:
        """What must be in `Data`; empty for a method that needs nothing of the LLM."""
        ...

    def fit(self, data: Data, split: Split, seed: int) -> Predict:
        """Fit on `split.train`, choose on `split.validation`; the same bytes for the same seed."""
        ...
