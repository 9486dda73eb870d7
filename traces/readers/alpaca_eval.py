"""AlpacaEval's model outputs: a JSON list of ``instruction`` and ``output``; a tokenizer counts both."""

from __future__ import annotations

from collections.abc import Mapping

from traces.readers import json_list
from traces.readers.draft import Draft
from traces.readers.source import Source

COLUMNS = {"prompt": "instruction", "response": "output"}


def matches(source: Source) -> bool:
    """The first entry has both texts."""
    return source.is_list and set(COLUMNS.values()) <= source.first_object.keys()


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read the list; ``dataset`` and ``generator`` are kept as extra columns.

    Raises:
        InputError: the file is no JSON list of objects, or lacks a text.
    """
    return json_list.read(source, COLUMNS | dict(columns or {}))
