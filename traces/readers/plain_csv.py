"""CSV with a header, its columns known by name or named by the user; tabs and semicolons do as well."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

import polars as pl

from traces.errors import InputError
from traces.readers.columns import map_columns
from traces.readers.draft import Draft, Fault
from traces.readers.source import Source

# So much is checked at once, whatever the size of the file; rows that go the slow way come by number.
PIECE_BYTES = 1 << 20
PIECE_ROWS = 10_000
MOST_COLUMNS = 10_000
DELIMITERS = ",\t;"


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a table, in the order of the file.

    Attributes:
        frame: their values as text; nothing is taken for a number yet.
        line_of: row of ``frame`` -> its line in the file.
        faults: rows that could not be split, and are not in ``frame``.
    """

    frame: pl.DataFrame
    line_of: Callable[[int], int]
    faults: tuple[Fault, ...] = ()


def matches(source: Source) -> bool:
    """Any text whose first line has a delimiter, or is at least no JSON."""
    line = source.first_line()
    return b"\0" not in source.head[:4096] and not line.lstrip().startswith((b"{", b"["))


def read(source: Source, columns: Mapping[str, str] | None) -> Iterator[Draft]:
    """Split a CSV into text columns, piece by piece; nothing is taken for a number yet.

    Raises:
        InputError: no header, a column that is needed is missing, or the text is not UTF-8.
    """
    mapped = map_columns(read_header(source), columns, source.name)
    # How many tokens a hash id stands for is told from all rows together.
    for rows in read_rows(source, whole="hash_ids" in mapped.columns):
        yield Draft(source.name, rows.frame, mapped, rows.line_of, faults=rows.faults)


def read_header(source: Source) -> list[str]:
    """The names of the columns.

    Raises:
        InputError: there are none, or two are the same.
    """
    # A cell of the header may hold a line end, so the first row is more than the first line.
    beginning = source.first_row()
    if beginning.count(_delimiter(source).encode()) >= MOST_COLUMNS:
        raise InputError(
            f"{source.name} has more than {MOST_COLUMNS:,} values in its first row, so it has no header"
        )
    try:
        _, first = next(_split([beginning], 1, source.name, _delimiter(source)))
    except (csv.Error, StopIteration) as error:
        raise InputError(f"{source.name} is not readable as CSV: its header is broken") from error
    names = [name.strip() for name in first]
    again = {name for name, count in Counter(names).items() if count > 1}
    if again:
        raise InputError(f"{source.name} has two columns named {min(again)!r}; rename one")
    return names


def read_rows(source: Source, whole: bool = False) -> Iterator[Rows]:
    """The rows below the header, in pieces of some megabytes, or all at once.

    Raises:
        InputError: the text is not UTF-8, or no CSV.
    """
    header, delimiter = read_header(source), _delimiter(source)
    pieces = iter([source.data] if whole else source.pieces(PIECE_BYTES))
    line = 1
    for piece in pieces:
        frame = _parsed(piece, header, delimiter, line > 1)
        if frame is None:
            # Once a piece is not clean, the rest goes row by row, so that the row that is torn can be named.
            yield from _read_slowly(chain([piece], pieces), line, source.name, header, delimiter)
            return
        yield Rows(frame, _line_finder(piece, line, source.name, delimiter))
        line += _line_ends(piece)


def _parsed(piece: bytes, header: list[str], delimiter: str, headless: bool) -> pl.DataFrame | None:
    """A piece as text columns, the fast way; None if it is not clean."""
    if headless:
        piece = delimiter.join(map(str, range(len(header)))).encode() + b"\n" + piece
    try:
        frame = pl.read_csv(piece, infer_schema=False, separator=delimiter)
    except pl.exceptions.PolarsError:
        return None
    # Files on which the two parsers disagree (a lone carriage return) go to the one that counts lines.
    if frame.width != len(header):
        return None
    # A blank line and a line of delimiters only look the same here, yet only the first is no row.
    if len(frame) and frame.select(pl.all_horizontal(pl.all().is_null()).any()).item():
        return None
    # A row that ends early looks like one whose last values are empty; the delimiters tell, if none is quoted.
    if frame[:, -1].null_count():
        delimiters = (len(frame) + 1) * (len(header) - 1)
        if b'"' in piece or piece.count(delimiter.encode()) != delimiters:
            return None
    frame.columns = header
    return frame


def _line_finder(piece: bytes, line: int, name: str, delimiter: str) -> Callable[[int], int]:
    def line_of(row: int) -> int:
        place = row + (line == 1)
        return next(islice(_split([piece], line, name, delimiter), place, None), (line + place, []))[0]

    return line_of


def _line_ends(piece: bytes) -> int:
    """Lines as the row-by-row parser counts them: a lone carriage return ends one too."""
    lone = piece.count(b"\r") - piece.count(b"\r\n") if b"\r" in piece else 0
    return piece.count(b"\n") + lone


def _read_slowly(
    pieces: Iterable[bytes], line: int, name: str, header: list[str], delimiter: str
) -> Iterator[Rows]:
    """Row by row from a line on; the first line is the header."""
    schema = dict.fromkeys(header, pl.String)
    rows: list[list[str | None]] = []
    lines: list[int] = []
    faults: list[Fault] = []

    def so_far() -> Rows:
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        return Rows(frame, lines.__getitem__, tuple(faults))

    found = _split(pieces, line, name, delimiter)
    try:
        if line == 1:
            next(found, None)
        for begins, row in found:
            if len(row) == len(header):
                rows.append([value or None for value in row])
                lines.append(begins)
            else:
                faults.append(
                    Fault(begins, None, None, f"has {_values(len(row))}; the header has {len(header)}")
                )
            if len(rows) + len(faults) == PIECE_ROWS:
                yield so_far()
                rows, lines, faults = [], [], []
    except csv.Error as error:
        raise InputError(f"{name} is not readable as CSV: {error}") from error
    yield so_far()


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"


def _split(pieces: Iterable[bytes], line: int, name: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which the row begins, values) from this line on; blank lines are no rows."""
    # Prompts are longer than the module's default limit of 128 KiB a field.
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(_lines(pieces, line, name), delimiter=delimiter)
    begins = line
    for row in reader:
        if row:
            yield begins, row
        begins = line + reader.line_num


def _lines(pieces: Iterable[bytes], line: int, name: str) -> Iterator[str]:
    for piece in pieces:
        try:
            text = piece.decode("utf-8")
        except UnicodeDecodeError as error:
            line += piece.count(b"\n", 0, error.start)
            raise InputError(
                f"{name}, line {line}: byte {piece[error.start]:#04x} is not UTF-8 text; "
                "convert the file to UTF-8"
            ) from None
        yield from io.StringIO(text, newline="")
        line += piece.count(b"\n")


def _delimiter(source: Source) -> str:
    line = source.first_line()
    return max(DELIMITERS, key=lambda mark: line.count(mark.encode()))
