"""Make `experiments/stress/held_out.parquet`: what each method says of the embedded answers no head was trained on.

    python tools/held_out_estimates.py

ESTP and EGTP are the embedded predictors, with their bins. The others are trained here on the same training
prompts, with the settings that validation chooses; `-literal` are the papers' formulas as they stand. Of those
only the means are kept.
"""

import dataclasses

import numpy as np

from experiments.stress.case import HELD_OUT
from predictor.backbone import EMBEDDED, load_backbone
from predictor.catalogue import catalogue
from predictor.checkpoint import load_predictor
from predictor.embedded import PREDICTORS, TEST_SEED, read_rollout
from predictor.evaluate import evaluate, random_splits
from predictor.features import read_signals
from predictor.methods import Data
from predictor.rows import prompts_of
from traces import Estimates, write_estimates

TRAINED_HERE = ("scenario", "prompt-length", "mean", "last", "semantic", "egtp-literal", "estp-literal")


def main() -> None:
    """Write the file and print each method's mean absolute error."""
    trace = read_rollout()
    backbone = load_backbone(EMBEDDED, "cpu", "float32")
    texts = prompts_of(trace)
    signals = read_signals(backbone, texts)
    data = Data(trace, signals)
    splits = random_splits(data, (TEST_SEED,))
    test = splits[TEST_SEED].test
    ids, lengths = trace.request_id[test], trace.output_tokens[test]
    found = []
    for source in PREDICTORS:
        head = load_predictor(source)
        probabilities = head.probabilities([signals[i] for i in test], [texts[i] for i in test])
        found.append(
            Estimates(
                head.predictor,
                ids,
                probabilities @ head.bins.centres,
                probabilities=np.round(probabilities, 6),
                bin_edges=np.array(head.bins.edges),
            )
        )
    methods = catalogue()
    for outcome in evaluate(data, [methods[name] for name in TRAINED_HERE], splits).outcomes:
        assert outcome.forecast.mean is not None, "these methods all tell a length"
        found.append(Estimates(outcome.method, ids, outcome.forecast.mean))
    rounded = [dataclasses.replace(one, mean=np.round(one.mean, 3)) for one in found]
    write_estimates(rounded, HELD_OUT, {"backbone": backbone.name})
    for one in rounded:
        print(f"{one.predictor:14} MAE {np.abs(one.mean - lengths).mean():.1f}")


if __name__ == "__main__":
    main()
