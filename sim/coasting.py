"""Steps in which nothing is short, taken without the step rule: the shortcut that makes a run fast.

While no block is shared or could be asked for, and at most one request waits for its prefill or is in
it, and the batch and the memory hold it whole, the rule has one outcome: all who decode get a token, and
the newcomer what is left of the budget. `coast` takes such steps on the sums of `sim.decoding`, and
stops before the first that is not like that; `sim.engine` decides it. The records are the same with and
without: ``leap=False`` never coasts, and the property tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from simpy.events import Event

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


def coast(
    engine: Engine,
    stretch: Stretch,
    replica: Replica,
    run: Run,
    arrive: Callable[[], float],
    now_s: float,
    hears_s: float,
) -> Generator[Event, None, tuple[float, float]]:
    """Take steps of a `calm` engine from ``now_s`` on, with an event where one ends at ``hears_s`` or later.

    ``arrive`` lets newcomers wait and says until when none will come.

    Returns: when the last step ended and until when nobody comes: the next step has to be decided, or
        nobody is left.
    """
    decoding, prefilling, latency, records = engine.decoding, engine.prefilling, run.latency, run.records
    budget, most = engine.limits.max_num_batched_tokens, engine.limits.max_num_seqs
    calendar, queue, heap, running = decoding.calendar, engine.queue, engine.heap, engine.running
    size, room, horizon_s, clock = engine.limits.block_size, engine.room_tokens, run.horizon_s, replica.clock
    taken, start_s, first = stretch.taken, stretch.start_s, stretch.context
    step = begin = engine.step
    by_chunk: Any = getattr(latency, "chunk_time", None)
    while True:
        count, context = decoding.count, decoding.context
        heard = False
        if prefilling or queue or heap:
            sequence = engine.easy_prefill()
            if sequence is None:
                break
            if not sequence.computed:
                records.first_scheduled_s[sequence.number] = now_s
            tokens = min(sequence.prompt_tokens - sequence.computed, budget - count)
            if by_chunk is None:
                end_s = now_s + latency.step_time(tokens, count, context + count)
            else:
                end_s = now_s + by_chunk(((tokens, sequence.computed),), count, context + count)
            heard = end_s >= hears_s
            step += 1
            taken = 0
            decoding.context = context + count
            count += 1
            if engine.fill(sequence, tokens, step):
                records.first_token_s[sequence.number] = end_s
        elif count:
            steps = calendar[0][0] - step + 1
            # The step after these may need a block for everybody.
            if context + (steps + size) * count > room:
                break
            # As in `Stretch.extend`, without the call.
            if not taken:
                start_s, first = now_s, context + count
            before, taken = taken, taken + steps
            end_s = start_s + latency.advance(taken, count, first)
            if end_s >= hears_s * BEFORE:
                hears = latency.steps_until(hears_s - start_s, count, first)
                if hears <= taken:
                    heard = True
                    if hears < taken and count < most:
                        taken = max(hears, before + 1)
                        end_s = start_s + latency.advance(taken, count, first)
                    end_s = max(end_s, hears_s)
            step += taken - before
            decoding.context = context + (taken - before) * count
        else:
            event = replica.wait()
            if event is None:
                break
            yield event
            now_s = clock.now
            hears_s = arrive()
            continue
        busy_s = (end_s if end_s < horizon_s else horizon_s) - now_s
        replica.busy_s += busy_s
        replica.slot_s += busy_s * count
        now_s = end_s
        left = replica.finished if not heard else []
        if calendar and calendar[0][0] < step:
            filled = decoding.context + (prefilling[0].computed if prefilling else 0)
            if filled + len(running) * size > engine.peak_bound:
                engine.note_peak(engine.blocks(step))
            for sequence in decoding.ended(step - 1):
                taken = 0
                del running[sequence.number]
                records.completion_s[sequence.number] = end_s
                left.append(sequence.number)
        if heard:
            if end_s >= horizon_s:  # the last moment of the run
                engine.note_peak(engine.blocks(step))
            replica.peak_kv_blocks = engine.peak_blocks
            yield clock.at(end_s)
            replica.finished += left
            hears_s = arrive()
    if step > begin:
        engine.step, engine.coasted = step, True
    stretch.taken, stretch.start_s, stretch.context = taken, start_s, first
    return now_s, hears_s
