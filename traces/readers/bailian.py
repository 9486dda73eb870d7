"""Qwen Bailian traces: Mooncake's keys, but ``timestamp`` in seconds and 16 tokens a hash id.

``chat_id`` numbers the requests, ``parent_chat_id`` names the turn before (-1: the first). A turn's
``input_length`` already holds its history. Known by ``parent_chat_id``: nothing else tells the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.readers.columns import map_columns
from traces.readers.draft import Draft
from traces.readers.jsonl import read_objects
from traces.readers.source import Source

BLOCK_TOKENS = 16


def matches(source: Source) -> bool:
    """The first object names a turn before it."""
    return {"timestamp", "input_length", "parent_chat_id"} <= source.first_object.keys()


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read the rows; ``timestamp`` is seconds, ``chat_id`` the request.

    Raises:
        InputError: no line is an object, or a column that is needed is in none of them.
    """
    frame, faults, line_of = read_objects(source)
    known = {"arrival_s": "timestamp", "request_id": "chat_id"}
    known = {target: column for target, column in known.items() if column in frame.columns}
    mapped = map_columns(frame.columns, known | dict(columns or {}), source.name)
    return Draft(
        source.name,
        frame,
        mapped,
        line_of,
        faults=faults,
        hash_block_tokens=BLOCK_TOKENS,
    )
