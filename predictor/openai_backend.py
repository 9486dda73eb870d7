"""Answers from an OpenAI-compatible server (vLLM, SGLang, a hosted model), for `estp rollout`."""

import json
import os
import urllib.error
import urllib.request
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from predictor.rollout import Backend, Job, RolloutSettings, Sampled
from traces.errors import InputError

TIMEOUT_S = 600


def openai_backend(settings: RolloutSettings, base_url: str) -> Backend:
    """POST each job to `base_url`/chat/completions, a batch at a time in parallel.

    Every request has its own seed, made of the rollout's seed, the prompt's id and the sample's number.
    `OPENAI_API_KEY` is sent when it is set. Raises InputError with the server's answer when it refuses.
    """
    url = base_url.rstrip("/") + "/chat/completions"

    def ask(job: Job) -> Sampled:
        name = f"{settings.seed} {job.request_id}"
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [{"role": "user", "content": job.prompt.text}],
            "max_tokens": settings.max_tokens,
            "temperature": job.prompt.temperature,
            "top_p": settings.top_p,
            "seed": zlib.crc32(name.encode()),
        }
        if settings.top_k:
            body["top_k"] = settings.top_k
        answer = _post(url, body)
        try:
            choice = answer["choices"][0]
            return Sampled(
                int(answer["usage"]["prompt_tokens"]),
                int(answer["usage"]["completion_tokens"]),
                choice["message"]["content"] or "",
                choice["finish_reason"] == "length",
            )
        except (KeyError, IndexError, TypeError) as error:
            raise InputError(f"{url} sent no chat completion with usage: {str(answer)[:200]}") from error

    def run(jobs: list[Job]) -> list[Sampled]:
        with ThreadPoolExecutor(settings.batch_size) as pool:
            return list(pool.map(ask, jobs))

    return run


def _post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise InputError(
            f"{url} answered {error.code}: {error.read().decode(errors='replace')[:300]}"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"no answer from {url}: {error}; is the server running?") from error
