"""Which waiting requests make up the next static batch. A form makes the queue of one replica."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np

from sim.policies import Order
from sim.replica import Run
from traces.errors import InputError


class Queue(Protocol):
    """The waiting requests of one replica, and the rule by which they leave as batches."""

    def add(self, numbers: list[int]) -> None:
        """These requests wait from now on."""
        ...

    def take(self, size: int, now_s: float) -> list[list[int]]:
        """Batches of at most ``size`` to run one after another; called when some request waits."""
        ...

    def available(self) -> int:
        """How many requests could go into the next batch; 0 if none waits."""
        ...


class Form(Protocol):
    """A way to form batches: a frozen dataclass. Write your own as ``file.py:Class``."""

    def __call__(self, run: Run) -> Queue:
        """An empty queue for one replica."""
        ...


class Waiting:
    """Requests in policy order: a heap of (key, number). It is itself the queue of `PolicyOrder`."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._heap: list[tuple[float, int]] = []

    def add(self, numbers: list[int]) -> None:
        keys = self._order.keys
        for number in numbers:
            heappush(self._heap, (keys[number], number))

    def available(self) -> int:
        return len(self._heap)

    def first(self, now_s: float) -> tuple[float, int]:
        """(key, number) of the first in order, asking a policy that moves with time anew."""
        if self._order.refresh is not None:
            self._heap = [(self._order.ask(number, now_s), number) for _, number in self._heap]
            heapify(self._heap)
        return self._heap[0]

    def pop(self, size: int, now_s: float) -> list[int]:
        """The first ``size`` in order, or all."""
        self.first(now_s)
        return [heappop(self._heap)[1] for _ in range(min(size, len(self._heap)))]

    def take(self, size: int, now_s: float) -> list[list[int]]:
        return [self.pop(size, now_s)]


@dataclass(frozen=True)
class PolicyOrder:
    """The first ``batch_size`` requests in policy order."""

    def __call__(self, run: Run) -> Queue:
        return Waiting(run.order)


@dataclass(frozen=True)
class Window:
    """Sort the window, then cut: length-aware batches without reordering the whole queue.

    The first ``batches * batch_size`` requests in policy order are sorted by expected output length
    and cut into batches, which run from the shortest to the longest; who comes meanwhile waits for
    the next window, so under FCFS nobody starves.

    Attributes:
        predictor: whose estimate sorts.
        batches: the window, in batches.

    Raises:
        InputError: ``batches`` is less than 1.
    """

    predictor: str
    batches: int = 4

    def __post_init__(self) -> None:
        if self.batches < 1:
            raise InputError(f"batch form window: batches = {self.batches} must be at least 1")

    def __call__(self, run: Run) -> Queue:
        return _WindowQueue(run, self.predictor, self.batches)


class _WindowQueue(Waiting):
    def __init__(self, run: Run, predictor: str, batches: int) -> None:
        super().__init__(run.order)
        self._length = run.requests.estimate(predictor).mean
        self._batches = batches

    def take(self, size: int, now_s: float) -> list[list[int]]:
        window = self.pop(self._batches * size, now_s)
        window.sort(key=lambda number: (self._length[number], number))
        return [window[i : i + size] for i in range(0, len(window), size)]


@dataclass(frozen=True)
class Bins:
    """Multi-bin batching (arXiv 2412.04504): only requests of similar expected length share a batch.

    The first request in policy order decides the bin, and the batch is filled from that bin in
    policy order. The bins hold equal shares of the predictor's estimates over the trace. The paper
    waits until a bin has a full batch; here that is what ``batch_timeout_s`` is for.

    Attributes:
        predictor: whose estimate bins.
        bins: how many.

    Raises:
        InputError: ``bins`` is less than 1.
    """

    predictor: str
    bins: int = 4

    def __post_init__(self) -> None:
        if self.bins < 1:
            raise InputError(f"batch form bins: bins = {self.bins} must be at least 1")

    def __call__(self, run: Run) -> Queue:
        return _BinQueue(run, self.predictor, self.bins)


class _BinQueue:
    def __init__(self, run: Run, predictor: str, bins: int) -> None:
        length = run.requests.estimate(predictor).mean
        inner_edges = np.quantile(length, np.arange(1, bins) / bins)
        self._bin: list[int] = np.searchsorted(inner_edges, length, side="right").tolist()
        self._bins = [Waiting(run.order) for _ in range(bins)]
        self._now_s = 0.0

    def add(self, numbers: list[int]) -> None:
        for number in numbers:
            self._bins[self._bin[number]].add([number])

    def available(self) -> int:
        return self._first_bin().available()

    def take(self, size: int, now_s: float) -> list[list[int]]:
        self._now_s = now_s
        return [self._first_bin().pop(size, now_s)]

    def _first_bin(self) -> Waiting:
        occupied = [waiting for waiting in self._bins if waiting.available()]
        return min(occupied, key=lambda waiting: waiting.first(self._now_s), default=self._bins[0])


FORMS: dict[str, type] = {"policy": PolicyOrder, "window": Window, "bins": Bins}
