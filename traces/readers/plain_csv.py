"""CSV with a header, its columns known by name or named by the user; tabs and semicolons do as well."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Mapping

import polars as pl

from traces.errors import InputError
from traces.readers.columns import map_columns
from traces.readers.draft import Draft, Fault
from traces.readers.source import Source

CHUNK_ROWS = 50_000
DELIMITERS = ",\t;"


def matches(source: Source) -> bool:
    """Any text whose first line has a delimiter, or is at least no JSON."""
    line = source.first_line()
    return b"\0" not in source.data[:4096] and not line.lstrip().startswith((b"{", b"["))


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Split a CSV into text columns; nothing is taken for a number yet.

    Raises:
        InputError: no header, a column that is needed is missing, or the text is not UTF-8.
    """
    frame, faults, line_of = read_table(source)
    return Draft(source.name, frame, map_columns(frame.columns, columns, source.name), line_of, faults=faults)


def read_table(source: Source) -> tuple[pl.DataFrame, tuple[Fault, ...], Callable[[int], int]]:
    """The rows as text columns, the rows that could not be split, and row -> line."""
    delimiter = _delimiter(source)
    header = _header(source, delimiter)
    try:
        frame = pl.read_csv(source.data, infer_schema=False, separator=delimiter)
    except pl.exceptions.PolarsError:
        return _read_slowly(source, delimiter, header)
    # Files on which the two parsers disagree (a lone carriage return) go to the one that counts lines.
    if frame.width != len(header):
        return _read_slowly(source, delimiter, header)
    # A blank line and a line of delimiters only look the same here, yet only the first is no row.
    if len(frame) and frame.select(pl.all_horizontal(pl.all().is_null()).any()).item():
        return _read_slowly(source, delimiter, header)
    frame.columns = header

    def line_of(row: int) -> int:
        for i, (line, _) in enumerate(_rows(source, delimiter)):
            if i == row + 1:
                return line
        return row + 2

    return frame, (), line_of


def _read_slowly(
    source: Source, delimiter: str, header: list[str]
) -> tuple[pl.DataFrame, tuple[Fault, ...], Callable[[int], int]]:
    """Row by row, so that the one that is torn can be named; for files that are not clean."""
    schema = dict.fromkeys(header, pl.String)
    # Lists of text take ten times the room of a frame, so only so many rows are in lists at once.
    frames: list[pl.DataFrame] = [pl.DataFrame(schema=schema)]
    rows: list[list[str | None]] = []
    lines: list[int] = []
    faults: list[Fault] = []
    try:
        for i, (line, row) in enumerate(_rows(source, delimiter)):
            if i == 0:
                continue
            if len(row) == len(header):
                rows.append([value or None for value in row])
                lines.append(line)
            else:
                faults.append(Fault(line, None, None, f"has {len(row)} values; the header has {len(header)}"))
            if len(rows) == CHUNK_ROWS:
                frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
                rows = []
    except csv.Error as error:
        raise InputError(f"{source.name} is not readable as CSV: {error}") from error
    frames.append(pl.DataFrame(rows, schema=schema, orient="row"))
    return pl.concat(frames), tuple(faults), lines.__getitem__


def _rows(source: Source, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which the row begins, values); blank lines are no rows."""
    # Prompts are longer than the module's default limit of 128 KiB a field.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(_decode(source), newline=""), delimiter=delimiter)
    begins = 1
    for row in reader:
        if row:
            yield begins, row
        begins = reader.line_num + 1


def _decode(source: Source) -> str:
    try:
        return source.data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{source.name}, line {line}: byte {source.data[error.start]:#04x} is not UTF-8 text; "
            "convert the file to UTF-8"
        ) from None


def _delimiter(source: Source) -> str:
    line = source.first_line()
    return max(DELIMITERS, key=lambda mark: line.count(mark.encode()))


def _header(source: Source, delimiter: str) -> list[str]:
    try:
        # A cell of the header may hold a line end, so the first row is more than the first line.
        head = Source(source.name, source.data[: 1 << 16])
        names = [name.strip() for name in next(_rows(head, delimiter))[1]]
    except UnicodeDecodeError:
        names = []
    except (csv.Error, StopIteration) as error:
        raise InputError(f"{source.name} is not readable as CSV: its header is broken") from error
    again = {name for name in names if names.count(name) > 1}
    if again:
        raise InputError(f"{source.name} has two columns named {min(again)!r}; rename one")
    return names
