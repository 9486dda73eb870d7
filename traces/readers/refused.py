"""Files that look like traces and are none, each with the sentence that says why."""

from __future__ import annotations

import csv
import re

from traces.readers.source import Source

LOOKED_AT_BYTES = 1 << 14


def reason(source: Source) -> str | None:
    """Why this file cannot be a trace; None if nothing speaks against it."""
    if source.head.startswith(b"version https://git-lfs"):
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
    if _is_prose(source):
        return (
            "is running text and no table of requests; a trace has a row (CSV) or an object (JSON lines) for "
            "every request, with the tokens of its prompt and its output"
        )
    return None


def _is_prose(source: Source) -> bool:
    """Whether it begins as no header does, or its lines split into ever other numbers of values, or into one."""
    text = source.head[:LOOKED_AT_BYTES]
    if text.lstrip().startswith((b"{", b"[")) or any(mark in text for mark in (b"\0", b"prompt_tokens")):
        return False
    lines = [line for line in text.decode("utf-8", "replace").split("\n") if line.strip()]
    if not lines:
        return False
    delimiter = max(",\t;", key=lines[0].count)
    # The name of a single column, against a heading, a rule or a tag.
    if delimiter not in lines[0] and not re.match(r"[\s\"']*\w", lines[0]):
        return True
    if re.search(rb"[0-9]", text):
        return False
    try:
        rows = list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return False
    widths = {len(row) for row in rows[:-1] or rows}
    return len(rows) > 1 and (len(widths) > 1 or widths == {1})
