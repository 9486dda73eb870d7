"""The times of consecutive decode steps, told so that leaps do not change them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.latency import Latency

BEFORE = 1 - 1e-9
"""A time is surely before another one if it is before this share of it; nearer, steps are counted."""


@dataclass(eq=False, slots=True)
class Stretch:
    """Consecutive decode steps of one batch.

    The end of each is told from the start of the first, so it is the same number to the last bit
    however the steps are grouped into leaps.

    Attributes:
        taken: steps so far; 0: the next one begins a stretch.
        start_s: when it began. context: context tokens of its first step.
    """

    taken: int = 0
    start_s: float = 0.0
    context: int = 0

    def time_s(self, latency: Latency, requests: int, context: int, ahead: Any, now_s: float) -> Any:
        """When the step that many steps ahead begins, if `extend` takes as many from ``now_s`` on."""
        if not self.taken:
            return now_s + np.asarray(latency.advance(ahead, requests, context))
        return self.start_s + np.asarray(latency.advance(self.taken + ahead, requests, self.context))

    def extend(
        self,
        latency: Latency,
        requests: int,
        context: int,
        steps: int,
        now_s: float,
        hears_s: float,
        full: bool,
        apart: bool = False,
    ) -> tuple[int, float, bool]:
        """Take ``steps`` steps, or fewer if an arrival is heard of and the batch is not ``full``.

        ``apart``: the step in which the arrival falls is taken by itself, so that whoever looks at the
        server then sees all steps before it done.

        Returns: how many, when the last ends, and whether an arrival may be heard of then.
        """
        before = self.taken
        if not before:
            self.start_s, self.context = now_s, context
        taken = before + steps
        end_s = self.start_s + float(latency.advance(taken, requests, self.context))
        heard = False
        if end_s >= hears_s * BEFORE:
            hears = latency.steps_until(hears_s - self.start_s, requests, self.context)
            if apart and before + 1 < hears <= taken:
                taken = hears - 1
                end_s = self.start_s + float(latency.advance(taken, requests, self.context))
            elif hears <= taken:
                heard = True
                if not full and hears < taken:
                    taken = max(hears, before + 1)
                    end_s = self.start_s + float(latency.advance(taken, requests, self.context))
                # A step that reaches the arrival may end a rounding error before it.
                end_s = max(end_s, hears_s)
        self.taken = taken
        return taken - before, end_s, heard
