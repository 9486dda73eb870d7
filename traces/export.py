"""Traces for other programs: Mooncake's JSON lines, which AIPerf, GuideLLM, Dynamo and vLLM replay."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.files import atomic_path
from traces.schema import Trace


def write_mooncake(trace: Trace, path: str | Path) -> None:
    """Write ``timestamp`` (ms), ``input_length``, ``output_length`` and, where there are any, ``hash_ids``.

    A time of whole milliseconds is written as a whole number. A path that ends in ``.gz`` is
    compressed. The format has no place for how many tokens a hash id stands for, nor for other columns.

    Raises:
        InputError: the file cannot be written.
    """
    write_lines(_mooncake_lines(trace), path)


def write_lines(lines: Iterable[str], path: str | Path) -> None:
    """Write lines as UTF-8, all or nothing; gzip (without a date) where the name ends in ``.gz``."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        packed = str(path).endswith(".gz")
        out: Any = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if packed else file
        for line in lines:
            out.write(line.encode() + b"\n")
        if packed:
            out.close()


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
