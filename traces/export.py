"""Traces for other programs: CSV, JSON lines, and Mooncake's, which AIPerf, GuideLLM, Dynamo and vLLM replay."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces.errors import InputError
from traces.files import atomic_path
from traces.parquet import table_of, write_trace
from traces.schema import Trace


def write_as(trace: Trace, path: str | Path, format: str | None = None) -> str:
    """Write a trace as ``parquet``, ``csv``, ``jsonl`` or ``mooncake``; what it was written as.

    If no format is given the name's ending tells it (.parquet, .csv, .jsonl; .gz after the last two).
    Only Parquet keeps the metadata; csv spells hash ids as JSON lists.

    Raises:
        InputError: the ending or the format is none of these, or the file cannot be written.
    """
    name = Path(path).name.removesuffix(".gz")
    told = format or next((kind for kind in ("parquet", "csv", "jsonl") if name.endswith(f".{kind}")), None)
    if told == "parquet":
        write_trace(trace, path)
    elif told == "mooncake":
        write_mooncake(trace, path)
    elif told == "csv":
        frame = table_of(trace)
        if "hash_ids" in frame.columns:
            spelled = [json.dumps(row.tolist()) for row in trace.columns()["hash_ids"]]
            frame = frame.with_columns(pl.Series("hash_ids", spelled, dtype=pl.String))
        write_text(frame.write_csv(), path)
    elif told == "jsonl":
        write_text(table_of(trace).write_ndjson(), path)
    else:
        raise InputError(f"{path} does not end in .parquet, .csv or .jsonl; name a format for it")
    return told


def write_mooncake(trace: Trace, path: str | Path) -> None:
    """Write ``timestamp`` (ms), ``input_length``, ``output_length`` and, where there are any, ``hash_ids``.

    A time of whole milliseconds is written as a whole number. A path that ends in ``.gz`` is
    compressed. The format has no place for how many tokens a hash id stands for, nor for other columns.

    Raises:
        InputError: the file cannot be written.
    """
    write_text("".join(f"{line}\n" for line in _mooncake_lines(trace)), path)


def write_text(text: str, path: str | Path) -> None:
    """Write text as UTF-8, all or nothing; gzip (without a date) where the name ends in ``.gz``."""
    data = text.encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def milliseconds(arrival_s: NDArray[np.float64]) -> list[int | float]:
    """Arrivals in milliseconds: the decimal point moved, and whole numbers where nothing follows it.

    Read back, whole milliseconds are the same seconds, and others are to 4e-16 of themselves.
    """
    # A product would write 2.0005 s as 2000.5000000000002 ms.
    moved = [float(f"{s!r}e3") if "e" not in repr(s) else s * 1000 for s in arrival_s.tolist()]
    return [int(ms) if ms.is_integer() else ms for ms in moved]


def _mooncake_lines(trace: Trace) -> Iterator[str]:
    columns = zip(
        milliseconds(trace.arrival_s), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True
    )
    for row, (timestamp, prompt_tokens, output_tokens) in enumerate(columns):
        fields: dict[str, Any] = {
            "timestamp": timestamp,
            "input_length": prompt_tokens,
            "output_length": output_tokens,
        }
        if trace.hash_ids is not None:
            fields["hash_ids"] = trace.hash_ids[row].tolist()
        yield json.dumps(fields)
