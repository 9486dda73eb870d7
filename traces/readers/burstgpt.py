"""BurstGPT: Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type.

The third file has Session ID and Elapsed time among them, so columns are found by name, never by place.
A failed request has 0 response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traces.errors import InputError
from traces.readers.columns import ColumnMap
from traces.readers.draft import Draft
from traces.readers.plain_csv import read_header, read_rows
from traces.readers.source import Source

COLUMNS = {"arrival_s": "Timestamp", "prompt_tokens": "Request tokens", "output_tokens": "Response tokens"}


def matches(source: Source) -> bool:
    """The header has the three columns that are needed."""
    return set(COLUMNS.values()) <= set(source.header)


def read(source: Source, columns: Mapping[str, str] | None) -> Iterator[Draft]:
    """Read the table; Model, Elapsed time and Log Type are kept as extra columns.

    Raises:
        InputError: a column is missing, or a mapping is given, which this format does not need.
    """
    if columns:
        raise InputError("format burstgpt has fixed columns; leave out --columns, or say --format csv")
    header = read_header(source)
    for name in COLUMNS.values():
        if name not in header:
            raise InputError(f"{source.name} lacks the column {name!r} of format burstgpt")
    mapped = COLUMNS | ({"session_id": "Session ID"} if "Session ID" in header else {})
    for rows in read_rows(source):
        yield Draft(
            source.name,
            rows.frame.drop("Total tokens", strict=False),
            ColumnMap(mapped),
            rows.line_of,
            faults=rows.faults,
            no_output="means a failed request, which has no length",
        )
