"""Static batching: the padded batch of the papers on output-length prediction."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from sim.forming import FORMS
from sim.latency import Latency
from sim.plugins import load
from sim.replica import Replica, Run
from traces.errors import InputError


@dataclass(frozen=True)
class StaticBatching:
    """An idle replica takes up to ``batch_size`` waiting requests and runs them to the last token.

    A batch of b requests, P = its longest prompt and L = its longest output, takes

    * one prefill step, padded to the longest prompt: ``step_time(b * P, 0, 0)``. It yields
      everyone's first token.
    * L - 1 decode steps. In step j = 1 ... L - 1 every slot decodes, finished or not, over its
      padded context of P prompt tokens and the j tokens that were generated before:
      ``step_time(0, b, b * (P + j))``.

    With ``Affine(a, b=B, c=C, d=D)`` that is
    ``a + B b P + (L - 1)(a + C b) + D b ((L - 1) P + L (L - 1) / 2)`` seconds.
    Nobody joins a running batch. Padding: a request with output o gets L - o tokens that nobody
    asked for.

    Attributes:
        batch_size: most requests in a batch.
        batch_timeout_s: how long an idle replica with too few requests for a full batch waits for
            more, counted from when it is idle and has one; 0: it starts at once.
        release: when a request completes: at the end of its "batch", or at its own last "token".
        form: which requests make a batch: "policy", "window,predictor=estp", "bins,predictor=estp"
            (`sim.forming`), or your own as "file.py:Class".

    Raises:
        InputError: a setting is out of its range.
    """

    batch_size: int = 8
    batch_timeout_s: float = 0.0
    release: str = "batch"
    form: Any = "policy"

    name: ClassVar[str] = "static"

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise InputError(
                f"static batching: batch_size = {self.batch_size!r} must be a whole number, at least 1"
            )
        if not (math.isfinite(self.batch_timeout_s) and self.batch_timeout_s >= 0):
            raise InputError(
                f"static batching: batch_timeout_s = {self.batch_timeout_s} must be at least 0 seconds"
            )
        if self.release not in ("batch", "token"):
            raise InputError(f"static batching: release = {self.release!r} must be 'batch' or 'token'")
        if isinstance(self.form, str):
            object.__setattr__(self, "form", load(self.form, "batch form", FORMS))

    @property
    def slots(self) -> int:
        return self.batch_size

    def check(self, run: Run) -> None:
        """Raise InputError if estimates come too late to form a batch, or the form lacks some it needs."""
        self.form(run)
        if run.closed is not None and self.release == "token":
            raise InputError(
                "max_concurrency with static batching needs release = 'batch': a request that is released before "
                "the end of its batch would send the next one before the server looks"
            )
        if run.estimate_available == "prefill" and run.requests.predictors_read:
            raise InputError(
                "static batching chooses a batch before its prefill, so it cannot use estimates that exist "
                "only after it: set estimate_available to 'arrival', or use continuous batching"
            )

    def serve(self, replica: Replica, run: Run) -> Generator[Event, None, None]:
        """The process of one replica (`sim.replica.Batching`)."""
        clock, queue, size = replica.clock, self.form(run), self.batch_size
        while True:
            queue.add(replica.take())
            if not queue.available():
                next_request = replica.wait()
                if next_request is None:
                    return
                yield next_request
                continue
            deadline_s = clock.now + self.batch_timeout_s
            while queue.available() < size and clock.now < deadline_s:
                more = replica.wait(deadline_s)
                assert more is not None
                yield more
                queue.add(replica.take())
            for batch in queue.take(size, clock.now):
                end_s = self._run_batch(batch, replica, run)
                yield clock.at(end_s)
                replica.finished += batch
                if run.closed is not None:
                    yield replica.let_go(len(batch))

    def alone_s(self, prompt_tokens: Any, output_tokens: Any, latency: Latency) -> NDArray[np.float64]:
        """JCT (n,) of each request in a batch of its own, started at once: no ``batch_timeout_s``."""
        prefill_s = latency.step_time(prompt_tokens, 0, 0)
        return np.asarray(prefill_s + latency.advance(output_tokens - 1, 1, prompt_tokens + 1), np.float64)

    def _run_batch(self, batch: list[int], replica: Replica, run: Run) -> float:
        """Stamp the times of a batch that starts now, and count it; returns its end."""
        latency, records, start_s = run.latency, run.records, replica.clock.now
        outputs = [run.output_tokens[i] for i in batch]
        size, longest = len(batch), max(outputs)
        prompt = max([run.prompt_tokens[i] for i in batch])
        first_token_s = start_s + float(latency.step_time(size * prompt, 0, 0))
        context = size * (prompt + 1)
        end_s = first_token_s + float(latency.advance(longest - 1, size, context))
        for i in batch:
            records.first_scheduled_s[i] = start_s
            records.first_token_s[i] = first_token_s
            records.completion_s[i] = end_s
        if self.release == "token":
            for i, output in zip(batch, outputs, strict=True):
                if output < longest:
                    records.completion_s[i] = first_token_s + float(
                        latency.advance(output - 1, size, context)
                    )
        if records.gaps is not None:
            records.gaps.append(_gaps(outputs, latency, size, context))
        busy_s = min(end_s, run.horizon_s) - start_s
        replica.busy_s += busy_s
        replica.slot_s += busy_s * size
        if end_s < run.horizon_s:
            asked = sum(outputs)
            replica.batched_tokens += asked
            replica.padded_tokens += size * longest - asked
        return end_s


def _gaps(
    outputs: list[int], latency: Latency, size: int, context: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Seconds of each decode step of a batch, and how many requests got a token that they asked for in it."""
    longest = max(outputs)
    steps = np.arange(longest - 1)
    seconds = np.broadcast_to(latency.step_time(0, size, context + size * steps), steps.shape)
    finished = np.cumsum(np.bincount(outputs, minlength=longest)[1:longest])
    return seconds, size - finished
