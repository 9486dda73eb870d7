"""What comes with the package: real answers of the embedded LLM, and predictors trained on part of them.

`rollout.parquet`: the answers (`estp prompts`, then `estp rollout`). `estp/`, `egtp/`: predictors trained on
the training part of split seed 0, by `estp train embedded estp --pooling estp --device cpu --dtype float32` and the
same for egtp; `TEST_SEED` names that split, whose test part no head saw.
"""

from importlib.resources import files
from pathlib import Path

from predictor.rows import prompts_of
from traces import Trace, read_trace

FOLDER = Path(str(files("predictor.embedded")))
ROLLOUT = FOLDER / "rollout.parquet"
PREDICTORS = (str(FOLDER / "estp"), str(FOLDER / "egtp"))
TEST_SEED = 0


def read_rollout(source: str = "embedded") -> Trace:
    """A trace with prompts, from a file, or the embedded answers. Raises InputError when it has no prompts."""
    trace = read_trace(ROLLOUT if source == "embedded" else source)
    prompts_of(trace)
    return trace
