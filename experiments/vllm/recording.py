"""A recorded run of a real vLLM engine (`experiments.vllm.runner` writes it), and what can be read off it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sim import ContinuousBatching, conformance
from traces import Trace
from traces.errors import InputError

PRICED = ("prefill_tokens", "decode_requests", "context_tokens")
TIMES = ("arrival_s", "first_token_s", "completion_s")
# Read off the engine, not asked for.
ABOUT = ("machine", "model", "dtype", "versions", "date", "async_scheduling")

Composition = tuple[tuple[int, int], ...]
"""What a step does: (request number, tokens) of everyone who runs, by number."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps as a latency model sees them: (n,) arrays of tokens, requests, tokens, and seconds."""

    prefill_tokens: NDArray[np.float64]
    decode_requests: NDArray[np.float64]
    context_tokens: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: Any) -> Steps:
        """Those of the index or mask ``rows``."""
        columns = (getattr(self, name)[rows] for name in (*PRICED, "seconds"))
        return Steps(*columns)


@dataclass(frozen=True, eq=False)
class Recording:
    """One run.

    Attributes:
        path: its file.
        case: the file's content; also a case that `sim.conformance` can replay, since ``arrival_step``
            says between which steps each request came.
        policy: whose order it was: fcfs, or a predictor's name.
        repeat: number of this run among those of the same job, from 0.
    """

    path: Path
    case: dict[str, Any]
    policy: str
    repeat: int

    @property
    def about(self) -> dict[str, Any]:
        """Machine, model, dtype, versions, date."""
        return {name: self.case[name] for name in ABOUT}

    def steps(self) -> Steps:
        """The steps of the replayed requests."""
        return priced(self.case["steps"])

    def grid(self) -> Steps:
        """The steps of the calibration grid; none if the run has none."""
        return priced(self.case.get("grid", []))

    def compositions(self) -> list[Composition]:
        """What each step did, in order."""
        steps = [step["tokens"].items() for step in self.case["steps"] if step["tokens"]]
        return [tuple(sorted((int(number), tokens) for number, tokens in step)) for step in steps]

    def trace(self) -> Trace:
        """The requests as they were handed to the engine; ids are their numbers."""
        requests = self.case["requests"]
        names = ("id", "arrival_s", "prompt_tokens", "output_tokens", "priority")
        ids, arrival_s, prompt, output, priority = (
            np.array([one[name] for one in requests]) for name in names
        )
        return Trace(ids, arrival_s, prompt, output, priority=priority)

    def batching(self) -> ContinuousBatching:
        """The engine's limits, as the simulator's settings."""
        limits = dict(self.case["limits"])
        return ContinuousBatching(order=limits.pop("policy"), **limits)

    def records(self) -> pl.DataFrame:
        """A row a request, with the columns that `sim.metrics.latencies` reads."""
        first_scheduled_s: dict[int, float] = {}
        for step in self.case["steps"]:
            for number in step["tokens"]:
                first_scheduled_s.setdefault(int(number), step["start_s"])
        requests = self.case["requests"]
        columns: dict[str, Any] = {name: [request[name] for request in requests] for name in TIMES}
        columns["first_scheduled_s"] = [first_scheduled_s[request["id"]] for request in requests]
        seconds = {name: np.array(values, np.float64) for name, values in columns.items()}
        return pl.DataFrame({**seconds, "output_tokens": [request["output_tokens"] for request in requests]})


def priced(steps: list[dict[str, Any]]) -> Steps:
    """Recorded steps as columns; those in which nothing ran are left out."""
    ran = [step for step in steps if step["tokens"]]
    prefill, decodes, context = (np.array([step[name] for step in ran], np.float64) for name in PRICED)
    seconds = np.array([step["end_s"] - step["start_s"] for step in ran], np.float64)
    return Steps(prefill, decodes, context, seconds)


def joined(parts: Sequence[Steps]) -> Steps:
    """All steps of several runs."""
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in (*PRICED, "seconds"))
    return Steps(*columns)


def read_recording(path: str | Path) -> Recording:
    """Read one recorded run.

    Raises:
        InputError: there is no such file, or it is not a recorded run of a vLLM engine.
    """
    path = Path(path)
    case = conformance.read_cases(path)[0]
    missing = [name for name in ("label", *ABOUT) if name not in case]
    missing += [f"requests: {name}" for name in (*TIMES, "priority") if name not in case["requests"][0]]
    missing += [f"steps: {name}" for name in (*PRICED, "start_s") if name not in case["steps"][0]]
    if missing:
        raise InputError(
            f"{path} is no run that estp recorded from a vLLM engine: it lacks {', '.join(missing)}"
        )
    return Recording(path, case, case["label"]["policy"], case["label"]["repeat"])
