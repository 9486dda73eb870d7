"""Orders that move while requests wait and run: when a policy is asked again, and who takes whose place.

vLLM's priority order asks once. A policy with `refresh` is asked again before a step, and if it is
`preemptive` a waiting request takes the place of running ones that come after it (they lose their KV
blocks and are recomputed, which is all that vLLM V1 can do): as few as make room for it, the last in
order first, and none if even that would not admit it. Then the step rule goes on as always. In a vLLM
this is a change to the scheduler: `Scheduler.schedule` would sort both lists before its walk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.decoding import Sequence
from sim.engine import Engine
from sim.policies import Order
from sim.request import Progress

AHEAD = 1 << 14
"""Most (request, step) pairs that are looked at to see how far a leap is valid."""


class Reranking:
    """The order of one server's requests, kept up to date.

    Attributes:
        due_s: when the policy is next asked, if it is asked every so many seconds.
        changed: a request has come or gone since it was asked.
    """

    def __init__(self, engine: Engine, order: Order):
        self.engine, self.order = engine, order
        self.seconds = order.refresh if not isinstance(order.refresh, str) else None
        self.due_s = -math.inf
        self.changed = False

    @property
    def hears_s(self) -> float:
        """When the next step has to be decided anew, whatever happens."""
        return self.due_s if self.seconds is not None else math.inf

    def refresh(self, now_s: float) -> None:
        """Ask the policy if it is time to, before a step is planned at ``now_s``."""
        engine, refresh = self.engine, self.order.refresh
        if self.seconds is not None:
            if now_s < self.due_s:
                return
            self.due_s = now_s + self.seconds
        elif refresh == "event" and not self.changed:
            return
        self.changed = False
        running = list(engine.running.values())
        self._ask(running, True, now_s)
        if refresh != "progress":
            waiting = [sequence for _, _, sequence in engine.heap]
            self._ask(waiting, False, now_s)
            engine.heap[:] = [(one.priority, one.number, one) for one in waiting]
            heapify(engine.heap)
        if self.order.preemptive and engine.heap and running:
            self._displace(running, now_s)

    def rank(self, sequence: Sequence, now_s: float) -> float:
        """What the policy says of a request that has just lost its place."""
        return float(self.order.ask_some(*self._stand([sequence], False), now_s)[0])

    def valid_steps(self, steps: int, time_s: Callable[[Any], Any]) -> int:
        """For how many of the next ``steps`` steps, in which all decode, the order surely holds.

        ``time_s`` gives the start of the step that many steps ahead (of several at once).
        """
        engine, order = self.engine, self.order
        if not engine.heap or order.refresh == "event" or self.seconds is not None:
            return steps
        moves = order.refresh == "step"
        if not (order.preemptive or moves):
            return steps
        if not order.vectorised:
            return 1
        running, waiting = list(engine.running.values()), [sequence for _, _, sequence in engine.heap]
        ahead = np.arange(1, max(2, min(steps, AHEAD // (len(running) + moves * len(waiting)))))
        now_s = time_s(ahead) if moves else time_s(0)
        best, first = self._foremost(waiting, ahead if moves else ahead[:1], now_s)
        # Who is the first to be admitted changes, while somebody could be.
        over = np.zeros(len(ahead), bool)
        if moves and len(running) < engine.limits.max_num_seqs:
            over |= first != engine.heap[0][1]
        if order.preemptive:
            over |= self._threatened(running, ahead, now_s, best, first)
        return int(ahead[over.argmax()]) if over.any() else int(ahead[-1]) + 1

    def _foremost(
        self, waiting: list[Sequence], ahead: NDArray[np.int64], now_s: Any
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Value and number (k,) of the first in order who waits, so many steps ahead."""
        stand = self._stand(waiting, False, ahead)
        times = np.tile(np.broadcast_to(now_s, len(ahead)), len(waiting))
        values = self.order.ask_some(*stand, times).reshape(len(waiting), -1)
        numbers = stand[0].reshape(len(waiting), -1)
        best = values.min(0)
        return best, np.where(values == best, numbers, np.iinfo(np.int64).max).min(0)

    def _threatened(
        self,
        running: list[Sequence],
        ahead: NDArray[np.int64],
        now_s: Any,
        best: NDArray[np.float64],
        first: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """Whether (k,) a running request without protection comes after the first who waits."""
        stand = self._stand(running, True, ahead)
        times = np.tile(np.broadcast_to(now_s, len(ahead)), len(running))
        values = self.order.ask_some(*stand, times).reshape(len(running), -1)
        safe = self.order.allows("protects", *stand, times, otherwise=False).reshape(len(running), -1)
        after = (values > best) | ((values == best) & (stand[0].reshape(len(running), -1) > first))
        return np.asarray((after & ~safe).any(0))

    def _displace(self, running: list[Sequence], now_s: float) -> None:
        """Give the places of running requests to waiting ones that come before them."""
        engine = self.engine
        safe = self.order.allows("protects", *self._stand(running, True), now_s, otherwise=False)
        losers = [one for one, keeps in zip(running, safe.tolist(), strict=True) if not keeps]
        losers.sort(key=_place)  # the last in order comes first to be taken
        if not losers or _place(losers[-1]) < engine.heap[0][:2]:
            return
        last = _place(losers[-1])
        takers = sorted(entry for entry in engine.heap if entry[:2] < last)
        may = self.order.allows(
            "displaces", *self._stand([one for _, _, one in takers], False), now_s, otherwise=True
        )
        slots = engine.limits.max_num_seqs - len(running)
        budget = engine.limits.max_num_batched_tokens - sum(self._need(one) for one in running)
        kept = engine.decoding.phases[engine.step % engine.limits.block_size]
        for (priority, number, taker), displaces in zip(takers, may.tolist(), strict=True):
            blocks, tokens = engine.room_needed(taker)
            victims: list[Sequence] = []
            while losers and (
                slots < 1 or kept + blocks > engine.pool.free + sum(map(self._blocks, victims))
            ):
                if not displaces or _place(losers[-1]) < (priority, number):
                    break
                victims.append(losers.pop())
                slots += 1
            if budget < 1 or slots < 1 or kept + blocks > engine.pool.free + sum(map(self._blocks, victims)):
                return
            for victim in victims:
                budget += self._need(victim)
                engine.displace(victim)
            slots, kept, budget = slots - 1, kept + blocks, budget - tokens

    def _need(self, sequence: Sequence) -> int:
        """Tokens that a running sequence asks of the next step."""
        if sequence.last_step >= 0:
            return 1
        return sequence.prompt_tokens + sequence.generated - sequence.computed

    def _blocks(self, sequence: Sequence) -> int:
        """Blocks that a running sequence holds, alone or with others."""
        if sequence.last_step < 0:
            return sequence.blocks
        computed = sequence.prompt_tokens + self.engine.generated(sequence) - 1
        return -(-computed // self.engine.limits.block_size)

    def _ask(self, sequences: list[Sequence], running: bool, now_s: float) -> None:
        values = self.order.ask_some(*self._stand(sequences, running), now_s) if sequences else np.empty(0)
        for sequence, value in zip(sequences, values.tolist(), strict=True):
            sequence.priority = value
            sequence.urgency = (value, sequence.number)

    def _stand(
        self, sequences: list[Sequence], running: bool, ahead: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], Progress]:
        """Number, tokens and progress of each sequence, so many steps ahead: m, or m times k of each."""
        engine = self.engine
        later = np.zeros(1, np.int64) if ahead is None else ahead
        spread = len(later)
        number = np.repeat(np.array([one.number for one in sequences], np.int64), spread)
        since = np.array([engine.step - one.since for one in sequences], np.int64)
        steps = (since[:, None] + later).ravel()
        tokens = np.array([engine.generated(one) for one in sequences], np.int64)
        if not running:
            cached = lambda: np.repeat([engine.cached_tokens(one) for one in sequences], spread)  # noqa: E731
            zeros = np.zeros(len(number), np.int64)
            return number, np.repeat(tokens, spread), Progress(zeros > 0, steps, zeros, zeros, cached)
        waited = np.repeat(np.array([one.waited for one in sequences], np.int64), spread)
        hit = lambda: np.repeat([one.hit_tokens for one in sequences], spread)  # noqa: E731
        ones = np.ones(len(number), bool)
        return (
            number,
            (tokens[:, None] + later).ravel(),
            Progress(ones, np.zeros(len(number), np.int64), waited, steps, hit),
        )


def _place(sequence: Sequence) -> tuple[float, int]:
    return sequence.priority, sequence.number
