"""One replica at work under continuous batching: when each step that the engine decides ends, and what it records.

A replica runs ahead of the clock up to the next arrival that it could hear of, and a stretch of steps in
which only lengths change is one call of the latency model (a *leap*).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from simpy.events import Event

from sim.coasting import calm, coast
from sim.decoding import Sequence
from sim.engine import Engine
from sim.plan import Limits, Plan
from sim.replica import Replica, Run
from sim.reranking import Reranking
from sim.stretch import Stretch


@dataclass(frozen=True, slots=True)
class StepLog:
    """One step, or ``steps`` of them in which only lengths changed.

    Attributes:
        start_s, end_s: seconds; of all these steps together.
        chunks: (request number, tokens) of prefill, or of a decode that had been left out before.
        decoding: numbers of the other requests that ran: one token each in each step.
        preempted, admitted, finished: request numbers; the last at ``end_s``.
        waiting: requests that waited. kv_blocks: blocks in use in the last step.
    """

    start_s: float
    end_s: float
    steps: int
    chunks: list[tuple[int, int]]
    decoding: list[int]
    preempted: list[int]
    admitted: list[int]
    finished: list[int]
    waiting: int
    kv_blocks: int


class Server:
    """One replica at work: the engine, and the times of what it decides."""

    def __init__(self, limits: Limits, leap: bool, ahead: bool, replica: Replica, run: Run):
        self.engine = Engine(limits)
        self.late: list[Sequence] | None = [] if ahead else None  # newcomers that the next step leaves out
        self.leap, self.replica, self.run = leap, replica, run
        self.by_chunk = getattr(run.latency, "chunk_time", None)
        logged = run.record_steps or run.records.gaps is not None
        self.coasts = leap and not (ahead or logged or run.closed is not None)
        self.repeats = self.coasts and not run.cache_is_read
        self.stretch = Stretch()
        replica.cached_tokens = self.cached_tokens
        self.last_token_s: dict[int, float] = {}  # of those who lost their turn, for the gaps
        self.now_s = replica.clock.now
        self.reranking: Reranking | None = None
        if self.engine.parking is not None:
            self.engine.rank = self.rank
            self.coasts = self.repeats = False
        elif limits.priority and not run.order.stands:
            self.engine.rank = self.rank
            if run.order.refresh is not None:
                self.reranking = Reranking(self.engine, run.order)
                self.coasts = self.repeats = False

    def process(self) -> Generator[Event, None, None]:
        """Take steps, with one event where an arrival could be heard of, until nothing will come any more."""
        engine, replica, clock = self.engine, self.replica, self.replica.clock
        closed, lockstep = self.run.closed is not None, self.run.lockstep
        hears_s = self.arrive()
        while True:
            if self.coasts and calm(engine):
                self.now_s, hears_s = yield from coast(
                    engine, self.stretch, replica, self.run, self.arrive, self.now_s, hears_s
                )
            if self.reranking is not None:
                self.reranking.refresh(self.now_s)
            plan = engine.plan()
            if self.late:
                while self.late:
                    engine.add(self.late.pop(0))
                if plan is None:
                    continue
                plan.steps = plan.prefill_steps = 1
            if plan is None:
                replica.peak_kv_blocks = engine.peak_blocks
                event = replica.wait()
                if event is None:
                    return
                yield event
                if lockstep is not None:
                    yield from lockstep.idle(clock)
                self.now_s = clock.now
                hears_s = self.arrive()
                continue
            steps, end_s, heard = self.duration(plan, hears_s)
            if lockstep is not None:
                heard, end_s = True, (yield from lockstep.end(clock, end_s))
            elif heard or closed:
                replica.peak_kv_blocks = max(engine.peak_blocks, engine.used_blocks)
                yield clock.at(end_s)
            left = len(replica.finished)
            self.apply(plan, steps, end_s)
            self.now_s = end_s
            if closed and len(replica.finished) > left:
                yield replica.let_go(len(replica.finished) - left)
                heard = True
            if heard:
                hears_s = self.arrive()

    def arrive(self) -> float:
        """Let newcomers wait, or send them away if they can never fit; returns when more may come.

        At the latest the horizon, after which nothing counts.
        """
        engine, run, replica = self.engine, self.run, self.replica
        clock_s = replica.clock.now
        come = replica.take()
        if come and self.reranking is not None:
            self.reranking.changed = True
        for number in come:
            prompt_tokens, output_tokens = run.prompt_tokens[number], run.output_tokens[number]
            if prompt_tokens + output_tokens > engine.longest:
                run.records.rejected.append(number)
                replica.finished.append(number)
                if run.closed is not None:
                    run.closed.left(1, clock_s)
            else:
                chain = () if run.chains is None else run.chains(run.rows[number])
                sequence = Sequence(number, prompt_tokens, output_tokens, run.order.keys[number], chain)
                if self.late is None:
                    engine.add(sequence)
                else:
                    self.late.append(sequence)
        if run.closed is not None and run.closed.replicas > 1:
            return clock_s  # at any time a request may leave another replica
        return min(replica.next_arrival_s, run.horizon_s)

    def cached_tokens(self, number: int) -> int:
        """Prompt tokens of a request that the prefix cache would give it now."""
        engine, run = self.engine, self.run
        chain = () if run.chains is None else run.chains(run.rows[number])
        return engine.cached_tokens(Sequence(number, run.prompt_tokens[number], 1, chain=chain))

    def rank(self, sequence: Sequence) -> float:
        """What the policy says of a request that has just lost its place."""
        if self.reranking is not None:
            return self.reranking.rank(sequence, self.now_s)
        return self.run.order.ask(sequence.number, self.now_s, sequence.generated)

    def duration(self, plan: Plan, hears_s: float) -> tuple[int, float, bool]:
        """How many steps to take, when the last ends, and whether an arrival may be heard of then."""
        latency, now_s, reranking = self.run.latency, self.now_s, self.reranking
        if reranking is not None:
            hears_s = min(hears_s, reranking.hears_s)
        if not (plan.chunks or plan.preempted):
            requests, context = plan.decode_requests, plan.context_tokens
            full = plan.full and self.late is None
            steps = plan.steps if self.leap else 1
            if reranking is not None:
                full = False
                if steps > 1:
                    steps = reranking.valid_steps(
                        steps, lambda ahead: self.stretch.time_s(latency, requests, context, ahead, now_s)
                    )
            apart = self.run.cache_is_read
            return self.stretch.extend(
                latency, requests, context, steps, now_s, hears_s, full and not apart, apart
            )
        self.stretch.taken = 0
        end_s = now_s
        if plan.prefill_steps > 1 and self.repeats:
            for ahead in range(plan.prefill_steps):
                end_s += self.step_s(plan, ahead)
            if end_s < self.run.horizon_s:
                return plan.prefill_steps, end_s, end_s >= hears_s
            end_s = now_s
        if plan.prefill_tokens or plan.decode_requests:  # else everybody lost their place: no time passes
            end_s += self.step_s(plan)
        if self.engine.parking is not None:
            end_s += self.engine.parking.estimate_s(plan.chunks, self.run.estimate_s)
        return 1, end_s, end_s >= hears_s

    def step_s(self, plan: Plan, ahead: int = 0) -> float:
        """Seconds of a step that is not a plain decode; by its chunks, if the latency model can tell them apart.

        ``ahead``: of the step that many steps later, if the same requests go on with as many tokens each.
        """
        by_chunk, decoding = self.by_chunk, plan.decode_requests
        context = plan.context_tokens + ahead * decoding
        if by_chunk is None:
            return float(self.run.latency.step_time(plan.prefill_tokens, decoding, context))
        chunks = [(tokens, sequence.computed + ahead * tokens) for sequence, tokens in plan.prefill_chunks()]
        return float(by_chunk(chunks, decoding, context))

    def apply(self, plan: Plan, steps: int, end_s: float) -> None:
        """Run the steps, and stamp and count what happened in them."""
        engine, replica, records, now_s = self.engine, self.replica, self.run.records, self.now_s
        busy_s = min(end_s, self.run.horizon_s) - now_s
        replica.busy_s += busy_s
        replica.slot_s += busy_s * len(engine.running)
        for sequence in plan.admitted:
            if sequence.preemptions:
                records.recomputed_tokens[sequence.number] = sequence.lost_tokens
            else:
                records.first_scheduled_s[sequence.number] = now_s
                records.prefix_hit_tokens[sequence.number] = sequence.hit_tokens
        if plan.preempted or plan.displaced:
            for sequence in (*plan.displaced, *plan.preempted):
                records.preemptions[sequence.number] = sequence.preemptions
                records.recomputed_tokens[sequence.number] = sequence.lost_tokens
        if records.gaps is not None:
            self.note_gaps(plan, steps, end_s, records.gaps)
        decoders: list[int] = []
        if self.run.record_steps:
            decoders = [sequence.number for sequence in engine.decoders()]
        first_token, finished = engine.apply(steps)
        for sequence in first_token:
            records.first_token_s[sequence.number] = end_s
        for sequence in finished:
            records.completion_s[sequence.number] = end_s
            replica.finished.append(sequence.number)
            self.stretch.taken = 0
        if self.run.record_steps:
            replica.steps.append(self.log(plan, steps, end_s, decoders, finished))
        if self.reranking is not None:
            plan.displaced.clear()
            self.reranking.changed |= bool(finished or plan.admitted or plan.preempted)

    def log(
        self, plan: Plan, steps: int, end_s: float, decoders: list[int], finished: list[Sequence]
    ) -> StepLog:
        engine = self.engine
        return StepLog(
            start_s=self.now_s,
            end_s=end_s,
            steps=steps,
            chunks=[(sequence.number, tokens) for sequence, tokens in plan.chunks],
            decoding=decoders,
            preempted=[sequence.number for sequence in (*plan.displaced, *plan.preempted)],
            admitted=[sequence.number for sequence in plan.admitted],
            finished=[sequence.number for sequence in finished],
            waiting=engine.waiting,
            kv_blocks=engine.used_blocks,
        )

    def note_gaps(self, plan: Plan, steps: int, end_s: float, gaps: list[tuple[Any, Any]]) -> None:
        """Write down the time between tokens, for the steps that are about to be applied."""
        engine, last_token_s = self.engine, self.last_token_s
        count = engine.decoding.count
        for sequence in [*plan.displaced, *plan.preempted, *engine.prefilling]:
            if sequence.generated:
                last_token_s.setdefault(sequence.number, self.now_s)
        for sequence, tokens in plan.chunks:
            if (
                sequence.generated
                and sequence.computed + tokens == sequence.prompt_tokens + sequence.generated
            ):
                gaps.append((end_s - last_token_s.pop(sequence.number), 1))
        if count and steps == 1:
            gaps.append((end_s - self.now_s, count))
        elif count:
            context = plan.context_tokens + count * np.arange(steps)
            seconds = np.broadcast_to(self.run.latency.step_time(0, count, context), steps)
            gaps.append((seconds, np.full(steps, count)))
