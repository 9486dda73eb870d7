"""The Azure LLM inference traces of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens.

Times are dates with 7 digits of a second (2023, no zone) or 6 with a UTC offset (2024); lines
end in CRLF and the last may have no end. There are no ids: requests are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traces.errors import InputError
from traces.readers.columns import ColumnMap
from traces.readers.draft import Draft
from traces.readers.plain_csv import read_header, read_rows
from traces.readers.source import Source

HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def matches(source: Source) -> bool:
    """The header is exactly Azure's."""
    return source.header == list(HEADER)


def read(source: Source, columns: Mapping[str, str] | None) -> Iterator[Draft]:
    """Read the three columns; the arrival is a date.

    Raises:
        InputError: a column is missing, or a mapping is given, which this format does not need.
    """
    if columns:
        raise InputError("format azure-2023 has fixed columns; leave out --columns, or say --format csv")
    header = read_header(source)
    for name in HEADER:
        if name not in header:
            raise InputError(f"{source.name} lacks the column {name!r} of format azure-2023")
    mapped = dict(zip(("arrival_s", "prompt_tokens", "output_tokens"), HEADER, strict=True))
    for rows in read_rows(source):
        yield Draft(source.name, rows.frame, ColumnMap(mapped), rows.line_of, faults=rows.faults)
