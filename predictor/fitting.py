"""From a rollout and its signals to a checkpoint: choose settings on validation, train, measure on test."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from predictor.backbone import Backbone
from predictor.baselines.pooled import GRIDS, best_of
from predictor.checkpoint import LengthPredictor, make_checkpoint
from predictor.conformal import calibrate
from predictor.features import PromptSignals, fit_trend
from predictor.head import Floats
from predictor.methods import Forecast
from predictor.model_card import data_facts
from predictor.pooling import Pooling, PoolingSettings
from predictor.rows import prompt_ids, prompts_of, scenarios_of
from predictor.scores import scores
from predictor.train import TrainSettings, split_by_prompt
from traces import Trace


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
    facts: dict[str, Any] = {
        "split_seed": settings.seed,
        "candidates": len(losses),
        "validation_loss": fitted.validation_loss,
        "train": dict(settings.__dict__),
        "data": trace.metadata,
        "rows": data_facts(trace, split),
    }
    plain = make_checkpoint(name, backbone, chosen, trend, fitted, facts)

    def table(rows: NDArray[np.int64]) -> Floats:
        return plain.probabilities([signals[i] for i in rows], [texts[i] for i in rows])

    rows = split.validation
    correction = calibrate(plain.quantiles(table(rows)), trace.output_tokens[rows], prompt_ids(trace)[rows])
    facts["conformal"] = correction.to_json()
    rows = split.test
    found, truth = table(rows), trace.output_tokens[rows]
    forecast = Forecast(
        found @ fitted.bins.centres,
        probabilities=found,
        edges=np.array(fitted.bins.edges),
        quantiles=correction.apply(plain.quantiles(found)),
    )
    constant = Forecast(np.full(len(rows), float(np.median(trace.output_tokens[split.train]))))
    for key, one in (("test", forecast), ("constant", constant)):
        measures = scores(one, truth, fitted.bins)
        facts[key] = {name: value for name, value in measures.items() if np.isfinite(value)}
    return make_checkpoint(name, backbone, chosen, trend, fitted, facts, correction)
