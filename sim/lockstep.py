"""Replicas that step together: data parallelism of a mixture of experts whose experts are spread over all of them.

Every layer exchanges tokens between the replicas, so no step ends before the longest one; a replica without
work runs along with an empty batch (vLLM's data-parallel deployment with expert parallelism).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from simpy.events import Event, EventPriority

from sim.replica import Clock

LAST = EventPriority(2)
"""After everything else that happens at an instant."""


class Lockstep:
    """The common end of a step.

    Attributes:
        until_s: when the step that runs ends; a replica that had no work when it began waits until then.
    """

    def __init__(self) -> None:
        self.until_s = 0.0
        self._end_s = 0.0
        self._ended: Event | None = None

    def end(self, clock: Clock, end_s: float) -> Generator[Event, Any, float]:
        """Wait for the end of a step that begins now and would, alone, end at ``end_s``; returns when it ends."""
        if self._ended is None:
            self._ended, self._end_s = clock.event(), clock.now
            all_in = clock.at(clock.now, LAST)
            assert all_in.callbacks is not None
            all_in.callbacks.append(self._begin)
        self._end_s = max(self._end_s, end_s)
        yield self._ended
        yield clock.at(self.until_s)
        return self.until_s

    def idle(self, clock: Clock) -> Generator[Event, Any, None]:
        """Wait for the end of the step that runs, if one does."""
        if self.until_s > clock.now:
            yield clock.at(self.until_s)

    def _begin(self, _: Event) -> None:
        assert self._ended is not None
        self.until_s, ended, self._ended = self._end_s, self._ended, None
        ended.succeed()
