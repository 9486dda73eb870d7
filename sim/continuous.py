"""Continuous batching: vLLM V1's scheduler with a clock.

`sim.engine` decides what a step does and `sim.server` when; here are the settings of both.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from sim.kv import Memory
from sim.latency import Latency
from sim.lockstep import Lockstep
from sim.plan import Limits
from sim.policies.arrival import FCFS
from sim.prefixes import chains
from sim.replica import Replica, Run
from sim.server import Server
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
        return Server(self.limits(run), leap, self.async_scheduling, replica, run).process()

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
