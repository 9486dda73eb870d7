"""vLLM V1's step rule as a state machine that knows no clock: `Engine.plan` decides, `Engine.apply` acts.

The same code simulates (`sim.server` gives each step a duration) and replays recorded decisions
(`sim.conformance` gives it one virtual second). The rule is `plan`: serve the running list, preempt
where blocks run out, then admit. Where nothing is short the running list needs no walk
(`_serve_running`, over the sums of `sim.decoding`); where something is, `_walk` takes it in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from operator import attrgetter

from sim.decoding import Decoding, Sequence
from sim.kv import BlockPool, Hold, Holding
from sim.parking import Parking
from sim.plan import Limits, Plan, feeds_last

UNLIMITED = 1 << 60

URGENCY = attrgetter("urgency")


class Engine:
    """The scheduler of one replica.

    Attributes:
        step: the number of the step that `plan` decides next.
        running: sequences by number, in the order of the running list.
        decoding: those of them that decode, one token in each step.
        prefilling: those that do not, in the order of the running list.
        queue, heap: who waits, in order of arrival or of priority; one of them is always empty.
        peak_blocks: most KV blocks in use at once. peak_bound: the tokens that would fill them.
        room_tokens: the tokens that fill all blocks. longest: most tokens of a prompt and its output
            that can ever be served; what is longer is to be rejected.
        easy_tokens: the longest prompt that the limits let into a step beside anything (0: none).
        rank: gives a preempted sequence a new priority; None: it keeps the one it has.
        sharing: how many of those who run may share blocks with others.
        coasted: steps were taken without `plan`, and free blocks have to be counted again.
    """

    def __init__(self, limits: Limits):
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks)
        self.room_tokens = self.pool.usable * limits.block_size
        self.step = 0
        self.running: dict[int, Sequence] = {}
        self.decoding = Decoding(limits.block_size)
        self.peak_blocks = self.peak_bound = 0
        self.longest = min(limits.max_model_len, self.room_tokens)
        chunked = limits.enable_chunked_prefill and not limits.long_prefill_token_threshold
        self.easy_tokens = UNLIMITED if chunked else 0
        self.coasted = False
        self.sharing = 0
        self.queue: deque[Sequence] = deque()
        self.heap: list[tuple[float, int, Sequence]] = []
        self.prefilling: list[Sequence] = []
        self._admissions = 0
        self.parking = Parking(self) if limits.rank_after_prefill else None
        self._plan = Plan()
        self.rank: Callable[[Sequence], float] | None = None

    @property
    def waiting(self) -> int:
        """How many sequences wait."""
        parked = len(self.parking.heap) if self.parking is not None else 0
        return len(self.heap) + len(self.queue) + parked

    @property
    def used_blocks(self) -> int:
        """KV blocks in use."""
        return self.pool.usable - self.pool.free

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait that is not longer than ``longest``."""
        sequence.since = self.step
        if self.limits.priority:
            sequence.urgency = (sequence.priority, sequence.number)
            heappush(self.heap, (*sequence.urgency, sequence))
        else:
            self.queue.append(sequence)

    def displace(self, sequence: Sequence) -> None:
        """Take a running sequence's place before the next step is planned, for one that is more urgent."""
        self._preempt(sequence, 0, self._plan.displaced)

    def generated(self, sequence: Sequence) -> int:
        """Tokens that a sequence has got."""
        return sequence.generated if sequence.last_step < 0 else self.step + sequence.base

    def room_needed(self, sequence: Sequence) -> tuple[int, int]:
        """Free blocks without which a waiting sequence is not admitted, and tokens to be computed for it."""
        total, size = sequence.prompt_tokens + sequence.generated, self.limits.block_size
        hits = idle = 0
        if sequence.holding is not None:
            _, hits, idle = self.pool.find(sequence.holding, (total - 1) // size)
        return -(-total // size) - hits + idle, total - hits * size

    def cached_tokens(self, sequence: Sequence) -> int:
        """Prompt tokens of a waiting sequence that the prefix cache holds."""
        if sequence.holding is None:
            return 0
        size = self.limits.block_size
        total = sequence.prompt_tokens + sequence.generated
        return min(self.pool.find(sequence.holding, (total - 1) // size)[1] * size, sequence.prompt_tokens)

    def plan(self) -> Plan | None:
        """Decide who runs in this step with how many tokens; None if nobody is there at all."""
        if self.coasted:
            used = self.blocks(self.step)
            self.note_peak(used)
            self.pool.free = self.pool.usable - used
            self.coasted = False
        plan, decoding, waiting = self._plan, self.decoding, self.heap or self.queue
        if self.parking is not None:
            self.parking.choose()
        if not (self.running or waiting):
            return None
        plan.chunks, plan.preempted, plan.admitted = [], [], []
        plan.decode_requests = decoding.count
        plan.context_tokens = decoding.context + decoding.count
        plan.prefill_tokens, plan.steps, plan.prefill_steps = 0, 1, 1
        budget = self._serve_running()
        if waiting and not plan.preempted:
            self._admit(budget)
        if not (plan.chunks or plan.preempted):
            more = decoding.calendar[0][0] - self.step
            if more:
                plan.steps = 1 + decoding.steps_within(self.pool.free, self.step + 1, more)
            plan.full = self.parking is None and (
                len(self.running) >= self.limits.max_num_seqs or bool(self.queue)
            )
        elif plan.prefill_tokens + decoding.count >= self.limits.max_num_batched_tokens:
            plan.prefill_steps = self._equal_prefill_steps()
        return plan

    def apply(self, steps: int = 1) -> tuple[list[Sequence], list[Sequence]]:
        """Run ``steps`` steps of the plan.

        Returns: the sequences that got their first token, and those that finished, at the end of
            the last of these steps.
        """
        pool, decoding, running = self.pool, self.decoding, self.running
        if steps > 1:
            pool.allocate(decoding.growth(self.step + 1, steps - 1))
            if self._plan.chunks:
                sequence, tokens = self._plan.chunks[0]
                tokens *= steps
                blocks = -(-(sequence.computed + tokens) // self.limits.block_size) - sequence.blocks
                self._hand_out(sequence, tokens, blocks)
                self._plan.chunks[0] = sequence, tokens
        self.note_peak(pool.usable - pool.free)
        decoding.context += steps * decoding.count
        self.step = step = self.step + steps
        first_token: list[Sequence] = []
        finished = decoding.ended(step - 1)
        for sequence, tokens in self._plan.chunks:
            sequence.computed += tokens
            if sequence.computed == sequence.prompt_tokens + sequence.generated:
                self.prefilling.remove(sequence)
                sequence.generated += 1
                if sequence.generated == 1:
                    first_token.append(sequence)
                if sequence.generated < sequence.output_tokens:
                    if self.parking is None or sequence.ranked:
                        decoding.join(sequence, step)
                    else:
                        self.parking.enter(sequence)
                else:
                    finished.append(sequence)
        if len(finished) > 1:  # vLLM frees in the order of the running list
            finished.sort(key=lambda sequence: sequence.order)
        for sequence in finished:
            del running[sequence.number]
            self._free(sequence, sequence.computed, finished=True)
        return first_token, finished

    def decoders(self) -> Iterator[Sequence]:
        """The sequences that get one token in the planned step and are not in its chunks."""
        return (sequence for sequence in self.running.values() if sequence.last_step >= 0)

    def blocks(self, step: int) -> int:
        """Blocks in use at the start of ``step``, counted anew (nothing being cached)."""
        return self.decoding.blocks(step) + sum([sequence.blocks for sequence in self.prefilling])

    def note_peak(self, blocks: int) -> None:
        """Count the blocks in use at the end of a step."""
        if blocks > self.peak_blocks:
            self.peak_blocks = blocks
            self.peak_bound = blocks * self.limits.block_size

    # ---- the running list

    def _serve_running(self) -> int:
        """Step 1 of the rule where order does not matter: everybody gets what they need.

        Returns: the budget left for admissions.
        """
        pool, decoding = self.pool, self.decoding
        budget = self.limits.max_num_batched_tokens - decoding.count
        decode_blocks = blocks = decoding.phases[self.step % self.limits.block_size]
        grants = []
        threshold = self._threshold() if self.prefilling else UNLIMITED
        for sequence in self.prefilling:
            need = min(sequence.prompt_tokens + sequence.generated - sequence.computed, threshold)
            if need > budget:
                if sequence is not next(reversed(self.running.values())):
                    return self._walk()
                need = budget
            more = -(-(sequence.computed + need) // self.limits.block_size) - sequence.blocks
            grants.append((sequence, need, more))
            budget -= need
            blocks += more
        if blocks > pool.free:
            return self._walk() if self.prefilling else self._make_room()
        if decode_blocks:
            pool.allocate(decode_blocks)
        for sequence, need, more in grants:
            self._grant(sequence, need, more)
        return budget

    def _make_room(self) -> int:
        """Step 1 of the rule where all decode and blocks run out: those who need a block matter, in order.

        Returns: the budget left for admissions.
        """
        pool, running, decoding, plan = self.pool, self.running, self.decoding, self._plan
        phase = self.step % self.limits.block_size
        for sequence in [sequence for sequence in running.values() if sequence.phase == phase]:
            if sequence.number not in running:  # a victim of this step
                continue
            while not pool.free and sequence.number in running:
                victim = self._victim()
                # It had its token in this step if its turn had come.
                self._preempt(victim, 1 if victim.order < sequence.order else 0, plan.preempted)
            if sequence.number not in running:
                for late in [late for late in running.values() if late.order > sequence.order]:
                    self._stall(late)
                break
            pool.allocate(1)
        plan.decode_requests = decoding.count
        plan.context_tokens = decoding.context + decoding.count
        return self.limits.max_num_batched_tokens - decoding.count

    def _walk(self) -> int:
        """Step 1 of the rule: serve the running list in order, preempting where blocks run out.

        Returns: the budget left for admissions.
        """
        size = self.limits.block_size
        budget = self.limits.max_num_batched_tokens
        threshold = self._threshold()
        given: dict[int, int] = {}
        computed = self.step - 1  # of a decoding sequence, besides its prompt and its base
        for sequence in list(self.running.values()):
            if budget <= 0:
                break
            if sequence.last_step >= 0:
                need = 1
                blocks = 0 if (sequence.prompt_tokens + sequence.base + computed) % size else 1
            elif sequence.number not in self.running:  # a victim of this step
                continue
            else:
                need = sequence.prompt_tokens + sequence.generated - sequence.computed
                need = min(need, threshold, budget)
                blocks = -(-(sequence.computed + need) // size) - sequence.blocks
            if blocks:
                while blocks > self.pool.free:
                    victim = self._victim()
                    tokens = given.pop(victim.number, 0)
                    budget += tokens
                    self._preempt(victim, tokens, self._plan.preempted)
                    if victim is sequence:
                        break
                if sequence.number not in self.running:
                    break
            given[sequence.number] = need
            budget -= need
            if sequence.last_step < 0:
                self._grant(sequence, need, blocks)
            elif blocks:
                self.pool.allocate(blocks)
        if len(given) < len(self.running):
            for sequence in list(self.decoders()):
                if sequence.number not in given:
                    self._stall(sequence)
        plan, decoding = self._plan, self.decoding
        plan.decode_requests = decoding.count
        plan.context_tokens = decoding.context + decoding.count
        chunks, plan.chunks, plan.prefill_tokens = plan.chunks, [], 0
        for sequence, tokens in chunks:
            if sequence.number in given:
                self._price(sequence, tokens)
        return budget

    def _equal_prefill_steps(self) -> int:
        """Steps in a row in which one chunk takes all that is left of the budget, and does not end the prefill."""
        limits, decoding, plan = self.limits, self.decoding, self._plan
        if len(plan.chunks) > 1 or len(self.prefilling) > 1 or plan.preempted:
            return 1
        if limits.long_prefill_token_threshold:  # a newcomer may bring it into force
            return 1
        sequence, tokens = plan.chunks[0]
        need = sequence.prompt_tokens + sequence.generated - sequence.computed
        steps = (need - 1) // tokens
        if decoding.count:
            steps = min(steps, decoding.calendar[0][0] - self.step + 1)
        if steps < 2:
            return 1
        blocks = -(-(sequence.computed + steps * tokens) // limits.block_size) - sequence.blocks
        return steps if blocks + decoding.growth(self.step + 1, steps - 1) <= self.pool.free else 1

    def _grant(self, sequence: Sequence, tokens: int, blocks: int) -> None:
        """Hand out the slots of a chunk."""
        self._hand_out(sequence, tokens, blocks)
        self._price(sequence, tokens)

    def _hand_out(self, sequence: Sequence, tokens: int, blocks: int) -> None:
        """Give blocks to a sequence in its prefill; full ones are cached at once under shared names."""
        if blocks:
            self.pool.allocate(blocks)
            sequence.blocks += blocks
        holding = sequence.holding
        if holding is not None and holding.named < holding.shared_blocks:
            full = (sequence.computed + tokens) // self.limits.block_size
            self.pool.name(holding, min(full, holding.shared_blocks))

    def _price(self, sequence: Sequence, tokens: int) -> None:
        """Note a chunk; one that only feeds the last generated token is a decode."""
        plan = self._plan
        plan.chunks.append((sequence, tokens))
        if feeds_last(sequence, tokens):
            plan.decode_requests += 1
            plan.context_tokens += sequence.computed + 1
        else:
            plan.prefill_tokens += tokens

    def start(self, sequence: Sequence) -> None:
        """Put a sequence at the end of the running list."""
        self._admissions += 1
        sequence.order = self._admissions
        self.running[sequence.number] = sequence

    def _victim(self) -> Sequence:
        if self.parking is not None:
            return self.parking.victim()
        if self.limits.priority:
            return max(self.running.values(), key=URGENCY)
        return next(reversed(self.running.values()))

    def _preempt(self, sequence: Sequence, tokens: int, noted: list[Sequence]) -> None:
        """Take a sequence's place and blocks; ``tokens`` were handed out to it in this very step."""
        if sequence.number not in self.running:
            assert self.parking is not None
            self.parking.leave(sequence)
        else:
            del self.running[sequence.number]
            if sequence.last_step >= 0:
                self.decoding.leave(sequence, self.step)
            else:
                self.prefilling.remove(sequence)
        self._free(sequence, sequence.computed + tokens, finished=False)
        sequence.lost_tokens += sequence.computed
        sequence.computed = sequence.blocks = 0
        sequence.ranked = False
        sequence.preemptions += 1
        noted.append(sequence)
        if self.limits.priority:
            sequence.since = self.step
            if self.rank is not None:
                sequence.priority = self.rank(sequence)
            self.add(sequence)
        else:
            self.queue.appendleft(sequence)

    def _stall(self, sequence: Sequence) -> None:
        """Take a decoding sequence that the budget left out of this step out of the sums."""
        self.decoding.leave(sequence, self.step)
        self.prefilling.append(sequence)
        self.prefilling.sort(key=lambda sequence: sequence.order)

    # ---- the waiting queue

    def _admit(self, budget: int) -> None:
        """Step 3 of the rule: admit in order until somebody does not fit; nobody overtakes."""
        limits, pool, running, size = self.limits, self.pool, self.running, self.limits.block_size
        heap, queue = self.heap, self.queue
        threshold = self._threshold()
        # Whoever waits for its estimate takes no place among those who decode, but leaves them their next block.
        slots, kept = (limits.max_num_seqs, 0) if self.parking is None else (UNLIMITED, self.decoding.count)
        while budget > 0 and len(running) < slots and (heap or queue):
            sequence = heap[0][2] if heap else queue[0]
            total = sequence.prompt_tokens + sequence.generated
            runs: list[Hold] = []
            hits = idle = 0
            if sequence.holding is not None:
                # The last token is always computed: its logits are what the step is for.
                runs, hits, idle = pool.find(sequence.holding, (total - 1) // size)
            need = min(total - hits * size, threshold)
            if need > budget:
                if not limits.enable_chunked_prefill:
                    return
                need = budget
            if -(-total // size) - hits + idle + kept > pool.free:
                return
            if heap:
                heappop(heap)
            else:
                queue.popleft()
            if hits:
                self._reuse(sequence, runs, hits)
            if sequence.holding is not None and sequence.holding.chain:
                self.sharing += 1
            sequence.waited, sequence.since = self.step - sequence.since, self.step
            self._admissions += 1
            sequence.order = self._admissions
            running[sequence.number] = sequence
            self.prefilling.append(sequence)
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
            elif sequence.holding.chain:
                self.sharing -= 1
            self.pool.forget(sequence.holding, full, unnamed, finished)
