"""From a rollout and what was read of its prompts to a checkpoint: choose, train, correct, measure on test."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from predictor.backbone import Backbone
from predictor.baselines.pooled import GRIDS, best_of
from predictor.checkpoint import LengthPredictor, make_checkpoint
from predictor.conformal import Correction, calibrate
from predictor.features import PromptSignals, fit_trend, pooled_features
from predictor.head import Floats, quantiles
from predictor.layers import LayerFeatures
from predictor.methods import Forecast
from predictor.model_card import data_facts
from predictor.pooling import Pooling, PoolingSettings
from predictor.rows import prompt_ids, prompts_of, scenarios_of
from predictor.scores import scores
from predictor.train import Fitted, Split, TrainSettings, fit, split_by_prompt
from traces import Trace
from traces.estimates import QUANTILES


def train_predictor(
    name: str,
    trace: Trace,
    signals: Sequence[PromptSignals],
    backbone: Backbone,
    pooling: Pooling,
    fixed: dict[str, Any],
    settings: TrainSettings,
) -> LengthPredictor:
    """Train on the split of `settings.seed`; the checkpoint's facts hold data, settings and test scores.

    The quantiles get a conformal correction from the validation rows; the test rows say how far it holds.
    `fixed`: pooling settings given by the user; when it is empty the pooling's grid is tried.
    """
    texts = prompts_of(trace)
    split = split_by_prompt(prompt_ids(trace), scenarios_of(trace), settings.seed)
    candidates = GRIDS.get(pooling, ()) if not fixed else ()
    chosen, fitted, losses = best_of(
        signals, trace, split, candidates or (PoolingSettings(pooling, **fixed),), settings
    )
    trend = fit_trend([signals[i] for i in split.train], [texts[i] for i in split.train])
    trained = _Trained(fitted, pooled_features(signals, [chosen], trend, texts)[0], split)
    facts, correction = _measured(trained, trace, settings, len(losses))
    return make_checkpoint(name, backbone, chosen, trend, fitted, facts, correction)


def train_on_layers(
    name: str,
    trace: Trace,
    states: LayerFeatures,
    backbone: Backbone,
    layers: Sequence[int],
    settings: TrainSettings,
) -> LengthPredictor:
    """The same for the last token's states of these layers, side by side; there is nothing to choose.

    Raises InputError for a layer that the model has not.
    """
    features = states.side_by_side(layers)
    split = split_by_prompt(prompt_ids(trace), scenarios_of(trace), settings.seed)
    fitted = fit(features, trace.output_tokens, split, settings, prompt_ids(trace))
    facts, correction = _measured(_Trained(fitted, features, split), trace, settings, 1)
    return make_checkpoint(name, backbone, PoolingSettings("last"), None, fitted, facts, correction, layers)


@dataclass(frozen=True, eq=False)
class _Trained:
    """A head with the (n, d) features of all rows."""

    fitted: Fitted
    features: Tensor
    split: Split

    def table(self, rows: NDArray[np.int64]) -> Floats:
        return self.fitted.probabilities(self.features[rows])

    def quantiles(self, table: Floats) -> dict[float, Floats]:
        return quantiles(table, self.fitted.bins, tuple(QUANTILES))


def _measured(
    trained: _Trained, trace: Trace, settings: TrainSettings, candidates: int
) -> tuple[dict[str, Any], Correction]:
    """The facts of a checkpoint and its conformal correction."""
    split, bins = trained.split, trained.fitted.bins
    rows = split.validation
    found = trained.quantiles(trained.table(rows))
    correction = calibrate(found, trace.output_tokens[rows], prompt_ids(trace)[rows])
    facts: dict[str, Any] = {
        "split_seed": settings.seed,
        "candidates": candidates,
        "validation_loss": trained.fitted.validation_loss,
        "train": dict(settings.__dict__),
        "data": trace.metadata,
        "rows": data_facts(trace, split),
        "conformal": correction.to_json(),
    }
    rows = split.test
    table, truth = trained.table(rows), trace.output_tokens[rows]
    forecast = Forecast(
        table @ bins.centres,
        probabilities=table,
        edges=np.array(bins.edges),
        quantiles=correction.apply(trained.quantiles(table)),
    )
    constant = Forecast(np.full(len(rows), float(np.median(trace.output_tokens[split.train]))))
    for key, one in (("test", forecast), ("constant", constant)):
        measures = scores(one, truth, bins)
        facts[key] = {name: value for name, value in measures.items() if np.isfinite(value)}
    return facts, correction
