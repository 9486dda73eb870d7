"""A closed loop: so many users, each of whom sends the next request when the last one is answered.

As ``vllm bench serve --max-concurrency``: a request is sent at its arrival time, or later, when fewer than
so many are under way; its latencies count from then. Users take the requests in order of arrival, and
may think for a while in between.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from simpy.events import URGENT, Event

from sim.replica import INFINITY, Clock, Run


@dataclass(eq=False)
class ClosedLoop:
    """The users of one run.

    Attributes:
        users: most requests under way at once. think_s: seconds between an answer and the next request.
        replicas: how many servers they share.
        over: all requests have been sent.
    """

    users: int
    think_s: float
    replicas: int
    over: bool = False
    _free_s: list[float] = field(default_factory=list)
    _room: Event | None = None

    def left(self, requests: int, now_s: float) -> None:
        """So many requests have completed or were rejected: their users think, and send the next."""
        for _ in range(requests):
            heappush(self._free_s, now_s + self.think_s)
        if self._room is not None and not self._room.triggered:
            self._room.succeed()

    def process(
        self, clock: Clock, run: Run, order: list[int], send: Callable[[int], None]
    ) -> Generator[Event, None, None]:
        """Send the requests ``order``: the process that stands for all users."""
        self._free_s = [0.0] * self.users
        for number in order:
            if not self._free_s:
                run.next_dispatch_s = INFINITY
                self._room = clock.event()
                yield self._room
            send_s = max(heappop(self._free_s), run.ready_s[number])
            if send_s > clock.now:
                run.next_dispatch_s = send_s
                # Before any step that starts or ends at this instant.
                yield clock.at(send_s, URGENT)
            run.ready_s[number] = clock.now
            run.requests.arrival_s[number] = clock.now
            run.order.keys[number] = run.order.ask_now(number, clock.now)
            send(number)
        self.over = True
        run.next_dispatch_s = INFINITY
