"""What the step rule is given (`Limits`) and what it decides for the next step (`Plan`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from sim.decoding import Sequence


@dataclass(frozen=True)
class Limits:
    """vLLM's limits, under vLLM's names; with ``priority`` the queue goes by (priority, number).

    ``rank_after_prefill`` is no limit of vLLM: see `sim.parking`.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    priority: bool = False
    enable_prefix_caching: bool = False
    rank_after_prefill: bool = False


@dataclass(eq=False, slots=True)
class Plan:
    """What the next step does, and for how many steps on end nothing but lengths changes.

    Attributes:
        steps: the most steps that may be applied at once; more than 1 only if all requests decode.
        prefill_steps: the most that may be where one request in its prefill takes all of the budget that
            the decodes leave: nobody can be admitted beside it, so each step is like the first.
        prefill_tokens, decode_requests, context_tokens: what `Latency.step_time` prices.
        chunks: (sequence, tokens) of prefill, or of a decode outside the sums.
        preempted: sequences that lost their place for want of blocks, in that order.
        displaced: sequences that lost it to others before the step (`Engine.displace`).
        admitted: sequences taken from the waiting queue.
        full: nobody who comes could be admitted before the batch changes.
    """

    steps: int = 1
    prefill_steps: int = 1
    prefill_tokens: int = 0
    decode_requests: int = 0
    context_tokens: int = 0
    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    displaced: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    full: bool = False

    def prefill_chunks(self) -> list[tuple[Sequence, int]]:
        """Those of ``chunks`` that count as prefill."""
        return [(sequence, tokens) for sequence, tokens in self.chunks if not feeds_last(sequence, tokens)]


def feeds_last(sequence: Sequence, tokens: int) -> bool:
    """Whether a chunk only feeds the last generated token, which makes it a decode."""
    return tokens == 1 and sequence.generated > 0 and sequence.computed >= sequence.prompt_tokens
