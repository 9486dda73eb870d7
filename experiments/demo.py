"""The main job on what comes with the package: real prompts, a real LLM, real lengths, four policies.

Only the test part of the embedded answers is used: no predictor has seen its prompts.
"""

from __future__ import annotations

from pathlib import Path

from predictor.backbone import load_backbone
from predictor.checkpoint import load_predictor
from predictor.embedded import PREDICTORS, TEST_SEED, read_rollout
from predictor.predict import predict
from predictor.rows import prompt_ids, scenarios_of
from predictor.train import split_by_prompt
from traces import Trace, write_trace


def held_out() -> Trace:
    """The embedded answers to the prompts that no embedded predictor was trained or chosen on."""
    trace = read_rollout()
    split = split_by_prompt(prompt_ids(trace), scenarios_of(trace), TEST_SEED)
    return trace.take(split.test)


def prepare(out: Path, device: str) -> tuple[Path, Path]:
    """Write `trace.parquet` and `estimates.parquet` into `out` and return their paths.

    The estimates are made anew each time: one prefill of the embedded LLM a prompt.
    """
    out.mkdir(parents=True, exist_ok=True)
    trace, estimates = out / "trace.parquet", out / "estimates.parquet"
    requests = held_out()
    write_trace(requests, trace)
    predictors = [load_predictor(p) for p in PREDICTORS]
    backbone = load_backbone(predictors[0].backbone, device, predictors[0].dtype_name)
    predict(requests, predictors, backbone, estimates)
    return trace, estimates
