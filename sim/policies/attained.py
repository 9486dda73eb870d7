"""Orders by what a request has got already: they need no prediction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from traces.errors import InputError


@dataclass(frozen=True)
class LAS:
    """Least attained service first: who has got the fewest tokens (foreground-background).

    Nuyens and Wierman, "The foreground-background queue: a survey", Performance Evaluation 65 (2008).
    Those with equally many take turns token by token in theory; a server would lose the KV cache of one
    of them at each turn. So here a running request keeps its place until it is ``lead`` tokens ahead.

    Attributes:
        lead: tokens.

    Raises:
        InputError: ``lead`` is less than 1.
    """

    lead: int = 32
    vectorised: ClassVar[bool] = True
    refresh: ClassVar[str] = "progress"
    preemptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.lead < 1:
            raise InputError(f"policy las: lead = {self.lead} must be at least 1 token")

    def __call__(self, request: Any, now_s: Any) -> Any:
        return request.generated_tokens - self.lead * request.running


@dataclass(frozen=True)
class MLFQ:
    """Skip-join multi-level feedback queue (FastServe, arXiv 2305.05920, section 4.1 and algorithm 1).

    Level i has a quantum of ``quantum * ratio ** i`` tokens; a request that has used up the quantum of
    its level goes down one, and lower levels wait for higher ones. Within a level, by arrival. It enters
    at the first level whose quantum is no smaller than its prefill, which is known ("skip-join");
    ``prefill_tokens`` prompt tokens cost as much as one output token. FastServe measures quanta in
    seconds and swaps KV out; here they are tokens, and who is displaced recomputes (as in vLLM).
    FastServe's promotion of starved requests is `StarvationCap` around this (the policy "fastserve").

    Attributes:
        quantum: of the first level, in output tokens.
        ratio: of one level's quantum to that above it.
        levels: how many.
        prefill_tokens: prompt tokens that cost as much as one output token.

    Raises:
        InputError: a setting is out of its range.
    """

    quantum: int = 32
    ratio: int = 2
    levels: int = 8
    prefill_tokens: float = 64.0
    vectorised: ClassVar[bool] = True
    refresh: ClassVar[str] = "progress"
    preemptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fits = self.quantum >= 1 and self.ratio >= 1 and self.levels >= 1
        if not (fits and math.isfinite(self.prefill_tokens) and self.prefill_tokens > 0):
            raise InputError(
                f"policy mlfq: quantum = {self.quantum}, ratio = {self.ratio} and levels = {self.levels} must be "
                f"at least 1, and prefill_tokens = {self.prefill_tokens} above 0"
            )

    def __call__(self, request: Any, now_s: Any) -> Any:
        quanta = self.quantum * float(self.ratio) ** np.arange(self.levels)
        entry = np.minimum(
            np.searchsorted(quanta, request.prompt_tokens / self.prefill_tokens), self.levels - 1
        )
        used = np.concatenate([[0.0], np.cumsum(quanta)])
        level = np.searchsorted(used, used[entry] + request.generated_tokens, side="right") - 1
        return np.minimum(level, self.levels - 1) * 1.0
