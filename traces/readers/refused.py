"""Files that look like traces and are none, each with the sentence that says why."""

from __future__ import annotations

from traces.readers.source import Source


def reason(source: Source) -> str | None:
    """Why this file cannot be a trace; None if nothing speaks against it."""
    if source.data.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer and not the file it points to; fetch that with git lfs pull"
    header = set(source.header)
    if {"prefix_len", "input_len", "output_len"} <= header:
        return (
            "holds sessions whose rounds each wait for the one before (a closed loop): only the first of a "
            "session has an arrival, and a trace needs one for every request"
        )
    if {"prompt_time", "token_time"} <= header:
        return "is a table of measured latencies, not of requests; a latency model reads it"
    first = source.first_object
    if "timing_events" in first:
        return "is a TraceLab session log; export its rounds with an arrival each, and give that table"
    return None
