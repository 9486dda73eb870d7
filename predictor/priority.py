"""An order of requests as vLLM takes it: an integer `priority` for each, and files that carry it.

vLLM with `--scheduling-policy priority` serves the smallest (priority, arrival) first, as our engine does. The
field is an extra one of its chat completion requests, a signed 64-bit integer, and `vllm run-batch` reads such
requests from JSON lines in the form of OpenAI's batch files.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from predictor.rows import prompts_of
from traces import Estimates, Trace
from traces.errors import InputError

# A thousandth of a token: too fine to tie what a simulation tells apart, and far from the ends of 64 bits.
STEPS_PER_TOKEN = 1000
LARGEST = 2**63 - 1
CHAT_URL = "/v1/chat/completions"

Scale = Literal["tokens", "rank"]


def priorities(values: NDArray[np.float64], scale: Scale = "tokens") -> NDArray[np.int64]:
    """(n,) integers that order requests as (n,) `values` do, smallest first.

    `tokens`: each value in thousandths, rounded half to even, so files made at different times can be mixed;
    values closer than that may tie. `rank`: 0, 1, ... with equal values alike, for scores without a unit; it
    orders these requests only. Ties are vLLM's to break: the earlier arrival first.
    Raises InputError for a value that does not fit into 64 bits.
    """
    if scale == "rank":
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    steps = np.rint(values * STEPS_PER_TOKEN)
    # The largest float below 2**63 is 1024 short of it.
    if len(steps) and np.abs(steps).max() >= LARGEST:
        raise InputError(
            f"the value {values[np.abs(steps).argmax()]:g} is too large for a 64-bit priority; use --scale rank"
        )
    return steps.astype(np.int64)


def values_of(policy: str, estimates: dict[str, Estimates], trace: Trace | None) -> tuple[Any, Any]:
    """(request ids, values to order by) of a policy: a predictor's mean, `fcfs` (all 0) or `sjf` (true lengths).

    With a trace the rows are the trace's, in order of arrival. Raises InputError for a policy that is none of
    these, for `fcfs` and `sjf` without a trace, and for estimates of other requests.
    """
    if policy in estimates:
        one = estimates[policy]
        if trace is None:
            return one.request_id, one.mean
        return trace.request_id, one.mean[one.align(trace)]
    if policy not in ("fcfs", "sjf"):
        raise InputError(f"policy {policy!r} is none of {', '.join([*estimates, 'fcfs', 'sjf'])}")
    if trace is None:
        raise InputError(f"policy {policy!r} needs the trace; name it with --trace")
    values = trace.output_tokens if policy == "sjf" else np.zeros(len(trace))
    return trace.request_id, values.astype(np.float64)


def id_lines(request_id: Any, priority: NDArray[np.int64]) -> Iterator[str]:
    """One JSON line a request with its id and priority, for a client that has the prompts itself."""
    for request, number in zip(request_id.tolist(), priority.tolist(), strict=True):
        yield json.dumps({"custom_id": str(request), "priority": number})


def batch_lines(
    trace: Trace,
    priority: NDArray[np.int64],
    model: str,
    *,
    max_tokens: int | None = None,
    recorded_lengths: bool = False,
) -> Iterator[str]:
    """One JSON line a request of the trace, as `vllm run-batch` reads them: a chat of one user turn.

    `model`: the name under which the server has the model. `recorded_lengths`: answer with exactly the trace's
    output tokens, whatever the model would say, so that a run meets the lengths that a simulation met.
    Raises InputError for a trace without prompts.
    """
    texts = prompts_of(trace)
    rows = zip(trace.request_id.tolist(), texts, trace.output_tokens.tolist(), priority.tolist(), strict=True)
    for request, text, output_tokens, number in rows:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": text}]}
        if recorded_lengths:
            body |= {"max_tokens": output_tokens, "ignore_eos": True}
        elif max_tokens is not None:
            body["max_tokens"] = max_tokens
        body["priority"] = number
        yield json.dumps({"custom_id": str(request), "method": "POST", "url": CHAT_URL, "body": body})
