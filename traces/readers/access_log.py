"""Server access logs: lines with ``prompt_tokens`` and ``completion_tokens``, as JSON or as key=value.

In JSON the counts stand at the top or in ``usage``. Lines of a key=value log that have neither count are
no requests. The time of a line is taken for the arrival; a log that is written when a request ends holds
later times than that, and is in order of completion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from traces.errors import InputError
from traces.readers import rows
from traces.readers.columns import ColumnMap
from traces.readers.draft import Draft
from traces.readers.jsonl import read_objects
from traces.readers.source import Source

FIELDS = ("prompt_tokens", "completion_tokens")
TIMES = ("timestamp", "time", "ts", "@timestamp", "created", "created_at", "start_time")
IDS = ("request_id", "id")
# What a number of today's date must be above, in each unit, and how many of it make a second.
EPOCHS = ((1e17, 1_000_000_000), (1e14, 1_000_000), (1e11, 1_000), (1e8, 1))
SNIFFED_BYTES = 1 << 16

PAIR = re.compile(rb"""\b(prompt_tokens|completion_tokens|request_id)["']?\s*[=:]\s*["']?([^\s,;}"']+)""")
DATE = re.compile(rb"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")
WEB_DATE = re.compile(rb"(\d\d)/(\w{3})/(\d{4}):(\d\d:\d\d:\d\d) ([+-]\d{4})")
MONTHS = dict(zip(b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(), range(1, 13), strict=True))


def matches(source: Source) -> bool:
    """The first object has both counts and a time, or one of the first lines has the counts."""
    if first := source.first_object:
        row = _flat(first).keys()
        return not source.is_list and set(FIELDS) <= row and bool(row & set(TIMES))
    head = source.head[:SNIFFED_BYTES].split(b"\n")
    return any(
        {field.encode() for field in FIELDS} <= {key for key, _ in PAIR.findall(line)} for line in head
    )


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """Read the counts, and the time and the id of a line where it has them.

    Raises:
        InputError: no line has the counts, or a mapping is given, which this format does not need.
    """
    if columns:
        raise InputError("format access-log has fixed columns; leave out --columns, or say --format jsonl")
    if source.head.lstrip().startswith(b"{"):
        frame, faults, line_of = read_objects(source, _flat)
        draft = Draft(source.name, frame, ColumnMap({}), line_of, faults=faults)
    else:
        draft = _read_text(source)
    frame = draft.frame
    for field in FIELDS:
        if field not in frame.columns:
            raise InputError(f"{source.name} has no line with {field}")
    mapped = {"prompt_tokens": FIELDS[0], "output_tokens": FIELDS[1]}
    name = next((name for name in IDS if name in frame.columns), None)
    mapped |= {} if name is None else {"request_id": name}
    time = next((name for name in TIMES if name in frame.columns), None)
    ticks = None if time is None else _ticks_per_s(frame[time].drop_nulls().head(1).to_list())
    if time is not None and ticks is not None:
        mapped["arrival_s"] = time
    undecided = time if ticks is None else None
    found = ColumnMap(mapped, ticks or 1, undecided)
    return Draft(source.name, frame, found, draft.line_of, faults=draft.faults, metadata=draft.metadata)


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    usage = entry.get("usage")
    flat = {key: value for key, value in entry.items() if not isinstance(value, dict | list)}
    return flat | ({field: usage.get(field) for field in FIELDS} if isinstance(usage, dict) else {})


def _read_text(source: Source) -> Draft:
    lines: list[int] = []
    found: list[dict[str, Any]] = []
    others = 0
    for number, line in source.lines():
        row: dict[str, Any] = {
            key.decode(): value.decode("utf-8", "replace") for key, value in PAIR.findall(line)
        }
        if not row.keys() & set(FIELDS):
            others += 1
            continue
        if (time := _date(line)) is not None:
            row["time"] = time
        lines.append(number)
        found.append(row)
    frame = rows.table(found, source.name, len(source.data))
    metadata = {"other_lines": others} if others else {}
    return Draft(source.name, frame, ColumnMap({}), lines.__getitem__, metadata=metadata)


def _date(line: bytes) -> str | None:
    if match := DATE.search(line):
        day, time, fraction, zone = ((part or b"").decode() for part in match.groups())
        if len(zone) == 5:
            zone = f"{zone[:3]}:{zone[3:]}"
        return f"{day} {time}{'.' + fraction if fraction else ''}{zone}"
    if match := WEB_DATE.search(line):
        date, month, year, clock, offset = match.groups()
        zone = offset.decode()
        return (
            f"{year.decode()}-{MONTHS.get(month, 0):02}-{date.decode()} {clock.decode()}{zone[:3]}:{zone[3:]}"
        )
    return None


def _ticks_per_s(first: list[Any]) -> int | None:
    """The unit of a date as a number, told by its size; None if it is no such number."""
    try:
        value = float(first[0])
    except (IndexError, TypeError, ValueError):
        return None
    return next((ticks for least, ticks in EPOCHS if value >= least), None)
