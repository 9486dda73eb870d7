"""Parquet: this project's own traces as they are, other tables by column name or mapping."""

from __future__ import annotations

from collections.abc import Mapping

from traces.errors import InputError
from traces.parquet import SCHEMA_VERSION, read_any_parquet, trace_from_table
from traces.readers.columns import map_columns
from traces.readers.draft import Draft
from traces.schema import Trace

MAGIC = b"PAR1"


def read(path: str, columns: Mapping[str, str] | None, data: bytes | None = None) -> Draft | Trace:
    """A trace where the file says that it is one, else its columns for checking.

    Raises:
        InputError: the file is no Parquet, another table of this project, or lacks a column.
    """
    frame, metadata = read_any_parquet(path, data)
    if metadata is None:
        mapped = map_columns(frame.columns, columns, path)
        return Draft(path, frame, mapped, lambda row: row, place="row")
    if columns:
        raise InputError(f"{path} is a trace of this project, whose columns are fixed; leave out --columns")
    if metadata.get("kind") != "trace":
        raise InputError(f"{path} holds {metadata.get('kind', 'no trace')}, where a trace is needed")
    if metadata.get("schema_version") != SCHEMA_VERSION:
        version = metadata.get("schema_version")
        raise InputError(f"{path} has schema version {version}; this program reads version {SCHEMA_VERSION}")
    return trace_from_table(frame, metadata, path)
