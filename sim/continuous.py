"""Continuous batching: vLLM V1's scheduler with a clock.

`sim.engine` decides; here each step gets a duration and each request its times. A replica runs
ahead of the clock up to the next arrival that it could hear of, and a stretch of steps in which only
lengths change is one call of the latency model (a *leap*).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from sim.coasting import calm, coast
from sim.decoding import Sequence
from sim.engine import Engine
from sim.kv import Memory
from sim.latency import Latency
from sim.lockstep import Lockstep
from sim.plan import Limits, Plan
from sim.policies.arrival import FCFS
from sim.prefixes import chains
from sim.replica import Replica, Run
from sim.reranking import Reranking
from sim.stretch import Stretch
from traces.errors import InputError

ORDERS = ("auto", "fcfs", "priority")


@dataclass(frozen=True)
class ContinuousBatching:
    """Requests join and leave the batch at every step, as in vLLM V1.

    Names and defaults are those of vLLM 0.19's ``SchedulerConfig`` and ``CacheConfig``; a vLLM
    *server* raises ``max_num_seqs`` to 256 (1,024 on a GPU of 70 GiB or more that is not an A100,
    with ``max_num_batched_tokens`` 8,192). The decisions are those recorded from vLLM 0.32.

    Attributes:
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: most tokens a step; at least ``max_num_seqs``.
        max_model_len: most tokens of a prompt and its output; None: what the cache can hold.
        block_size: tokens a KV block.
        num_blocks: KV blocks of the device, of which vLLM keeps one for itself.
        memory: what the device holds, from which the blocks follow where ``num_blocks`` is None.
            With neither, the latency model is asked (`Roofline` knows its device and model).
        enable_chunked_prefill: without it a prompt is computed in one step or not at all.
        long_prefill_token_threshold: most prompt tokens of one request in a step; 0: no such limit.
        order: "fcfs" and "priority" are vLLM's two schedulers; "auto" is fcfs for the policy FCFS and
            for any other priority, with the policy's number as the priority (smaller first, ties by
            arrival and id), which also says whom a lack of memory preempts.
        enable_prefix_caching: blocks of shared prefixes, and of a preempted request, are found again.
        async_scheduling: a step is decided while the one before it still runs, as vLLM 0.14 and later do
            unless told otherwise: who arrives during a step takes part in the next but one. (There the
            place of a request that ends is free a step later too, which is left out.)
        lockstep: all replicas step together, each step as long as the longest of them, as with data
            parallelism of a mixture of experts with expert parallelism (`sim.lockstep`).
        leap: take steps between which nothing changes in one event; the records do not depend on it.

    Raises:
        InputError: a setting is out of its range.
    """

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    memory: Memory | None = None
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    order: str = "auto"
    enable_prefix_caching: bool = True
    async_scheduling: bool = False
    lockstep: bool = False
    leap: bool = True

    name: ClassVar[str] = "continuous"

    def __post_init__(self) -> None:
        if isinstance(self.memory, dict):  # as settings read from a file
            object.__setattr__(self, "memory", Memory(**self.memory))
        for field, least in (
            ("max_num_seqs", 1),
            ("max_num_batched_tokens", 1),
            ("max_model_len", 2),
            ("block_size", 1),
            ("num_blocks", 2),
            ("long_prefill_token_threshold", 0),
        ):
            value = getattr(self, field)
            if value is None and field in ("max_model_len", "num_blocks"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    f"continuous batching: {field} = {value!r} must be a whole number, at least {least}"
                )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InputError(
                f"continuous batching: max_num_batched_tokens = {self.max_num_batched_tokens} is less than "
                f"max_num_seqs = {self.max_num_seqs}, so not everybody who runs could get a token (vLLM "
                "refuses it too): raise the one or lower the other"
            )
        if self.order not in ORDERS:
            raise InputError(
                f"continuous batching: order = {self.order!r} must be one of {', '.join(ORDERS)}"
            )
        if not self.enable_chunked_prefill and (
            self.max_model_len is None or self.max_model_len > self.max_num_batched_tokens
        ):
            raise InputError(
                f"continuous batching: without chunked prefill a prompt must fit into one step, so "
                f"max_model_len = {self.max_model_len} must be at most max_num_batched_tokens = "
                f"{self.max_num_batched_tokens} (vLLM's rule)"
            )

    @property
    def slots(self) -> int:
        return self.max_num_seqs

    def check(self, run: Run) -> None:
        """Raise InputError if the cache's size is unknown, or the order or the estimates do not fit.

        It also sets ``run.chains`` if blocks are shared, and ``run.lockstep``.
        """
        self.limits(run)
        if self.enable_prefix_caching and run.trace is not None:
            run.chains = chains(run.trace, self.block_size)
        if self.lockstep:
            run.lockstep = Lockstep()
        if ranks_after_prefill(run) and run.order.refresh is not None:
            raise InputError(
                f"policy {run.order.name} is asked again as time goes by (refresh = {run.order.refresh!r}), which is "
                "not modelled for estimates that exist only after the prefill: set estimate_available to 'arrival'"
            )

    def limits(self, run: Run) -> Limits:
        """The engine's limits in a run.

        Raises:
            InputError: see `check`.
        """
        first_come = isinstance(run.order.policy, FCFS)
        if self.order == "fcfs" and not first_come:
            raise InputError(
                f"continuous batching: order = 'fcfs' would ignore policy {run.order.name}: "
                "use order = 'priority' or 'auto', or the policy fcfs"
            )
        num_blocks = self._num_blocks(run.latency)
        tokens = (num_blocks - 1) * self.block_size
        after = ranks_after_prefill(run)
        return Limits(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=tokens if self.max_model_len is None else self.max_model_len,
            block_size=self.block_size,
            num_blocks=num_blocks,
            enable_chunked_prefill=self.enable_chunked_prefill,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            priority=not after and (self.order == "priority" or not first_come),
            enable_prefix_caching=self.enable_prefix_caching,
            rank_after_prefill=after,
        )

    def serve(self, replica: Replica, run: Run) -> Generator[Event, None, None]:
        """The process of one replica (`sim.replica.Batching`)."""
        leap = self.leap and not self.lockstep
        return _Server(self.limits(run), leap, self.async_scheduling, replica, run).process()

    def alone_s(self, prompt_tokens: Any, output_tokens: Any, latency: Latency) -> NDArray[np.float64]:
        """JCT (n,) of each request alone on an idle server with an empty cache."""
        chunks, rest = np.divmod(prompt_tokens, self.max_num_batched_tokens)
        prefill_s = chunks * latency.step_time(self.max_num_batched_tokens, 0, 0)
        prefill_s = prefill_s + np.where(rest > 0, latency.step_time(rest, 0, 0), 0.0)
        return np.asarray(prefill_s + latency.advance(output_tokens - 1, 1, prompt_tokens + 1), np.float64)

    def _num_blocks(self, latency: Latency) -> int:
        if self.num_blocks is not None:
            return self.num_blocks
        if self.memory is not None:
            return self.memory.blocks(self.block_size)
        capacity: Any = getattr(latency, "kv_blocks", None)
        if capacity is None:
            raise InputError(
                "continuous batching needs the size of the KV cache: give num_blocks, or memory, or a "
                "latency model that knows its device (an 80 GB card with Llama-3.1-8B has some 27,000 "
                "blocks of 16 tokens)"
            )
        return int(capacity(self.block_size))


def ranks_after_prefill(run: Run) -> bool:
    """Whether the order needs estimates that exist only after the prefill."""
    return run.estimate_available == "prefill" and bool(run.requests.predictors_read)


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


class _Server:
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
