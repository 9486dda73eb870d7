"""Steps in which nothing is short, taken without the step rule: the shortcut that makes a run fast.

While at most one request waits, and fits into the batch, the budget and the memory with its whole
prompt, the rule has one outcome: all who decode get a token and the newcomer its prompt. `coast`
takes such steps on the sums of `sim.decoding`, and stops before the first that is not like that;
`sim.engine` decides it. The records are the same with and without: ``leap=False`` never coasts, and
the property tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.engine import Engine
from sim.latency import Latency
from sim.replica import Replica, Run

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

    def extend(
        self,
        latency: Latency,
        requests: int,
        context: int,
        steps: int,
        now_s: float,
        hears_s: float,
        full: bool,
    ) -> tuple[int, float, bool]:
        """Take ``steps`` steps, or fewer if an arrival is heard of and the batch is not ``full``.

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
            if hears <= taken:
                heard = True
                if not full and hears < taken:
                    taken = max(hears, before + 1)
                    end_s = self.start_s + float(latency.advance(taken, requests, self.context))
                # A step that reaches the arrival may end a rounding error before it.
                end_s = max(end_s, hears_s)
        self.taken = taken
        return taken - before, end_s, heard


def coast(
    engine: Engine, stretch: Stretch, replica: Replica, run: Run, now_s: float, hears_s: float
) -> tuple[float, bool, list[int]]:
    """Take steps from ``now_s`` on until one ends at ``hears_s`` or later, or has to be decided.

    Returns: when the last step ends; whether an arrival may be heard of then; and who ends with it
        and is not yet among the replica's finished (all others are).
    """
    decoding, latency, records = engine.decoding, run.latency, run.records
    most, size, room = engine.limits.max_num_seqs, engine.limits.block_size, engine.room_tokens
    ends, queue, heap, completion_s = decoding.last_steps, engine.queue, engine.heap, records.completion_s
    heard = False
    left: list[int] = []
    while not heard:
        count, context = decoding.count, decoding.context
        if queue or heap:
            newcomer = engine.admit_easily()
            if newcomer is None:
                break
            end_s = now_s + float(latency.step_time(newcomer.prompt_tokens, count, context + count))
            heard = end_s >= hears_s
            records.first_scheduled_s[newcomer.number] = now_s
            records.first_token_s[newcomer.number] = end_s
            engine.step += 1
            decoding.context = context + count
            decoding.join(newcomer, engine.step)
            stretch.taken = 0
        else:
            # The step after this one may need a block for everybody.
            steps = ends[0] - engine.step + 1 if count else 0
            if not count or context + (steps + size) * count > room:
                break
            steps, end_s, heard = stretch.extend(
                latency, count, context + count, steps, now_s, hears_s, count >= most
            )
            engine.step += steps
            decoding.context = context + steps * count
        engine.coasted = True
        if decoding.context + size * decoding.count > engine.peak_bound:
            engine.note_peak()
        busy_s = (min(end_s, run.horizon_s) if heard else end_s) - now_s
        replica.busy_s += busy_s
        replica.slot_s += busy_s * decoding.count
        now_s = end_s
        if ends[0] < engine.step:
            left = [sequence.number for sequence in engine.end()]
            for number in left:
                completion_s[number] = end_s
                stretch.taken = 0
            if not heard:
                replica.finished += left
                left = []
    return now_s, heard, left
