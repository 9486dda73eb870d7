"""Mooncake traces, JSON lines of timestamp (ms), input_length, output_length and hash_ids.

A hash id stands for 512 tokens of the prompt and all before them. AIPerf, GuideLLM, Dynamo and vLLM's
timed traces use the same keys. Nothing in a file says how long a block is: see
``read_trace(hash_block_tokens=...)``.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.readers.columns import map_columns
from traces.readers.draft import Draft
from traces.readers.jsonl import read_objects
from traces.readers.source import Source

BLOCK_TOKENS = 512


def matches(source: Source) -> bool:
    """The first object has a time and an output length, and an input length or (AIPerf) the text."""
    first = source.first_object.keys()
    return {"timestamp", "output_length"} <= first and bool(first & {"input_length", "text_input"})


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read the rows; ``timestamp`` is milliseconds.

    Raises:
        InputError: no line is an object, or a column that is needed is in none of them.
    """
    frame, faults, line_of = read_objects(source)
    known = {"arrival_ms": "timestamp"} if "timestamp" in frame.columns else {}
    mapped = map_columns(frame.columns, known | dict(columns or {}), source.name)
    return Draft(
        source.name,
        frame,
        mapped,
        line_of,
        faults=faults,
        hash_block_tokens=BLOCK_TOKENS,
    )
