"""Real output lengths: every prompt sampled once by an LLM, resumably, into one trace.

The work is cut into batches of prompts of similar length; each finished batch is one file beside the output,
so a killed rollout goes on where it stopped and ends with the same bytes. The result is a trace with all
arrivals at 0 and the extra columns `prompt_id`, `sample`, `temperature` and `censored` (the answer was cut at
the limit: its real length is larger).
"""

import dataclasses
import hashlib
import json
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from tqdm import tqdm

from predictor.prompts import Prompt
from predictor.stored import job_of
from traces import Trace, write_trace
from traces.errors import InputError
from traces.files import atomic_path


@dataclass(frozen=True)
class RolloutSettings:
    """What the lengths depend on; stored in the file.

    `max_tokens` cuts an answer; `top_k` (0: off) and `top_p` truncate the distribution; the temperature
    belongs to the prompt. `batch_size` is part of it because matrix products round differently by batch.
    """

    model: str
    max_tokens: int = 512
    top_k: int = 50
    top_p: float = 0.9
    batch_size: int = 64
    seed: int = 0
    dtype: str = "auto"
    backend: str = "hf"

    def __post_init__(self) -> None:
        for name, low in (("max_tokens", 1), ("batch_size", 1), ("top_k", 0), ("seed", 0)):
            if getattr(self, name) < low:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must lie in (0, 1]")


@dataclass(frozen=True)
class Job:
    """One answer to be sampled: the `sample`-th to a prompt."""

    prompt: Prompt
    sample: int

    @property
    def request_id(self) -> str:
        return f"{self.prompt.prompt_id}/{self.sample}"


@dataclass(frozen=True)
class Sampled:
    """What a backend returns for one job: token counts (the stop token included) and the text."""

    prompt_tokens: int
    output_tokens: int
    response: str
    censored: bool


Backend = Callable[[list[Job]], list[Sampled]]


def uniforms(jobs: list[Job], settings: RolloutSettings) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(B, max_tokens) numbers in [0, 1): each job's own, whatever batch it is in."""
    rows = [
        np.random.default_rng([settings.seed, zlib.crc32(job.prompt.prompt_id.encode()), job.sample])
        for job in jobs
    ]
    return np.stack([rng.random(settings.max_tokens) for rng in rows])


def batches(prompts: list[Prompt], size: int) -> list[list[Job]]:
    """Jobs in batches of `size`, prompts of like length together (less padding), in a fixed order."""
    jobs = [Job(p, k) for p in prompts for k in range(p.samples)]
    jobs.sort(key=lambda job: (len(job.prompt.text), job.request_id))
    return [jobs[i : i + size] for i in range(0, len(jobs), size)]


def rollout(
    prompts: list[Prompt],
    settings: RolloutSettings,
    backend: Backend,
    out: Path,
    shard: tuple[int, int] = (0, 1),
    progress: bool = True,
) -> Trace | None:
    """Sample every prompt and write the trace to `out`; batches that an earlier run finished are kept.

    `shard` = (i, n) does every n-th batch only, for several processes or machines that share the folder; the
    one that finds all batches done writes the result, the others return None. Raises InputError when the
    folder of finished batches belongs to other settings or prompts.
    """
    work = batches(prompts, settings.batch_size)
    parts = out.with_name(out.name + ".parts")
    parts.mkdir(parents=True, exist_ok=True)
    _same_job(parts / "settings.json", prompts, settings)
    todo = [k for k in range(len(work)) if k % shard[1] == shard[0] and not _part(parts, k).exists()]
    done = len(work) - len([k for k in range(len(work)) if not _part(parts, k).exists()])
    if done:
        print(f"resuming: {done} of {len(work)} batches are there already", file=sys.stderr)
    with tqdm(total=sum(len(work[k]) for k in todo), unit="answer", disable=not progress) as bar:
        for k in todo:
            frame = _frame(work[k], backend(work[k]))
            with atomic_path(_part(parts, k)) as temporary:
                frame.write_parquet(temporary)
            bar.update(len(work[k]))
    if not all(_part(parts, k).exists() for k in range(len(work))):
        return None
    order = {p.prompt_id: i for i, p in enumerate(prompts)}
    table = pl.concat([pl.read_parquet(_part(parts, k)) for k in range(len(work))])
    table = table.sort(pl.col("prompt_id").replace_strict(order), "sample")
    trace = _trace(table, {"rollout": {**dataclasses.asdict(settings), "prompts": digest(prompts)}})
    write_trace(trace, out)
    shutil.rmtree(parts)
    return trace


def digest(prompts: list[Prompt]) -> str:
    """SHA-256 over all prompts: whether two files come from the same ones."""
    text = json.dumps([dataclasses.astuple(p) for p in prompts])
    return hashlib.sha256(text.encode()).hexdigest()


def hf_backend(backbone: Any, settings: RolloutSettings) -> Backend:
    """Answers from a transformers model in this process."""
    from predictor.generate import sample

    pad = backbone.tokenizer.pad_token_id
    stop = backbone.stop_ids()

    window = getattr(backbone.model.config.get_text_config(), "max_position_embeddings", None)

    def run(jobs: list[Job]) -> list[Sampled]:
        prompts = [backbone.encode(job.prompt.text) for job in jobs]
        for job, prompt in zip(jobs, prompts, strict=True):
            if window and len(prompt) + settings.max_tokens > window:
                raise InputError(
                    f"prompt {job.prompt.prompt_id!r} has {len(prompt)} tokens; with --max-tokens "
                    f"{settings.max_tokens} that exceeds the model's context of {window}"
                )
        answers = sample(
            backbone.model,
            prompts,
            np.array([job.prompt.temperature for job in jobs]),
            uniforms(jobs, settings),
            stop,
            stop[0] if pad is None else pad,
            settings.top_k,
            settings.top_p,
        )
        texts = backbone.tokenizer.batch_decode([a.token_ids for a in answers], skip_special_tokens=True)
        return [
            Sampled(len(p), len(a.token_ids), text, a.censored)
            for p, a, text in zip(prompts, answers, texts, strict=True)
        ]

    return run


def _part(folder: Path, k: int) -> Path:
    return folder / f"{k:05d}.parquet"


def _same_job(file: Path, prompts: list[Prompt], settings: RolloutSettings) -> None:
    want = {**dataclasses.asdict(settings), "prompts": digest(prompts)}
    if file.exists():
        have = job_of(file)
        wrong = sorted(k for k in want if have.get(k) != want[k])
        if wrong:
            raise InputError(
                f"{file.parent} holds batches of another rollout ({wrong[0]} differs: {have.get(wrong[0])!r} "
                f"there, {want[wrong[0]]!r} now); delete that folder or write to another file"
            )
    else:
        with atomic_path(file) as temporary:
            temporary.write_text(json.dumps(want, indent=1))


def _frame(jobs: list[Job], sampled: list[Sampled]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "request_id": [job.request_id for job in jobs],
            "prompt_id": [job.prompt.prompt_id for job in jobs],
            "sample": [job.sample for job in jobs],
            "scenario": [job.prompt.scenario for job in jobs],
            "temperature": [job.prompt.temperature for job in jobs],
            "prompt": [job.prompt.text for job in jobs],
            "response": [s.response for s in sampled],
            "prompt_tokens": [s.prompt_tokens for s in sampled],
            "output_tokens": [s.output_tokens for s in sampled],
            "censored": [s.censored for s in sampled],
        }
    )


def _trace(table: pl.DataFrame, metadata: dict[str, Any]) -> Trace:
    def text(column: str) -> Any:
        return np.array(table[column].to_list(), dtype=object)

    return Trace(
        request_id=text("request_id"),
        arrival_s=np.zeros(len(table)),
        prompt_tokens=table["prompt_tokens"].to_numpy(),
        output_tokens=table["output_tokens"].to_numpy(),
        prompt=text("prompt"),
        response=text("response"),
        scenario=text("scenario"),
        extra={
            "prompt_id": text("prompt_id"),
            "sample": table["sample"].to_numpy(),
            "temperature": table["temperature"].to_numpy(),
            "censored": table["censored"].to_numpy(),
        },
        metadata=metadata,
    )
