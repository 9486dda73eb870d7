"""The decoding requests of a batch as sums and a calendar, so that a step costs nothing for each of them.

A request that decodes gets one token a step, needs a new block every ``block_size`` steps and ends in
a step that is known when it starts. So at the start of step s a decoding sequence has generated
``s + base`` tokens, of which all but the last, and its prompt, are computed; nothing is touched until
it leaves.
"""

from __future__ import annotations

from heapq import heappop, heappush

from sim.kv import Chain, Holding


class Sequence:
    """One request inside the engine.

    Attributes:
        number: rank by (arrival, id), which breaks every tie. priority: smaller goes first.
        urgency: (priority, number) when it was queued or ranked anew; who has the largest is preempted first.
        generated: tokens it has got. computed: tokens whose KV is there. Both stand still while it decodes.
        blocks: KV blocks it holds (not kept while it decodes: they follow from ``computed``).
        base: generated tokens at the start of step 0, were it to have decoded ever since.
        last_step: the step that yields its last token, or -1 while it does not decode.
        phase: it needs a block in the steps that equal this modulo the block size; -1: it does not decode.
        order: its place in the running list.
        hit_tokens: tokens found in the prefix cache at its first admission.
        lost_tokens: tokens that were computed and have to be computed again after preemption.
        ranked: it was chosen to decode after its prefill (`sim.parking`), and has not been preempted since.
        since: the step in which it began to wait or to run. waited: steps that it waited before it last ran.
    """

    generated = computed = blocks = base = order = preemptions = hit_tokens = lost_tokens = 0
    since = waited = 0
    last_step = phase = -1
    ranked = False
    urgency: tuple[float, int] = (0.0, 0)
    holding: Holding | None = None

    def __init__(
        self, number: int, prompt_tokens: int, output_tokens: int, priority: float = 0.0, chain: Chain = ()
    ):
        self.number = number
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        if chain:
            self.holding = Holding(chain)


class Decoding:
    """The sequences that decode.

    Attributes:
        count: how many. context: their computed tokens in total, at the start of the next step.
        phases: (block_size,) how many need a new block in the steps = phase modulo the block size.
        calendar: heap of (last step, number, sequence). Entries of those that left before are void, and
            may make the first one early, never late.
    """

    __slots__ = ("_size", "calendar", "context", "count", "phases")

    def __init__(self, block_size: int):
        self.count = self.context = 0
        self.phases = [0] * block_size
        self._size = block_size
        self.calendar: list[tuple[int, int, Sequence]] = []

    def join(self, sequence: Sequence, step: int) -> None:
        """Let a sequence decode from ``step`` on; all its tokens but the last are computed."""
        computed = sequence.computed
        sequence.base = base = sequence.generated - step
        sequence.last_step = last_step = sequence.output_tokens - 1 - base
        self.count += 1
        self.context += computed
        sequence.phase = phase = (step - computed) % self._size
        self.phases[phase] += 1
        heappush(self.calendar, (last_step, sequence.number, sequence))

    def leave(self, sequence: Sequence, step: int) -> None:
        """Take a sequence out at the start of ``step``, and write down how far it came."""
        sequence.generated = step + sequence.base
        sequence.computed = computed = sequence.prompt_tokens + sequence.generated - 1
        sequence.blocks = -(-computed // self._size)
        self.phases[sequence.phase] -= 1
        # Its entry in the calendar stays and is known by this to be void.
        sequence.last_step = sequence.phase = -1
        self.count -= 1
        self.context -= computed

    def ended(self, last: int) -> list[Sequence]:
        """Take out those whose last token came in step ``last``; nobody's came earlier."""
        calendar, ended = self.calendar, []
        while calendar and calendar[0][0] <= last:
            sequence = heappop(calendar)[2]
            if sequence.last_step == last:
                sequence.computed = computed = sequence.prompt_tokens + sequence.output_tokens - 1
                self.count -= 1
                self.context -= computed
                self.phases[sequence.phase] -= 1
                # It may be there twice: displaced, and admitted again in the same step.
                sequence.last_step = sequence.phase = -1
                ended.append(sequence)
        return ended

    def blocks(self, step: int) -> int:
        """Blocks that they hold at the start of ``step``."""
        size, start = self._size, step % self._size
        # Rounding up to whole blocks: a sequence of phase p lacks (p - step) mod size tokens.
        lack = sum([((i - start) % size) * many for i, many in enumerate(self.phases) if many])
        return (self.context + lack) // size

    def growth(self, first: int, steps: int) -> int:
        """New blocks that they need in ``steps`` steps from step ``first`` on."""
        size, phases = self._size, self.phases
        cycles, rest = divmod(steps, size)
        start = first % size
        end = start + rest
        blocks = sum(phases[start:end]) if end <= size else sum(phases[start:]) + sum(phases[: end - size])
        # Any `size` steps on end take exactly one block a sequence.
        return cycles * self.count + blocks if cycles else blocks

    def steps_within(self, free: int, first: int, steps: int) -> int:
        """How many steps from ``first`` on, at most ``steps``, need no more than ``free`` blocks."""
        size = self._size
        if (steps // size + 1) * self.count <= free:
            return steps
        cycles, free = divmod(free, self.count)
        fitting = cycles * size
        while fitting < steps:
            free -= self.phases[(first + fitting) % size]
            if free < 0:
                break
            fitting += 1
        return min(fitting, steps)
