"""Run a real vLLM engine in this process and write down every step: ``PYTHON -P runner.py JOB OUT``.

It runs inside an environment that has vLLM and nothing of this package (``tools/vllm_env.sh`` makes
one), so it imports nothing of it; `experiments.vllm.engine` writes the job and reads the record.

JOB (JSON): ``label`` (kept), ``engine`` (arguments of vLLM's EngineArgs), ``requests`` [{id, arrival_s, prompt_tokens,
output_tokens, priority}] in order of arrival, and, to calibrate, ``grid`` {decode_requests,
context_tokens (of one request), decode_steps, prefill_tokens, repeats}, which is run before the requests.

OUT (gzipped JSON): the requests with ``arrival_step``, ``first_token_s`` and ``completion_s``, and the steps
in the form of ``tools/record_vllm_steps.py`` with ``start_s``, ``end_s`` and what a latency model
prices. All times are seconds since the clock of the requests started; ``grid`` has steps of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import random
import sys
import time
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

# Before vLLM is imported, which reads them once. One process, so that its clock sees all costs.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SEED = 0
WARM_UP = {"prompt_tokens": 64, "output_tokens": 24}
FIRST_TOKEN_ID = 1_000  # below are special tokens


class Recorder:
    """Drives the engine and notes what its scheduler decided and how long each step took.

    Attributes:
        steps: so far; each as in the file.
        requests: by id, what happened to each.
    """

    def __init__(self, engine: Any, vocabulary: int) -> None:
        self.engine = engine
        self.scheduler = engine.engine_core.engine_core.scheduler
        self.random = random.Random(SEED)
        self.vocabulary = vocabulary
        self.rows: dict[str, int] = {}
        self.decided: Any = None
        self.schedule = self.scheduler.schedule
        self.scheduler.schedule = self.noted
        self.restart()

    def restart(self) -> None:
        """Forget all so far, and let the clock start at 0."""
        self.steps: list[dict[str, Any]] = []
        self.requests: dict[int, dict[str, Any]] = {}
        self.began_s = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self.began_s

    def noted(self, *arguments: Any, **named: Any) -> Any:
        self.decided = self.schedule(*arguments, **named)
        return self.decided

    def add(self, number: int, prompt_tokens: int, output_tokens: int | None, priority: int = 0) -> str:
        """Hand the engine a request of random tokens that will write exactly ``output_tokens``.

        None: as many as the model's length allows, for one that will be aborted.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        ids = [self.random.randrange(FIRST_TOKEN_ID, self.vocabulary) for _ in range(prompt_tokens)]
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=output_tokens,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        name: str = self.engine.add_request(
            str(number), {"prompt_token_ids": ids}, sampling, priority=priority
        )
        self.rows[name] = number
        self.requests[number] = {"arrival_step": len(self.steps), "added_s": self.now_s()}
        return name

    def step(self, start_s: float | None = None) -> float:
        """One step of the engine, from scheduling to the text of the new tokens; returns when it ended.

        ``start_s``: when the engine turned to it, if that was before now (it took in newcomers first).
        """
        start_s = self.now_s() if start_s is None else start_s
        outputs = self.engine.step()
        end_s = self.now_s()
        finished = []
        for output in outputs:
            number = int(output.request_id)
            if output.outputs[0].token_ids:
                self.requests[number].setdefault("first_token_s", end_s)
            if output.finished:
                self.requests[number]["completion_s"] = end_s
                finished.append(number)
        step = {"step": len(self.steps), "start_s": start_s, "end_s": end_s}
        self.steps.append(step | self.composition() | {"finished": sorted(finished)})
        return end_s

    def composition(self) -> dict[str, Any]:
        """Who ran in the last step with how many tokens, and what of it was prefill and what decode."""
        tokens, prefill, decodes, context = {}, 0, 0, 0
        for new in self.decided.scheduled_new_reqs:
            prompt = len(new.prompt_token_ids)
            count = self.decided.num_scheduled_tokens[new.req_id]
            prefill += count
            self.requests[self.rows[new.req_id]]["prompt"] = prompt
        cached = self.decided.scheduled_cached_reqs
        for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            count = self.decided.num_scheduled_tokens[name]
            if count == 1 and computed >= self.requests[self.rows[name]]["prompt"]:
                decodes += 1
                context += computed + 1
            else:
                prefill += count
        for name, count in self.decided.num_scheduled_tokens.items():
            tokens[self.rows[name]] = count
        preempted = sorted(self.rows[name] for name in self.decided.preempted_req_ids or ())
        return {
            "tokens": tokens,
            "preempted": preempted,
            "prefill_tokens": prefill,
            "decode_requests": decodes,
            "context_tokens": context,
        }


def main() -> None:
    job_path, out_path = map(Path, sys.argv[1:3])
    job = json.loads(job_path.read_text())
    engine, facts = start(job["engine"])
    recorder = Recorder(engine, facts.pop("vocabulary"))
    warm_up(recorder, facts["limits"]["max_num_seqs"])
    print("vLLM is warm", file=sys.stderr, flush=True)
    record: dict[str, Any] = {"kind": "vllm run", "label": job["label"], **facts}
    if "grid" in job:
        record["grid"] = run_grid(recorder, **job["grid"])
    record["requests"] = replay(recorder, job["requests"])
    record["steps"] = recorder.steps
    text = json.dumps(to_microseconds(record), separators=(",", ":"))
    temporary = out_path.with_name(f".{out_path.name}.part")
    temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    temporary.replace(out_path)


def to_microseconds(value: Any) -> Any:
    """The same with every float rounded to six digits: finer is noise, and doubles the file."""
    if isinstance(value, dict):
        return {key: to_microseconds(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_microseconds(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def start(arguments: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The engine, and the facts of it that the record names."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    config = engine.vllm_config
    scheduler, cache = config.scheduler_config, config.cache_config
    limits = {
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": config.model_config.max_model_len,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
        "long_prefill_token_threshold": scheduler.long_prefill_token_threshold,
        "policy": scheduler.policy,
        "block_size": cache.block_size,
        "num_blocks": cache.num_gpu_blocks,
        "enable_prefix_caching": cache.enable_prefix_caching,
    }
    import torch

    facts = {
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "model": Path(arguments["model"]).name,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "versions": {"vllm": version("vllm"), "torch": torch.__version__},
        "date": datetime.now(UTC).date().isoformat(),
        "async_scheduling": bool(scheduler.async_scheduling),
        "limits": limits,
        "vocabulary": config.model_config.get_vocab_size(),
    }
    return engine, facts


def version(package: str) -> str:
    """Its version, or that of its build for CPUs, which has a name of its own."""
    for name in (package, f"{package}-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "unknown"


def processor() -> str:
    """The name of the processor, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def warm_up(recorder: Recorder, requests: int) -> None:
    """Make the engine allocate and compile what it does at first use."""
    for number in range(requests):
        recorder.add(-1 - number, **WARM_UP)
        recorder.step()
    drain(recorder)


def drain(recorder: Recorder) -> None:
    while recorder.engine.has_unfinished_requests():
        recorder.step()
    recorder.engine.reset_prefix_cache()


def run_grid(
    recorder: Recorder,
    decode_requests: list[int],
    context_tokens: list[int],
    decode_steps: int,
    prefill_tokens: list[int],
    repeats: int,
) -> list[dict[str, Any]]:
    """Steps of every number of decoding requests, with every context, alone and beside every size of prefill."""
    slots = recorder.engine.vllm_config.scheduler_config.max_num_seqs
    recorder.restart()
    number = 0
    for batch in decode_requests:
        for context in context_tokens if batch else context_tokens[:1]:
            names = [recorder.add(number + i, context, None) for i in range(batch)]
            number += batch
            while not all(recorder.scheduler.requests[name].output_token_ids for name in names):
                recorder.step()
            for _ in range(decode_steps if batch else 0):
                recorder.step()
            for tokens in prefill_tokens if batch < slots else ():
                for _ in range(repeats):
                    recorder.add(number, tokens, 1)
                    recorder.step()
                    number += 1
            recorder.engine.abort_request(names, internal=True)
            drain(recorder)
    return recorder.steps


def replay(recorder: Recorder, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hand over every request at its arrival, and step until all are served."""
    recorder.restart()
    coming, start_s = 0, 0.0
    while coming < len(requests) or recorder.engine.has_unfinished_requests():
        while coming < len(requests) and requests[coming]["arrival_s"] <= recorder.now_s():
            request = requests[coming]
            recorder.add(
                request["id"], request["prompt_tokens"], request["output_tokens"], request.get("priority", 0)
            )
            coming += 1
        if recorder.engine.has_unfinished_requests():
            start_s = recorder.step(start_s)
        else:
            time.sleep(max(0.0, requests[coming]["arrival_s"] - recorder.now_s()))
            start_s = recorder.now_s()
    kept = ("arrival_step", "added_s", "first_token_s", "completion_s")
    return [request | {name: recorder.requests[request["id"]][name] for name in kept} for request in requests]


if __name__ == "__main__":
    main()
