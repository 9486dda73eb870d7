"""Merging, cutting and scaling traces move what they should and nothing else; closed loops close.

Truth: cases worked by hand, laws that undo each other, and a plain event loop of users at a queue.
"""

from __future__ import annotations

import heapq
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import Affine, StaticBatching, simulate
from traces import InputError, Trace, read_trace, write_mooncake
from traces.arrivals import Arrivals
from traces.closed_loop import close
from traces.combine import merge, scale, slice_trace
from traces.export import write_as
from traces.synthetic import parse_spec, synthesise


def small(**columns: object) -> Trace:
    base = {
        "request_id": np.arange(3),
        "arrival_s": np.array([0.0, 1.0, 4.0]),
        "prompt_tokens": np.array([10, 20, 30]),
        "output_tokens": np.array([1, 2, 3]),
    }
    return Trace(**(base | columns))  # type: ignore[arg-type]


def test_merge_by_hand() -> None:
    one = small(
        session_id=np.array([5, -1, 5]),
        hash_ids=[np.array([7, 8]), np.array([7]), np.array([], np.int64)],
        metadata={"hash_block_tokens": 16},
    )
    two = small(
        arrival_s=np.array([0.0, 0.5, 9.0]), session_id=np.array([5, 5, -1]), extra={"k": np.array([1, 2, 3])}
    )
    both = merge([one, two], ["a", "b"])
    assert both.arrival_s.tolist() == [0.0, 0.0, 0.5, 1.0, 4.0, 9.0]
    assert both.request_id.tolist() == ["a/0", "b/0", "b/1", "a/1", "a/2", "b/2"]
    assert both.extra["source"].tolist() == ["a", "b", "b", "a", "a", "b"]
    assert both.extra["k"].tolist() == [None, 1, 2, None, None, 3]
    assert both.session_id is not None
    # Session 5 of one file is not session 5 of the other; no session stays none.
    assert both.session_id.tolist() == [0, 2, 2, -1, 0, -1]
    assert both.hash_ids is not None
    assert [row.tolist() for row in both.hash_ids] == [[0, 1], [], [], [0], [], []]
    assert both.metadata["hash_block_tokens"] == 16


def test_merge_refuses_what_cannot_be_one() -> None:
    ids = [np.array([1])] * 3
    one, two = (small(hash_ids=ids, metadata={"hash_block_tokens": n}) for n in (16, 512))
    with pytest.raises(InputError, match="cannot be merged"):
        merge([one, two], ["a", "b"])
    with pytest.raises(InputError, match="different names"):
        merge([one, one], ["a", "a"])


def test_a_trace_cut_in_two_and_merged_is_itself() -> None:
    trace = synthesise(parse_spec("arrivals=poisson,rate=3 requests=200 seed=3"))
    middle = float(trace.arrival_s[90])
    parts = [slice_trace(trace, 0, middle), slice_trace(trace, middle)]
    assert [len(part) for part in parts] == [90, 110]
    assert parts[1].arrival_s[0] == 0
    parts[1] = parts[1].replace(arrival_s=parts[1].arrival_s + middle)
    again = merge(parts, ["a", "b"])
    assert again.request_id.tolist() == trace.request_id.tolist()
    np.testing.assert_allclose(again.arrival_s, trace.arrival_s, rtol=1e-12)
    assert again.output_tokens.tolist() == trace.output_tokens.tolist()


def test_slice_and_scale_by_hand() -> None:
    trace = small()
    assert slice_trace(trace, 0.5, 4.0).request_id.tolist() == [1]
    assert slice_trace(trace, first=2).request_id.tolist() == [0, 1]
    assert scale(trace, time=0.5).arrival_s.tolist() == [0.0, 0.5, 2.0]
    # Three requests over 4 s are 0.5 per second.
    assert scale(trace, rate=2).arrival_s.tolist() == [0.0, 0.25, 1.0]
    assert scale(trace, prompt=0.01, output=2).prompt_tokens.tolist() == [1, 1, 1]
    assert scale(trace, output=2).output_tokens.tolist() == [2, 4, 6]
    for wrong, message in (
        (lambda: slice_trace(trace, 5, 6), "no request arrives"),
        (lambda: slice_trace(trace, 2, 1), "is no interval"),
        (lambda: slice_trace(trace, first=0), "at least 1"),
        (lambda: scale(trace, rate=1, time=1), "give one"),
        (lambda: scale(trace, time=0), "above 0"),
        (lambda: scale(small(arrival_s=np.zeros(3)), rate=1), "all arrive at once"),
        (lambda: scale(small(prefix_tokens=np.zeros(3)), prompt=2), "cannot be scaled"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.csv.gz", "t.jsonl", "t.jsonl.gz"])
def test_every_format_reads_back(tmp_path: Path, name: str) -> None:
    trace = small(
        request_id=np.array(["a", "b", "c"], dtype=object),
        arrival_s=np.array([0.0, 0.1 + 0.2, 1e7 / 3]),
        hash_ids=[np.array([2**62]), np.array([1, 2]), np.array([], np.int64)],
        prompt=['x, "y"\nz', "é\u2028", "b"],
        priority=np.array([0.1, -1.0, 2.0]),
        metadata={"hash_block_tokens": 16},
    )
    write_as(trace, tmp_path / name)
    again = read_trace(tmp_path / name)
    assert list(again.columns()) == list(trace.columns())
    for key, column in trace.columns().items():
        for left, right in zip(column.tolist(), again.columns()[key].tolist(), strict=True):
            assert np.array_equal(left, right), key
    before = (tmp_path / name).read_bytes()
    write_as(again, tmp_path / name)
    assert (tmp_path / name).read_bytes() == before or name == "t.parquet"


def test_endings_that_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name a format"):
        write_as(small(), tmp_path / "t.txt")
    assert write_as(small(), tmp_path / "t.txt", "mooncake") == "mooncake"
    write_mooncake(small(), tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_bytes() == (tmp_path / "t.txt").read_bytes()


def queue(trace: Trace) -> np.ndarray:
    """A first-come first-served server that takes output_tokens seconds a request."""
    free, done = 0.0, []
    for arrival, service in zip(trace.arrival_s.tolist(), trace.output_tokens.tolist(), strict=True):
        free = max(free, arrival) + service
        done.append(free)
    return np.array(done)


def users_at_a_queue(trace: Trace) -> list[tuple[float, int]]:
    """(arrival, request) of the same users by a plain event loop: ties go to the request that is first."""
    turns: dict[int, list[int]] = {}
    for row, user in enumerate(trace.extra["user"].tolist()):
        turns.setdefault(user, []).append(row)
    events = [(0.0, rows.pop(0)) for rows in turns.values()]
    heapq.heapify(events)
    free, seen = 0.0, []
    while events:
        arrival, row = heapq.heappop(events)
        seen.append((arrival, row))
        free = max(free, arrival) + int(trace.output_tokens[row])
        rows = turns[int(trace.extra["user"][row])]
        if rows:
            heapq.heappush(events, (free + float(trace.extra["think_s"][rows[0]]), rows.pop(0)))
    return sorted(seen)


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 40), st.sampled_from([0, 3, 50]), st.integers(0, 99))
def test_closed_loop_is_that_of_an_event_loop(users: int, requests: int, think: float, seed: int) -> None:
    line = f"users={users} think={think} requests={requests} seed={seed} output=lognormal,median=5,sigma=1"
    trace = synthesise(parse_spec(line))
    closed = close(trace, queue)
    assert list(zip(closed.arrival_s.tolist(), closed.request_id.tolist(), strict=True)) == users_at_a_queue(
        trace
    )


def test_closed_loop_at_the_simulated_server() -> None:
    trace = synthesise(parse_spec("users=6 think=2 requests=60 seed=1"))

    def serve(t: Trace) -> np.ndarray:
        result = simulate(t, "fcfs", StaticBatching(batch_size=4), Affine(0.01, 1e-5, 1e-4, 1e-7))
        return result.records["completion_s"].to_numpy()

    closed = close(trace, serve)
    done = serve(closed)
    for user in range(6):
        own = closed.extra["user"] == user
        gaps = closed.arrival_s[own][1:] - done[own][:-1]
        np.testing.assert_allclose(gaps, closed.extra["think_s"][own][1:], rtol=1e-9)
    waiting = [(closed.arrival_s <= now).sum() - (done < now).sum() for now in closed.arrival_s]
    assert max(waiting) <= 6
    assert closed.metadata["closed_loop_runs"] > 1
    # With its arrivals found it is an ordinary trace; before, nobody can replay it by mistake.
    rng = np.random.default_rng(0)
    assert Arrivals().apply(closed, rng).arrival_s.tolist() == closed.arrival_s.tolist()
    with pytest.raises(InputError, match="the trace is a closed loop"):
        Arrivals().apply(trace, rng)


def test_closed_loops_that_cannot_be() -> None:
    with pytest.raises(InputError, match="columns user and think_s"):
        close(small(), queue)
    trace = synthesise(parse_spec("users=2 requests=4"))
    with pytest.raises(InputError, match="never completes"):
        close(trace, lambda t: np.full(len(t), np.nan))
    with pytest.raises(InputError, match="did not settle in 3 runs"):
        close(trace, lambda t: np.random.default_rng().random(len(t)), most_runs=3)
