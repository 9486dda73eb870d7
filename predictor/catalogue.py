"""All methods by name, in the order of the tables."""

from predictor.baselines.encoder import BERT, FineTuning, Ltr, SsjfMc, SsjfReg
from predictor.baselines.layerwise import LayerHead, Ridge
from predictor.baselines.listwise import LtrHidden
from predictor.baselines.pooled import GRIDS, SHORT_GRIDS, Pooled
from predictor.baselines.simple import Constant, PromptLength, ScenarioMedian
from predictor.baselines.trail import Trail
from predictor.extensions.layers import Concat
from predictor.methods import Method
from predictor.train import TrainSettings

NEED_ENCODER = ("ssjf-reg", "ssjf-mc", "ltr")
"""Methods with a language model of their own, which has to be there: left out unless asked for."""


def catalogue(
    train: TrainSettings | None = None, tuning: FineTuning | None = None, short_grids: bool = False
) -> dict[str, Method]:
    """Every method, with these training settings where it trains a head or fine-tunes an encoder."""
    grids = SHORT_GRIDS if short_grids else GRIDS
    settings, tuned = train or TrainSettings(), tuning or FineTuning(BERT)
    methods: list[Method] = [
        Constant(),
        ScenarioMedian(),
        PromptLength(),
        SsjfReg(tuned),
        SsjfMc(tuned),
        Ltr(tuned),
        LtrHidden(),
        Ridge(),
        Ridge("ridge-mean", "mean"),
        LayerHead(train=settings),
        Concat(train=settings),
        Trail(),
        *(Pooled(name, grid, settings) for name, grid in grids.items()),
    ]
    return {method.name: method for method in methods}
