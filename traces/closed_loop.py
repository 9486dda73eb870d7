"""Closed loops: users who send their next request only some time after the answer to the last.

A trace fixes its arrivals, and those of a closed loop follow from the server. So they are found by
serving the trace again and again: every request arrives ``think_s`` after its user's last one completed in
the run before. A server cannot see the future, so each run is right a little longer than the last,
and when a run changes no arrival any more, the arrivals and the completions are those of the closed loop.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traces.errors import InputError
from traces.schema import Trace

CLOSED = "closed loop"


def close(trace: Trace, serve: Callable[[Trace], ArrayLike], most_runs: int = 10_000) -> Trace:
    """The trace with the arrivals that its users have at this server.

    Args:
        trace: extra columns ``user`` and ``think_s`` (seconds before each request, ignored for a user's
            first), a user's requests in their order; as ``synthesise`` makes it for ``users=n``.
        serve: completion (n,) in seconds of each request of a trace, in the trace's order; the same
            request on the same arrivals must complete at the same time. With the simulator:
            ``lambda t: simulate(t, ...).records["completion_s"]``. A policy that draws at random by a
            request's place among the arrivals, not by its id, is not of this kind.
        most_runs: give up after so many.

    The requests come back in order of arrival, and ``metadata["closed_loop_runs"]`` says how often the
    trace was served.

    Raises:
        InputError: the trace has no such columns, a request never completes, or the arrivals do not settle.
    """
    if "user" not in trace.extra or "think_s" not in trace.extra:
        raise InputError("a closed loop needs the extra columns user and think_s; see estp trace synth")
    user = trace.extra["user"]
    order = np.argsort(user, kind="stable")
    first = np.r_[True, user[order][1:] != user[order][:-1]]
    think_s = np.asarray(trace.extra["think_s"], np.float64)
    arrival_s = np.zeros(len(trace))
    for run in range(1, most_runs + 1):
        by_time = np.argsort(arrival_s, kind="stable")
        served = trace.replace(arrival_s=np.zeros(len(trace))).take(by_time)
        served = served.replace(arrival_s=arrival_s[by_time])
        completion_s = np.empty(len(trace))
        completion_s[by_time] = np.asarray(serve(served), np.float64)
        if not np.isfinite(completion_s).all():
            row = int(np.argmax(~np.isfinite(completion_s)))
            raise InputError(
                f"request {trace.request_id[row]!r} of a closed loop never completes, so its user waits forever"
            )
        again = _next(order, first, completion_s, think_s)
        if (again == arrival_s).all():
            metadata = {key: value for key, value in trace.metadata.items() if key != "arrivals"}
            return served.replace(metadata={**metadata, "closed_loop_runs": run})
        arrival_s = again
    raise InputError(f"the arrivals of the closed loop did not settle in {most_runs} runs")


def _next(
    order: NDArray[np.int64],
    first: NDArray[np.bool_],
    completion_s: NDArray[np.float64],
    think_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Arrivals: 0 for a user's first request, else the completion of the one before and the think time."""
    before = np.r_[0.0, completion_s[order][:-1]]
    arrival_s = np.empty(len(order))
    arrival_s[order] = np.where(first, 0.0, before + think_s[order])
    return arrival_s
