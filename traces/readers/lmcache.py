"""LMCache's agent runs: JSON lines with ``timestamp`` (microseconds), and ``input`` and ``output`` as text."""

from __future__ import annotations

from collections.abc import Mapping

from traces.readers.columns import map_columns
from traces.readers.draft import Draft
from traces.readers.jsonl import read_objects
from traces.readers.source import Source

COLUMNS = {"arrival_us": "timestamp", "prompt": "input", "response": "output"}


def matches(source: Source) -> bool:
    """The first object has both texts and a time."""
    first = source.first_object
    texts = isinstance(first.get("input"), str) and isinstance(first.get("output"), str)
    return texts and "timestamp" in first


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read the texts, whose lengths are for a tokenizer to count.

    Raises:
        InputError: no line is an object, or a column is in none of them.
    """
    frame, faults, line_of = read_objects(source)
    mapped = map_columns(frame.columns, COLUMNS | dict(columns or {}), source.name)
    return Draft(source.name, frame, mapped, line_of, faults=faults)
