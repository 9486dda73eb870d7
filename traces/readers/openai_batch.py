"""The output file of an OpenAI-style batch: one answer a line, with its ``usage``.

A batch has no arrivals: all its requests are there at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.errors import InputError
from traces.readers.columns import ColumnMap
from traces.readers.draft import Draft
from traces.readers.jsonl import read_objects
from traces.readers.source import Source

FIELDS = ("prompt_tokens", "completion_tokens")


def matches(source: Source) -> bool:
    """The first object has the id that the batch's author gave it."""
    return "custom_id" in source.first_object


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read ``custom_id``, and the token counts in ``response.body.usage``; a failed request is a fault.

    Raises:
        InputError: the file is the batch's input, or a mapping is given, which this format does not need.
    """
    if columns:
        raise InputError("format openai-batch has fixed columns; leave out --columns")
    if "response" not in (first := source.first_object) and "body" in first:
        raise InputError(
            f"{source.name} is the input of a batch, which cannot know how long the answers are; "
            "give the batch's output file"
        )
    frame, faults, line_of = read_objects(source, _row)
    mapped = ColumnMap({"request_id": "custom_id", "prompt_tokens": FIELDS[0], "output_tokens": FIELDS[1]})
    return Draft(source.name, frame, mapped, line_of, faults=faults)


def _row(entry: dict[str, Any]) -> dict[str, Any] | str:
    response = entry.get("response")
    status = response.get("status_code") if isinstance(response, dict) else None
    body = response.get("body") if isinstance(response, dict) else None
    usage = body.get("usage") if isinstance(body, dict) else None
    if entry.get("error") or status not in (None, 200) or not isinstance(usage, dict):
        return f"is a failed request (status {status}), which has no lengths"
    return {"custom_id": entry.get("custom_id"), **{field: usage.get(field) for field in FIELDS}}
