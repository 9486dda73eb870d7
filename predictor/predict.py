"""Estimates for the prompts of a trace: one prefill a prompt, any number of predictors at once."""

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tqdm import tqdm

from predictor.backbone import Backbone
from predictor.checkpoint import LengthPredictor, as_estimates, differences
from predictor.features import iter_prompt_signals
from predictor.rows import prompts_of
from predictor.stored import finished, job_of
from traces import Estimates, Trace, write_estimates
from traces.errors import InputError
from traces.files import atomic_path

CHUNK_PROMPTS = 256


def predict(
    trace: Trace,
    predictors: Sequence[LengthPredictor],
    backbone: Backbone,
    out: Path,
    *,
    progress: bool = True,
) -> list[Estimates]:
    """Estimate every request's length and write the table to `out`.

    Equal prompts are read once. Finished chunks wait in `OUT.parts`, so that a killed run goes on where it
    stopped and ends with the same bytes. Raises InputError when the trace has no prompts, or when a
    predictor was trained on another backbone.
    """
    prompts = prompts_of(trace)
    names = [p.predictor for p in predictors]
    if len(set(names)) < len(names) or not names:
        raise InputError(f"predictors need different names, but these are {', '.join(names) or 'none'}")
    for predictor in predictors:
        predictor.check_backbone(backbone)
    texts = list(dict.fromkeys(prompts))
    encoded = [backbone.encode(text) for text in texts]
    order = sorted(range(len(texts)), key=lambda i: (-len(encoded[i]), i))
    chunks = [order[k : k + CHUNK_PROMPTS] for k in range(0, len(order), CHUNK_PROMPTS)]
    parts = out.with_name(out.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    _same_job(parts / "job.json", texts, predictors)
    done = len(list(parts.glob("*.safetensors")))
    if done:
        print(f"resuming: {done} of {len(chunks)} chunks are there already", file=sys.stderr)
    tables = {
        name: np.empty((len(texts), len(p.bins.centres))) for name, p in zip(names, predictors, strict=True)
    }
    layers = sorted({layer for p in predictors for layer in p.layers})
    with tqdm(total=sum(map(len, encoded)), unit="token", desc="predict", disable=not progress) as bar:
        for number, chunk in enumerate(chunks):
            file = parts / f"{number:05d}.safetensors"
            tokens = sum(len(encoded[i]) for i in chunk)
            if file.exists():
                found = finished(file, load_file)
                bar.update(tokens)
            else:
                found = {name: np.empty((len(chunk), tables[name].shape[1])) for name in names}
                batch = [encoded[i] for i in chunk]
                for row, signals in iter_prompt_signals(backbone, batch, layers):
                    for name, predictor in zip(names, predictors, strict=True):
                        found[name][row] = predictor.probabilities([signals], [texts[chunk[row]]])[0]
                    bar.update(len(batch[row]))
                with atomic_path(file) as temporary:
                    save_file(found, temporary)
            for name in names:
                tables[name][chunk] = found[name]
    place = {text: i for i, text in enumerate(texts)}
    rows = np.array([place[text] for text in prompts])
    estimates = [as_estimates(p, trace.request_id, tables[p.predictor][rows]) for p in predictors]
    write_estimates(estimates, out, {"backbone": backbone.name})
    shutil.rmtree(parts)
    return estimates


def _same_job(file: Path, texts: list[str], predictors: Sequence[LengthPredictor]) -> None:
    """A folder of finished chunks belongs to one set of prompts and predictors, and says to which."""
    prompts = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
    want = {"prompts_sha256": prompts, "predictors": {p.predictor: p.identity() for p in predictors}}
    if file.exists():
        found = job_of(file)
        # Both ways, so that a predictor that only one of them has is named too.
        unlike = differences(want, found) or differences(found, want)
        if unlike:
            raise InputError(
                f"{file.parent} holds finished chunks of another job ({'; '.join(unlike)}); delete it to start anew"
            )
    elif any(file.parent.glob("*.safetensors")):
        raise InputError(f"{file.parent} holds finished chunks of an unknown job; delete it to start anew")
    with atomic_path(file) as temporary:
        temporary.write_text(json.dumps(want))
