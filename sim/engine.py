"""vLLM V1's step rule as a state machine that knows no clock: `Engine.plan` decides, `Engine.apply` acts.

The same code simulates (`sim.continuous` gives each step a duration) and replays recorded decisions
(`sim.conformance` gives it one virtual second).

What makes it fast is that a decoding request needs no attention: one token a step, a new block every
``block_size`` steps, and a last step known in advance. So the decoding requests are kept as sums
(how many, their context, how many need a block in which phase) and as a calendar of last steps,
and only what changes is touched. The step rule itself is `Engine.plan`, then `Engine._walk`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from sim.kv import BlockPool, Chain, Hold, Holding

UNLIMITED = 1 << 60


@dataclass(frozen=True)
class Limits:
    """vLLM's limits, under vLLM's names; with ``priority`` the queue goes by (priority, number)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    priority: bool = False
    enable_prefix_caching: bool = False


class Sequence:
    """One request inside the engine.

    While it decodes, ``generated`` and ``computed`` stand still: at the start of step s it has
    generated ``s + base`` tokens, and one less is computed besides its prompt.

    Attributes:
        number: rank by (arrival, id), which breaks every tie. priority: smaller goes first.
        generated: tokens it has got. computed: tokens whose KV is there.
        blocks: KV blocks it holds (prefill only; while it decodes they follow from ``computed``).
        last_step: the step that yields its last token, or -1 while it does not decode.
        order: its place in the running list.
        hit_tokens: tokens found in the prefix cache at its first admission.
        lost_tokens: tokens that were computed and then lost to preemption.
    """

    __slots__ = (
        "base",
        "blocks",
        "computed",
        "generated",
        "hit_tokens",
        "holding",
        "last_step",
        "lost_tokens",
        "number",
        "order",
        "output_tokens",
        "preemptions",
        "priority",
        "prompt_tokens",
    )

    def __init__(
        self, number: int, prompt_tokens: int, output_tokens: int, priority: float = 0.0, chain: Chain = ()
    ):
        self.number = number
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.holding: Holding | None = Holding(chain) if chain else None
        self.generated = self.computed = self.blocks = self.base = 0
        self.order = self.preemptions = self.hit_tokens = self.lost_tokens = 0
        self.last_step = -1


@dataclass(eq=False, slots=True)
class Plan:
    """What the next step does, and for how many steps on end nothing but lengths changes.

    Attributes:
        steps: the most steps that may be applied at once; more than 1 only if all requests decode.
        prefill_tokens, decode_requests, context_tokens: what `Latency.step_time` prices.
        chunks: (sequence, tokens) of prefill, or of a decode outside the sums.
        preempted: sequences that lost their place, in that order.
        admitted: sequences taken from the waiting queue.
        waits_for_room: a newcomer could not be admitted before the batch changes.
    """

    steps: int = 1
    prefill_tokens: int = 0
    decode_requests: int = 0
    context_tokens: int = 0
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    waits_for_room: bool = False


class Engine:
    """The scheduler of one replica.

    Attributes:
        step: the number of the step that `plan` decides next.
        running: sequences by number, in the order of the running list.
        decoding, context: sums over the decoding sequences: how many, and their computed tokens.
        peak_blocks: most KV blocks in use at once.
    """

    def __init__(self, limits: Limits):
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks)
        self.step = 0
        self.running: dict[int, Sequence] = {}
        self.decoding = self.context = 0
        self.peak_blocks = 0
        self._waiting: deque[Sequence] = deque()
        self._heap: list[tuple[float, int, Sequence]] = []
        self._prefilling: list[Sequence] = []
        self._phases = [
            0
        ] * limits.block_size  # decoding sequences that need a block in steps = phase mod size
        self._calendar: dict[int, list[Sequence]] = {}
        self._last_steps: list[int] = []
        self._plan = Plan()
        self._order = 0

    @property
    def waiting(self) -> int:
        """How many sequences wait."""
        return len(self._heap) + len(self._waiting)

    def fits(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether a request can ever be served; if not it is to be rejected at arrival."""
        tokens = prompt_tokens + output_tokens
        return tokens <= self.limits.max_model_len and tokens <= self.pool.usable * self.limits.block_size

    def add(self, sequence: Sequence) -> None:
        """Let a sequence that `fits` wait."""
        if self.limits.priority:
            heappush(self._heap, (sequence.priority, sequence.number, sequence))
        else:
            self._waiting.append(sequence)

    def plan(self) -> Plan | None:
        """Decide who runs in this step with how many tokens; None if nobody is there at all."""
        if not (self.running or self._waiting or self._heap):
            return None
        plan = self._plan
        plan.chunks, plan.preempted, plan.admitted = [], [], []
        budget = self._serve_running()
        if (self._waiting or self._heap) and not plan.preempted:
            self._admit(budget)
        self._sum_up(plan)
        return plan

    def apply(self, steps: int = 1) -> tuple[list[Sequence], list[Sequence]]:
        """Run ``steps`` steps of the plan.

        Returns: the sequences that got their first token, and those that finished, at the end of
            the last of these steps.
        """
        last = self.step + steps - 1
        if steps > 1:
            self.pool.allocate(self._growth(steps - 1))
        used = self.pool.usable - self.pool.free
        if used > self.peak_blocks:
            self.peak_blocks = used
        self.context += steps * self.decoding
        self.step = last + 1
        first_token: list[Sequence] = []
        finished: list[Sequence] = []
        for sequence, tokens in self._plan.chunks:
            self._progress(sequence, tokens, first_token, finished)
        while self._last_steps and self._last_steps[0] <= last:
            for sequence in self._calendar.pop(heappop(self._last_steps)):
                if sequence.last_step == last:
                    self._leave_decoding(sequence)
                    finished.append(sequence)
        if finished:
            if len(finished) > 1:
                finished.sort(
                    key=lambda sequence: sequence.order
                )  # vLLM frees in the order of the running list
            for sequence in finished:
                del self.running[sequence.number]
                self._free(sequence, sequence.computed, finished=True)
        return first_token, finished

    def decoders(self) -> Iterator[Sequence]:
        """The sequences that get one token in the planned step and are not in its chunks."""
        return (sequence for sequence in self.running.values() if sequence.last_step >= 0)

    # ---- the running list

    def _serve_running(self) -> int:
        """Step 1 of the rule where no order matters: everybody gets what they need.

        Returns: the budget left for admissions.
        """
        pool, size = self.pool, self.limits.block_size
        budget = self.limits.max_num_batched_tokens - self.decoding
        blocks = self._phases[self.step % size]
        grants = []
        if self._prefilling:
            threshold = self._threshold()
            for sequence in self._prefilling:
                need = sequence.prompt_tokens + sequence.generated - sequence.computed
                need = min(need, threshold)
                if need > budget:
                    if sequence is not next(reversed(self.running.values())):
                        return self._walk()
                    need = budget
                more = -(-(sequence.computed + need) // size) - sequence.blocks
                grants.append((sequence, need, more))
                budget -= need
                blocks += more
        if blocks > pool.free:
            return self._walk()
        if blocks:
            pool.allocate(self._phases[self.step % size])
        for sequence, need, more in grants:
            if need:
                self._grant(sequence, need, more)
        return budget

    def _walk(self) -> int:
        """Step 1 of the rule: serve the running list in order, preempting where blocks run out.

        Returns: the budget left for admissions.
        """
        size = self.limits.block_size
        budget = self.limits.max_num_batched_tokens
        threshold = self._threshold()
        given: dict[int, tuple[Sequence, int]] = {}
        for sequence in list(self.running.values()):
            if budget <= 0:
                break
            if sequence.number not in self.running:
                continue
            if sequence.last_step >= 0:
                need, blocks = 1, int((sequence.prompt_tokens + self.step + sequence.base - 1) % size == 0)
            else:
                need = sequence.prompt_tokens + sequence.generated - sequence.computed
                need = min(need, threshold, budget)
                blocks = -(-(sequence.computed + need) // size) - sequence.blocks
            while blocks > self.pool.free:
                victim = self._victim()
                _, tokens = given.pop(victim.number, (victim, 0))
                budget += tokens
                self._preempt(victim, tokens)
                if victim is sequence:
                    break
            if sequence.number not in self.running:
                break
            self.pool.allocate(blocks)
            given[sequence.number] = (sequence, need)
            budget -= need
            if sequence.last_step < 0:
                self._name(sequence, need, blocks)
        for sequence in list(self.decoders()):
            if sequence.number not in given:
                self._stall(sequence)
        self._plan.chunks = [chunk for chunk in given.values() if chunk[0].last_step < 0]
        return budget

    def _grant(self, sequence: Sequence, tokens: int, blocks: int) -> None:
        """Hand out the slots of a prefill chunk."""
        self.pool.allocate(blocks)
        self._name(sequence, tokens, blocks)
        self._plan.chunks.append((sequence, tokens))

    def _name(self, sequence: Sequence, tokens: int, blocks: int) -> None:
        """Note the blocks of a chunk, and cache those that are full under the names that others know."""
        sequence.blocks += blocks
        holding = sequence.holding
        if holding is not None and holding.named < holding.shared_blocks:
            full = (sequence.computed + tokens) // self.limits.block_size
            self.pool.name(holding, min(full, holding.shared_blocks))

    def _victim(self) -> Sequence:
        if self.limits.priority:
            return max(self.running.values(), key=lambda sequence: (sequence.priority, sequence.number))
        return next(reversed(self.running.values()))

    def _preempt(self, sequence: Sequence, tokens: int) -> None:
        """Take a sequence's place and blocks; ``tokens`` were handed out to it in this very step."""
        del self.running[sequence.number]
        if sequence.last_step >= 0:
            self._leave_decoding(sequence)
        else:
            self._prefilling.remove(sequence)
        self._free(sequence, sequence.computed + tokens, finished=False)
        sequence.lost_tokens += sequence.computed
        sequence.computed = sequence.blocks = 0
        sequence.preemptions += 1
        self._plan.preempted.append(sequence)
        if self.limits.priority:
            self.add(sequence)
        else:
            self._waiting.appendleft(sequence)

    def _stall(self, sequence: Sequence) -> None:
        """Take a decoding sequence that the budget left out of this step out of the sums."""
        self._leave_decoding(sequence)
        self._prefilling.append(sequence)
        self._prefilling.sort(key=lambda sequence: sequence.order)

    # ---- the waiting queue

    def _admit(self, budget: int) -> None:
        """Step 3 of the rule: admit in order until somebody does not fit; nobody overtakes."""
        limits, pool, size = self.limits, self.pool, self.limits.block_size
        threshold = self._threshold()
        while budget > 0 and len(self.running) < limits.max_num_seqs and (self._waiting or self._heap):
            sequence = self._heap[0][2] if limits.priority else self._waiting[0]
            total = sequence.prompt_tokens + sequence.generated
            holding = sequence.holding
            runs: list[Hold] = []
            hits = idle = 0
            if holding is not None:
                # The last token is always computed: its logits are what the step is for.
                runs, hits, idle = pool.find(holding, (total - 1) // size)
            need = min(total - hits * size, threshold)
            if need > budget:
                if not limits.enable_chunked_prefill:
                    break
                need = budget
            if -(-total // size) - hits + idle > pool.free:
                break
            if limits.priority:
                heappop(self._heap)
            else:
                self._waiting.popleft()
            if hits:
                self._reuse(sequence, runs, hits)
            self._order += 1
            sequence.order = self._order
            self.running[sequence.number] = sequence
            self._prefilling.append(sequence)
            self._plan.admitted.append(sequence)
            self._grant(sequence, need, -(-(sequence.computed + need) // size) - hits)
            budget -= need

    def _reuse(self, sequence: Sequence, runs: list[Hold], hits: int) -> None:
        assert sequence.holding is not None
        self.pool.take(sequence.holding, runs)
        sequence.blocks = hits
        sequence.computed = tokens = hits * self.limits.block_size
        if sequence.preemptions:
            sequence.lost_tokens = max(0, sequence.lost_tokens - tokens)
        else:
            sequence.hit_tokens = tokens

    def _threshold(self) -> int:
        """The cap on what one request gets in a step; vLLM lifts it for a request that is alone."""
        threshold = self.limits.long_prefill_token_threshold
        if threshold > 0 and len(self.running) + self.waiting > 1:
            return threshold
        return UNLIMITED

    # ---- what a step does

    def _sum_up(self, plan: Plan) -> None:
        plan.prefill_tokens = 0
        plan.decode_requests = decoding = self.decoding
        plan.context_tokens = self.context + decoding
        plan.waits_for_room = len(self.running) >= self.limits.max_num_seqs or bool(self._waiting)
        plan.steps = 1
        if plan.chunks:
            for sequence, tokens in plan.chunks:
                if tokens == 1 and sequence.generated and sequence.computed >= sequence.prompt_tokens:
                    plan.decode_requests += 1
                    plan.context_tokens += sequence.computed + 1
                else:
                    plan.prefill_tokens += tokens
        elif decoding and not plan.preempted:
            steps = self._last_steps[0] - self.step + 1
            if steps > 1:
                steps = self._steps_within(self.pool.free, steps)
            plan.steps = steps

    def _growth(self, steps: int) -> int:
        """Blocks that the decoding sequences take in ``steps`` steps after the planned one."""
        size, phases = self.limits.block_size, self._phases
        cycles, rest = divmod(steps, size)
        first = (self.step + 1) % size
        end = first + rest
        blocks = sum(phases[first:end]) if end <= size else sum(phases[first:]) + sum(phases[: end - size])
        return cycles * self.decoding + blocks

    def _steps_within(self, free: int, steps: int) -> int:
        """The most steps, at most ``steps``, that need no more than ``free`` blocks after the planned one."""
        size, decoding = self.limits.block_size, self.decoding
        if -(-(steps - 1) // size) * decoding <= free:
            return steps
        # Any `size` steps on end take exactly one block a sequence.
        cycles, free = divmod(free, decoding)
        more = cycles * size
        while more < steps - 1:
            free -= self._phases[(self.step + 1 + more) % size]
            if free < 0:
                break
            more += 1
        return min(more, steps - 1) + 1

    def _progress(
        self, sequence: Sequence, tokens: int, first_token: list[Sequence], finished: list[Sequence]
    ) -> None:
        sequence.computed += tokens
        if sequence.computed < sequence.prompt_tokens + sequence.generated:
            return
        self._prefilling.remove(sequence)
        sequence.generated += 1
        if sequence.generated == 1:
            first_token.append(sequence)
        if sequence.generated == sequence.output_tokens:
            finished.append(sequence)
            return
        step, computed = self.step, sequence.computed
        sequence.base = sequence.generated - step
        sequence.last_step = last_step = sequence.output_tokens - 1 - sequence.base
        self.decoding += 1
        self.context += computed
        self._phases[(step - computed) % self.limits.block_size] += 1
        if last_step in self._calendar:
            self._calendar[last_step].append(sequence)
        else:
            self._calendar[last_step] = [sequence]
            heappush(self._last_steps, last_step)

    def _leave_decoding(self, sequence: Sequence) -> None:
        step = self.step
        sequence.generated = step + sequence.base
        sequence.computed = computed = sequence.prompt_tokens + sequence.generated - 1
        sequence.blocks = -(-computed // self.limits.block_size)
        sequence.last_step = -1
        self.decoding -= 1
        self.context -= computed
        self._phases[(step - computed) % self.limits.block_size] -= 1

    def _free(self, sequence: Sequence, tokens: int, finished: bool) -> None:
        """Give back the blocks that hold ``tokens`` tokens."""
        full, rest = divmod(tokens, self.limits.block_size)
        unnamed = 1 if rest else 0
        if not self.limits.enable_prefix_caching:
            self.pool.release(0, full + unnamed)
        elif sequence.holding is None and finished:
            self.pool.release(full, unnamed)
        else:
            if sequence.holding is None:
                sequence.holding = Holding()
            self.pool.forget(sequence.holding, full, unnamed, finished)
