"""A rollout is resumable to the same bytes, whoever does which part; a server's answers count as it says."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from predictor.backbone import Backbone, load_backbone
from predictor.openai_backend import openai_backend
from predictor.prompts import Prompt
from predictor.rollout import Job, RolloutSettings, Sampled, hf_backend, rollout
from traces import read_trace
from traces.errors import InputError

TINY = Path(__file__).parent / "data" / "tiny_lm"
SETTINGS = RolloutSettings(str(TINY), max_tokens=30, batch_size=8, dtype="float32")


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone(str(TINY), "cpu", "float32")


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    lines = [json.loads(x) for x in (TINY / "prompts.jsonl").read_text().splitlines()[:12]]
    return [Prompt(x["prompt_id"], x["scenario"], x["prompt"], 2, 1.0) for x in lines]


def test_killed_and_resumed_gives_the_same_bytes(
    tiny: Backbone, prompts: list[Prompt], tmp_path: Path
) -> None:
    backend = hf_backend(tiny, SETTINGS)
    rollout(prompts, SETTINGS, backend, tmp_path / "whole.parquet", progress=False)
    calls = 0

    def dies(jobs: list[Job]) -> list[Sampled]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return backend(jobs)

    with pytest.raises(KeyboardInterrupt):
        rollout(prompts, SETTINGS, dies, tmp_path / "killed.parquet", progress=False)
    assert not (tmp_path / "killed.parquet").exists()
    assert rollout(prompts, SETTINGS, dies, tmp_path / "killed.parquet", progress=False) is not None
    assert calls == 4  # three batches of eight, the first of them kept
    assert (tmp_path / "killed.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.parquet", "whole.parquet"]


def test_shards_together_give_the_same_bytes(tiny: Backbone, prompts: list[Prompt], tmp_path: Path) -> None:
    backend = hf_backend(tiny, SETTINGS)
    rollout(prompts, SETTINGS, backend, tmp_path / "whole.parquet", progress=False)
    out = tmp_path / "shards.parquet"
    assert rollout(prompts, SETTINGS, backend, out, (1, 2), progress=False) is None
    assert rollout(prompts, SETTINGS, backend, out, (0, 2), progress=False) is not None
    assert out.read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_the_result_is_a_trace_with_its_settings(
    tiny: Backbone, prompts: list[Prompt], tmp_path: Path
) -> None:
    rollout(prompts, SETTINGS, hf_backend(tiny, SETTINGS), tmp_path / "t.parquet", progress=False)
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.request_id.tolist() == [f"{p.prompt_id}/{k}" for p in prompts for k in range(2)]
    assert trace.prompt is not None
    assert trace.prompt_tokens.tolist() == [len(tiny.encode(text)) for text in trace.prompt]
    assert ((trace.output_tokens == 30) | ~trace.extra["censored"]).all()
    assert trace.metadata["rollout"]["seed"] == 0
    assert trace.metadata["rollout"]["max_tokens"] == 30


def test_batches_of_other_settings_are_refused(tiny: Backbone, prompts: list[Prompt], tmp_path: Path) -> None:
    rollout(prompts, SETTINGS, hf_backend(tiny, SETTINGS), tmp_path / "t.parquet", (0, 2), progress=False)
    other = dataclasses.replace(SETTINGS, seed=7)
    with pytest.raises(InputError, match=r"another rollout \(seed differs: 0 there, 7 now\)"):
        rollout(prompts, other, hf_backend(tiny, other), tmp_path / "t.parquet", progress=False)


def test_a_prompt_beyond_the_context_is_named(tiny: Backbone, prompts: list[Prompt]) -> None:
    window = tiny.model.config.max_position_embeddings
    settings = dataclasses.replace(SETTINGS, max_tokens=window)
    with pytest.raises(InputError, match=rf"prompt '{prompts[0].prompt_id}' has .* context of {window}"):
        hf_backend(tiny, settings)([Job(prompts[0], 0)])


@pytest.mark.parametrize(
    ("name", "value"), [("max_tokens", 0), ("batch_size", 0), ("top_p", 0.0), ("top_k", -1)]
)
def test_bad_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(InputError, match=name):
        dataclasses.replace(SETTINGS, **{name: value})


class _Server(BaseHTTPRequestHandler):
    """Speaks the chat completions protocol: an answer as long as its prompt has words, cut at max_tokens."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append(body)
        words = body["messages"][0]["content"].split()
        length = min(len(words), body["max_tokens"])
        answer = {
            "choices": [
                {
                    "message": {"content": " ".join(words[:length])},
                    "finish_reason": "length" if length < len(words) else "stop",
                }
            ],
            "usage": {"prompt_tokens": len(words) + 3, "completion_tokens": length},
        }
        status = 404 if body["model"] == "unknown" else 200
        data = json.dumps({"error": "no such model"} if status == 404 else answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Keep the test's output clean."""


class _Listener(ThreadingHTTPServer):
    request_queue_size = 128  # a whole batch connects at once


@pytest.fixture
def server() -> Iterator[str]:
    _Server.seen.clear()
    with _Listener(("127.0.0.1", 0), _Server) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}/v1"
        running.shutdown()
        thread.join()


def test_lengths_from_a_server(server: str, prompts: list[Prompt], tmp_path: Path) -> None:
    settings = RolloutSettings("served", max_tokens=12, backend="openai", dtype="server")
    trace = rollout(
        prompts, settings, openai_backend(settings, server), tmp_path / "s.parquet", progress=False
    )
    assert trace is not None
    assert trace.prompt is not None
    words = [len(text.split()) for text in trace.prompt]
    assert trace.output_tokens.tolist() == [min(n, 12) for n in words]
    assert trace.extra["censored"].tolist() == [n > 12 for n in words]
    assert len({body["seed"] for body in _Server.seen}) == len(trace)


def test_a_refusing_or_missing_server_is_named(server: str, prompts: list[Prompt]) -> None:
    settings = RolloutSettings("unknown", backend="openai")
    with pytest.raises(InputError, match=r"answered 404: .*no such model"):
        openai_backend(settings, server)([Job(prompts[0], 0)])
    with pytest.raises(InputError, match="is the server running"):
        openai_backend(settings, "http://127.0.0.1:1/v1")([Job(prompts[0], 0)])
