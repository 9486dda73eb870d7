"""All methods by name, in the order of the tables."""

from predictor.baselines.pooled import GRIDS, Pooled
from predictor.baselines.simple import Constant, PromptLength, ScenarioMedian
from predictor.methods import Method
from predictor.train import TrainSettings


def catalogue(train: TrainSettings | None = None) -> dict[str, Method]:
    """Every method, with these training settings where it trains a head."""
    settings = train or TrainSettings()
    methods: list[Method] = [
        Constant(),
        ScenarioMedian(),
        PromptLength(),
        *(Pooled(name, grid, settings) for name, grid in GRIDS.items()),
    ]
    return {method.name: method for method in methods}
