"""Tables of this project on disk: Parquet with one JSON object under the metadata key ``estp``."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from traces.errors import InputError
from traces.files import atomic_path
from traces.schema import COLUMNS, NUMBER_COLUMNS, TEXT_COLUMNS, UNITS, Trace, object_array

SCHEMA_VERSION = 1
METADATA_KEY = "estp"


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace as Parquet; ``path`` changes only when all of it is written.

    Raises:
        InputError: the file cannot be written, or the metadata is no JSON.
    """
    frame = table_of(trace)
    units = {name: unit for name, unit in UNITS.items() if name in frame.columns}
    write_table(frame, path, {**trace.metadata, "kind": "trace", "units": units})


def table_of(trace: Trace) -> pl.DataFrame:
    """The trace as a table, one row a request, its columns by their names.

    Raises:
        InputError: a column mixes kinds of values.
    """
    return pl.DataFrame([_series(name, column) for name, column in trace.columns().items()])


def read_parquet_trace(path: str | Path) -> Trace:
    """Read a trace that ``write_trace`` wrote; every column and the metadata come back as they were.

    Raises:
        InputError: the file is missing, no trace of this project, or breaks a rule of ``Trace``.
    """
    frame, metadata = read_table(path, "trace")
    return trace_from_table(frame, metadata, str(path))


def write_table(frame: pl.DataFrame, path: str | Path, metadata: dict[str, Any]) -> None:
    """Write a table with its ``estp`` metadata (``schema_version`` is added), all or nothing."""
    try:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **metadata}, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"cannot write {path}: its metadata is not plain JSON ({error})") from error
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary, compression="zstd", metadata={METADATA_KEY: text})


def read_table(path: str | Path, kind: str) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Read a table and its metadata, and see that it is of this kind and of a version known here."""
    frame, metadata = read_any_parquet(path)
    if metadata is None:
        raise InputError(f"{path} is Parquet, but not a table of this project (no {METADATA_KEY!r} metadata)")
    found = metadata.get("kind")
    if found != kind:
        raise InputError(f"{path} holds {found or 'an unknown kind of table'}, where {kind} is needed")
    version = metadata.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(f"{path} has schema version {version}; this program reads version {SCHEMA_VERSION}")
    return frame, metadata


def read_any_parquet(
    path: str | Path, data: bytes | None = None
) -> tuple[pl.DataFrame, dict[str, Any] | None]:
    """Read a Parquet file (or its bytes, which ``path`` then names), and its ``estp`` metadata, if any.

    Raises:
        InputError: the file is missing or is no Parquet.
    """
    file = Path(path)
    if data is None and not file.is_file():
        raise InputError(f"there is no file {file}" if not file.exists() else f"{file} is not a file")
    _check_pages(file, data)
    try:
        text = pl.read_parquet_metadata(file if data is None else io.BytesIO(data)).get(METADATA_KEY)
        frame = pl.read_parquet(
            file if data is None else io.BytesIO(data), glob=False, hive_partitioning=False
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} is not readable as Parquet: {_first_line(error)}") from error
    except pl.exceptions.PanicException:
        # A damaged page makes the library behind it panic, which is no ordinary exception.
        raise InputError(f"{file} is not readable as Parquet: it is damaged; fetch it again") from None
    if text is None:
        return frame, None
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise InputError(f"the {METADATA_KEY!r} metadata of {file} is not JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise InputError(f"the {METADATA_KEY!r} metadata of {file} is not a JSON object")
    return frame, metadata


def _check_pages(file: Path, data: bytes | None) -> None:
    """Read all of it once with Arrow: on some damaged files polars prints a panic, or ends the process."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file if data is None else pa.BufferReader(data)) as source:
            read = 0
            for part in source.iter_batches():
                part.validate(full=True)
                read += part.num_rows
            source.schema_arrow.names  # noqa: B018  (an error, where they are not UTF-8)
            whole = source.metadata
            told = sum(whole.row_group(i).num_rows for i in range(whole.num_row_groups))
        if not read == told == whole.num_rows:
            raise ValueError(
                f"it should have {whole.num_rows} rows, its parts {told}, and {read} can be read"
            )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"{file} is not readable as Parquet: {_first_line(error)}; if it is damaged, fetch it again"
        ) from error


def trace_from_table(frame: pl.DataFrame, metadata: dict[str, Any], name: str) -> Trace:
    """A trace from a table that has its column names; ``name`` is what errors call the source."""
    required = ("request_id", "arrival_s", "prompt_tokens", "output_tokens")
    missing = [column for column in required if column not in frame.columns]
    if missing:
        raise InputError(f"{name} lacks the column {missing[0]!r}; it has {', '.join(frame.columns)}")
    columns: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for series in frame:
        (columns if series.name in COLUMNS else extra)[series.name] = _array(series, name)
    kept = {key: value for key, value in metadata.items() if key not in ("kind", "schema_version", "units")}
    try:
        return Trace(**columns, extra=extra, metadata=kept)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _series(name: str, column: np.ndarray[Any, Any]) -> pl.Series:
    if name == "hash_ids":
        return pl.Series(name, column.tolist(), dtype=pl.List(pl.Int64))
    if name in TEXT_COLUMNS or (name == "request_id" and column.dtype == object):
        return _strings(name, column)
    if column.dtype != object:
        return pl.Series(name, column)
    try:
        return pl.Series(name, column.tolist())
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"column {name!r} mixes kinds of values and cannot be written: {error}") from error


def _strings(name: str, column: np.ndarray[Any, Any]) -> pl.Series:
    try:
        return pl.Series(name, column.tolist(), dtype=pl.String)
    except (TypeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"column {name!r} holds something that is no text: {error}") from error


def _array(series: pl.Series, name: str) -> Any:
    empty = series.null_count()
    must_be_full = series.name in NUMBER_COLUMNS or (
        series.name in COLUMNS and series.name not in TEXT_COLUMNS
    )
    if empty and must_be_full:
        row = int(series.is_null().arg_max() or 0)
        raise InputError(f"{name}, row {row}, column {series.name!r} is empty")
    if series.name == "hash_ids":
        return object_array([np.asarray(row, np.int64) for row in series.to_list()])
    if series.dtype.is_numeric() and not empty:
        return series.to_numpy()
    if series.dtype == pl.Boolean and not empty:
        return series.to_numpy()
    return object_array(series.to_list())


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
