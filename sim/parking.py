"""Estimates that exist only after the prefill: who has been prefilled waits, with its KV, to be chosen.

A predictor that reads prefill activations knows nothing of a request before. So requests are prefilled
in order of arrival, as far as the token budget and the memory go and beside the decodes, and get their
first token. Then they are *parked*: they keep their KV blocks and are not in the batch. Whenever fewer
than ``max_num_seqs`` requests decode, the first of the parked in policy order joins them and decodes to
its end. If blocks run out, those without an estimate lose theirs first, the latest arrival before the
others, then the last in policy order, decoding or parked; they are prefilled anew before all who came
later. The estimate's own cost lengthens the step in which the prefill ends.

vLLM has no such state. A real engine would need one: prefilled requests that hold blocks and are in
neither list (as those have that wait for KV from a remote prefill), a second queue ordered by the
estimate, and the predictor's head run on the prefill's activations in the model runner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from sim.decoding import Sequence

if TYPE_CHECKING:
    from sim.engine import Engine


PARKED = 1 << 60
"""Its place in the running list: behind all others."""


class Parking:
    """The prefilled requests of one engine that have not been chosen yet.

    Attributes:
        heap: (priority, number, sequence).
    """

    def __init__(self, engine: Engine):
        self.engine = engine
        self.heap: list[tuple[float, int, Sequence]] = []

    def enter(self, sequence: Sequence) -> None:
        """Park a sequence whose prefill is complete; now it has an estimate."""
        engine = self.engine
        assert engine.rank is not None
        del engine.running[sequence.number]
        sequence.priority = engine.rank(sequence)
        sequence.order = PARKED
        heappush(self.heap, (sequence.priority, sequence.number, sequence))

    def leave(self, sequence: Sequence) -> None:
        """Take out a sequence that loses its blocks."""
        self.heap.remove((sequence.priority, sequence.number, sequence))
        heapify(self.heap)

    def choose(self) -> None:
        """Let the first in order decode while there are places; those in their prefill come after them."""
        engine = self.engine
        free = engine.limits.max_num_seqs - sum(one.ranked for one in engine.running.values())
        if free <= 0 or not self.heap:
            return
        for sequence in engine.prefilling:
            del engine.running[sequence.number]
        while free > 0 and self.heap:
            sequence = heappop(self.heap)[2]
            sequence.ranked = True
            engine.start(sequence)
            engine.decoding.join(sequence, engine.step)
            free -= 1
        for sequence in engine.prefilling:
            engine.start(sequence)

    def victim(self) -> Sequence:
        """Who loses its blocks first."""
        parked = [entry[2] for entry in self.heap]
        return max((*self.engine.running.values(), *parked), key=_standing)

    @staticmethod
    def estimate_s(chunks: Iterable[tuple[Sequence, int]], cost_s: list[float]) -> float:
        """Seconds that the predictor takes in a step: for each first prefill that ends in it."""
        return sum(
            cost_s[sequence.number]
            for sequence, tokens in chunks
            if not (sequence.generated or sequence.preemptions)
            and sequence.computed + tokens == sequence.prompt_tokens
        )


def _standing(sequence: Sequence) -> tuple[float, int]:
    return (sequence.priority if sequence.ranked or sequence.generated else math.inf, sequence.number)
