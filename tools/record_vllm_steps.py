"""Record what the real vLLM (V1) scheduler decides, step by step, on random workloads.

    python tools/record_vllm_steps.py SEED0 COUNT OUT.json.gz --model DIR [--prefix]

Needs an environment with vLLM (0.32 wrote the files in tests/data) and a folder with any small
model's config. No model runs: vLLM's own `Scheduler` is driven with a fake sampler, so the record
depends on the workload and the limits alone. Arrivals are given in steps (a request is visible from
step ``arrival_step`` on), so no clock enters. Speculation and asynchronous scheduling are off;
``--prefix`` draws requests that share prompt prefixes and turns prefix caching on.

`estp conformance OUT.json.gz` replays the file and says whether the simulator decides the same.
"""

import argparse
import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

# Before vLLM is imported, which reads them once.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BLOCK_SIZE = 16
MAX_STEPS = 500_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "seed", type=int, help="seed of the first case; even seeds are fcfs, odd ones priority"
    )
    parser.add_argument("count", type=int, help="how many cases")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", required=True, help="folder with a model's config.json")
    parser.add_argument("--prefix", action="store_true", help="shared prefixes, with prefix caching")
    arguments = parser.parse_args()
    draw = prefix_case if arguments.prefix else plain_case
    cases = [draw(seed) for seed in range(arguments.seed, arguments.seed + arguments.count)]
    for case in cases:
        case["steps"] = record(case, arguments.model)
        preemptions = sum(len(step["preempted"]) for step in case["steps"])
        print(f"{case['name']}: {len(case['steps'])} steps, {preemptions} preemptions", flush=True)
    arguments.out.write_bytes(gzip.compress(json.dumps(cases, separators=(",", ":")).encode(), mtime=0))


def plain_case(seed: int) -> dict[str, Any]:
    """Limits and requests without sharing: loads from a trickle to a burst, memory from tight to ample."""
    rng = random.Random(seed)
    count = rng.choice([40, 80, 150, 300])
    longest = rng.choice([512, 2048])
    chunked = rng.random() < 0.75
    budget = rng.choice([64, 256, 512, 2048])
    gap = rng.choice([0.0, 0.5, 3.0, 12.0])
    requests: list[dict[str, Any]] = []
    step = 0
    for number in range(count):
        output = max(1, min(longest // 2, int(rng.lognormvariate(rng.choice([2.5, 3.5, 4.5]), 0.9))))
        prompt = max(1, min(longest - output - 1, int(rng.lognormvariate(4.0, 1.1))))
        step += int(rng.expovariate(1 / gap)) if gap else 0
        requests.append(_request(number, step, prompt, output, rng if seed % 2 else None))
    limits = {
        "max_num_seqs": rng.choice([4, 16, 64]),
        "max_num_batched_tokens": budget if chunked else max(budget, longest),
        "max_model_len": longest,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": rng.choice([0, 0, 48]),
        "policy": "priority" if seed % 2 else "fcfs",
        "block_size": BLOCK_SIZE,
        "num_blocks": _memory(requests, rng),
    }
    return {"name": f"seed{seed}-{limits['policy']}", "limits": limits, "requests": requests}


def prefix_case(seed: int) -> dict[str, Any]:
    """Limits and requests of which seven in ten begin with one of a few shared prefixes."""
    rng = random.Random(seed)
    longest = rng.choice([512, 2048])
    prefixes = [rng.randint(5, longest // 3) for _ in range(rng.choice([1, 3, 10]))]
    gap = rng.choice([0.0, 0.5, 3.0, 12.0])
    requests: list[dict[str, Any]] = []
    step = 0
    for number in range(rng.choice([40, 80, 160])):
        output = max(1, min(longest // 3, int(rng.lognormvariate(rng.choice([2.5, 3.5, 4.5]), 0.9))))
        which = rng.randrange(len(prefixes))
        shared = prefixes[which] if rng.random() < 0.7 else 0
        prompt = min(longest - output - 1, shared + max(1, int(rng.lognormvariate(3.0, 1.0))))
        step += int(rng.expovariate(1 / gap)) if gap else 0
        request = _request(number, step, prompt, output, rng if seed % 2 else None)
        requests.append(request | {"prefix_id": which, "prefix_tokens": min(shared, prompt)})
    limits = {
        "max_num_seqs": rng.choice([4, 16, 64]),
        "max_num_batched_tokens": rng.choice([64, 256, 512, 2048]),
        "max_model_len": longest,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": rng.choice([0, 0, 48]),
        "policy": "priority" if seed % 2 else "fcfs",
        "block_size": BLOCK_SIZE,
        "num_blocks": _memory(requests, rng),
        "enable_prefix_caching": True,
    }
    return {"name": f"prefix{seed}-{limits['policy']}", "limits": limits, "requests": requests}


def _request(number: int, step: int, prompt: int, output: int, rng: random.Random | None) -> dict[str, Any]:
    request = {"id": number, "arrival_step": step, "prompt_tokens": prompt, "output_tokens": output}
    if rng is not None:  # a length predictor's priority: the length, with noise
        request["priority"] = max(1, int(output * rng.lognormvariate(0, 0.4)))
    return request


def _memory(requests: list[dict[str, Any]], rng: random.Random) -> int:
    largest: int = max(-(-(r["prompt_tokens"] + r["output_tokens"]) // BLOCK_SIZE) for r in requests)
    return largest + 2 + int(rng.choice([0.0, 0.5, 2.0, 30.0]) * largest)


def record(case: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """The scheduler's decisions: [{step, tokens {id: n}, preempted [id], finished [id]}]."""
    scheduler, hasher = _scheduler(case["limits"], model)
    coming = sorted(case["requests"], key=lambda request: (request["arrival_step"], request["id"]))
    steps: list[dict[str, Any]] = []
    arrived = done = step = 0
    while done < len(coming):
        if step > MAX_STEPS:
            raise RuntimeError(f"{case['name']} does not end")
        while arrived < len(coming) and coming[arrived]["arrival_step"] <= step:
            scheduler.add_request(_vllm_request(coming[arrived], arrived, hasher))
            arrived += 1
        output = scheduler.schedule()
        tokens = {int(name): int(count) for name, count in output.num_scheduled_tokens.items()}
        preempted = sorted(int(name) for name in (getattr(output, "preempted_req_ids", None) or ()))
        finished = _sample(scheduler, output) if tokens else []
        done += len(finished)
        if tokens or preempted:
            steps.append({"step": step, "tokens": tokens, "preempted": preempted, "finished": finished})
        idle = not tokens and not preempted
        if idle and arrived < len(coming) and done == arrived:
            step = max(step + 1, coming[arrived]["arrival_step"])
        else:
            step += 1
    return steps


def _scheduler(limits: dict[str, Any], model: str) -> tuple[Any, Any]:
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill", "policy")
    caching = limits.get("enable_prefix_caching", False)
    cache = CacheConfig(block_size=limits["block_size"], enable_prefix_caching=caching)
    cache.num_gpu_blocks = limits["num_blocks"]
    config = VllmConfig(
        model_config=ModelConfig(
            model=model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=limits["max_model_len"],
            seed=0,
        ),
        scheduler_config=SchedulerConfig(
            **{name: limits[name] for name in names},
            long_prefill_token_threshold=limits.get("long_prefill_token_threshold", 0),
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=cache,
    )
    spec = FullAttentionSpec(
        block_size=limits["block_size"], num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=limits["num_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        block_size=limits["block_size"],
        structured_output_manager=StructuredOutputManager(config),
        log_stats=False,
    )
    init_none_hash(sha256)
    return scheduler, get_request_block_hasher(limits["block_size"], sha256) if caching else None


def _vllm_request(request: dict[str, Any], arrival: int, hasher: Any) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    sampling = SamplingParams(max_tokens=request["output_tokens"], ignore_eos=True)
    sampling.update_from_generation_config({}, 2)
    shared = request.get("prefix_tokens", 0)
    prefix_from = 10_000_000 + request.get("prefix_id", 0) * 10_000
    own_from = 1_000_000_000 + request["id"] * 10_000
    own = request["prompt_tokens"] - shared
    return Request(
        request_id=str(request["id"]),
        prompt_token_ids=[*range(prefix_from, prefix_from + shared), *range(own_from, own_from + own)],
        block_hasher=hasher,
        sampling_params=sampling,
        pooling_params=None,
        arrival_time=float(arrival),
        priority=request.get("priority", 0),
    )


def _sample(scheduler: Any, output: Any) -> list[int]:
    """Give every request whose tokens are all computed one more; returns the ids that are done."""
    from vllm.v1.outputs import ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    sampled = []
    for name in names:
        request = scheduler.requests[name]
        complete = request.num_computed_tokens >= request.num_tokens
        sampled.append([2_000_000_000 + int(name)] if complete else [])
    result = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: i for i, name in enumerate(names)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
    groups = scheduler.update_from_output(output, result).values()
    return sorted(int(o.request_id) for group in groups for o in group.outputs if o.finish_reason is not None)


if __name__ == "__main__":
    main()
