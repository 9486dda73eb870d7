"""A JSON list of objects, one a request, its keys known by name or named by the user."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from traces.errors import InputError
from traces.readers import rows
from traces.readers.columns import map_columns
from traces.readers.draft import SHOWN_VALUE, Draft, Fault
from traces.readers.source import Source


def matches(source: Source) -> bool:
    """A list whose first entry is an object."""
    return source.is_list and bool(source.first_object)


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Parse the list; a key that an entry lacks is empty there. Entries are counted from 1.

    Raises:
        InputError: the file is no JSON list of objects, or a column that is needed is in none of them.
    """
    places: list[int] = []
    faults: list[Fault] = []

    def objects() -> Iterator[dict[str, Any]]:
        for place, found in parse_entries(source):
            if isinstance(found, Fault):
                faults.append(found)
            else:
                places.append(place)
                yield found

    frame = rows.table(objects(), source.name, len(source.data))
    if not places:
        what = (
            f"entry {faults[0].line}: {faults[0].value} {faults[0].reason}" if faults else "the list is empty"
        )
        raise InputError(f"{source.name}, {what}")
    mapped = map_columns(frame.columns, columns, source.name)
    return Draft(source.name, frame, mapped, places.__getitem__, place="entry", faults=tuple(faults))


def parse_entries(source: Source) -> Iterator[tuple[int, dict[str, Any] | Fault]]:
    """(number from 1, object or what is wrong with it) of every entry of the list.

    Raises:
        InputError: the file is no JSON list.
    """
    try:
        whole = json.loads(source.data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source.name} is not readable as JSON: {error}") from error
    if not isinstance(whole, list):
        raise InputError(f"{source.name} is not a JSON list of requests")
    escaped = b"\\u" in source.data
    for place, found in enumerate(whole, start=1):
        if not isinstance(found, dict):
            yield place, Fault(place, None, repr(found)[:SHOWN_VALUE], "is not a JSON object")
        elif escaped and rows.lone_surrogate(found):
            yield place, Fault(place, None, None, "holds half a character (a lone surrogate)")
        else:
            yield place, found
