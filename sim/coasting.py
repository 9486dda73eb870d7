"""Steps in which nothing is short, taken without the step rule: the shortcut that makes a run fast.

While no block is shared or could be asked for, and at most one request waits for its prefill or is in
it, and the batch and the memory hold it whole, the rule has one outcome: all who decode get a token, and
the newcomer what is left of the budget. `coast` takes such steps on the sums of `sim.decoding`, and
stops before the first that is not like that; `Engine.plan` decides it. The records are the same with and
without: ``leap=False`` never coasts, and the property tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from simpy.events import Event

from sim.decoding import Sequence
from sim.engine import Engine
from sim.replica import Replica, Run
from sim.stretch import BEFORE, Stretch


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
            sequence = easy_prefill(engine)
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
            if fill(engine, sequence, tokens, step):
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


def calm(engine: Engine) -> bool:
    """Whether no block is shared or could be asked for, and at most one waits for or is in its prefill."""
    return (
        len(engine.queue) + len(engine.heap) <= 1
        and not (engine.pool.queued or engine.sharing)
        and len(engine.prefilling) <= 1
    )


def easy_prefill(engine: Engine) -> Sequence | None:
    """Who is in its prefill, or else admit the only one who waits, if that is how the rule decides it.

    Returns: None, and nothing is done, if anything is short.
    """
    limits, count = engine.limits, engine.decoding.count
    fresh = not engine.prefilling
    if fresh:
        if len(engine.queue) + len(engine.heap) != 1 or count >= limits.max_num_seqs:
            return None
        sequence = engine.queue[0] if engine.queue else engine.heap[0][2]
    else:
        sequence = engine.prefilling[0]
        # Beside its last chunk, others may be admitted.
        last = sequence.prompt_tokens - sequence.computed <= limits.max_num_batched_tokens - count
        if last and (engine.queue or engine.heap):
            return None
    prompt_tokens = sequence.prompt_tokens
    # Each of those who run may need a block more than its tokens fill, in this step and the next.
    tokens = engine.decoding.context + prompt_tokens + (2 * count + 1) * limits.block_size
    if (
        tokens > engine.room_tokens
        or prompt_tokens > engine.easy_tokens
        or sequence.output_tokens == 1
        or sequence.generated
        or sequence.preemptions
        or sequence.holding is not None
    ):
        return None
    if fresh:
        (engine.queue or engine.heap).pop()
        engine.start(sequence)
    return sequence


def fill(engine: Engine, sequence: Sequence, tokens: int, step: int) -> bool:
    """Compute a chunk of a prompt; whether it is complete and decodes from ``step`` on."""
    sequence.computed += tokens
    if sequence.computed < sequence.prompt_tokens:
        sequence.blocks = -(-sequence.computed // engine.limits.block_size)
        engine.prefilling[:] = [sequence]
        return False
    engine.prefilling.clear()
    sequence.generated = 1
    engine.decoding.join(sequence, step)
    return True
