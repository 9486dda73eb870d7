"""RAGPulse: JSON lines with ``timestamp`` (s, as text), lengths, sessions, and ids of five parts of a prompt.

The ids name passages of any length, not blocks of a prompt's beginning, so they are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.readers.columns import map_columns
from traces.readers.draft import Draft
from traces.readers.jsonl import read_objects
from traces.readers.source import Source


def matches(source: Source) -> bool:
    """The first object's ids are an object of lists."""
    first = source.first_object
    return "input_length" in first and isinstance(first.get("hash_ids"), dict)


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read times, lengths and sessions.

    Raises:
        InputError: no line is an object, or a column that is needed is in none of them.
    """
    frame, faults, line_of = read_objects(source, _row)
    known = {"arrival_s": "timestamp"} if "timestamp" in frame.columns else {}
    mapped = map_columns(frame.columns, known | dict(columns or {}), source.name)
    metadata = {"left_out": ["hash_ids"]}
    return Draft(source.name, frame, mapped, line_of, faults=faults, metadata=metadata)


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "hash_ids"}
