"""LLMServingSim's workloads and recorded runs: JSON lines with ``input_toks`` and ``output_toks``.

Workloads have ``arrival_time_ns``, runs of a real server ``arrival_time`` in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.readers.columns import map_columns
from traces.readers.draft import Draft
from traces.readers.jsonl import read_objects
from traces.readers.source import Source

TOKEN_IDS = ("input_tok_ids", "output_tok_ids")


def matches(source: Source) -> bool:
    """The first object is a request, or a session of them."""
    first = source.first_object
    return {"input_toks", "output_toks"} <= first.keys() or "sub_requests" in first


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read the requests; token ids are left out.

    Raises:
        InputError: no line is a request, or a column that is needed is in none of them.
    """
    frame, faults, line_of = read_objects(source, _row)
    known = {"arrival_ns": "arrival_time_ns", "arrival_s": "arrival_time"}
    known = {target: column for target, column in known.items() if column in frame.columns}
    mapped = map_columns(frame.columns, known | dict(columns or {}), source.name)
    return Draft(source.name, frame, mapped, line_of, faults=faults)


def _row(entry: dict[str, Any]) -> dict[str, Any] | str:
    if "sub_requests" in entry:
        return "is a session whose calls each wait for the one before; a trace needs an arrival for every request"
    return {key: value for key, value in entry.items() if key not in TOKEN_IDS}
