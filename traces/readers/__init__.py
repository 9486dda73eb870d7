"""Readers of public trace formats, one a file: each splits the bytes, ``draft`` checks the rows."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from traces.errors import InputError
from traces.readers import azure, bailian, jsonl, mooncake, parquet, plain_csv
from traces.readers.draft import Draft, OnError, build_trace
from traces.readers.source import Source, open_source
from traces.schema import Trace


class Reader(Protocol):
    """What a module in this folder has: how its format is known, and how it is read."""

    def matches(self, source: Source) -> bool: ...

    def read(self, source: Source, columns: Mapping[str, str] | None) -> Draft: ...


# In order of sniffing: the most particular first.
TEXT_READERS: dict[str, Reader] = {
    "azure-2023": azure,
    "azure-2024": azure,
    "bailian": bailian,
    "mooncake": mooncake,
    "jsonl": jsonl,
    "csv": plain_csv,
}
FORMATS = (parquet.NAME, *TEXT_READERS)


def read_trace(
    path: str | Path,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    on_error: OnError = "fail",
    hash_block_tokens: int | None = None,
) -> Trace:
    """Read a trace in any known format; gzip is undone, and ``-`` is standard input.

    Args:
        path: the file.
        format: one of ``FORMATS``; None tells it from the content.
        columns: trace column -> the file's name for it, for csv, jsonl and foreign Parquet;
            arrivals in other units are named ``arrival_ms``, ``arrival_us`` or ``arrival_ns``.
        on_error: ``fail`` refuses the file at its first fault; ``skip`` leaves such rows out and
            lists them in ``metadata["dropped"]``.
        hash_block_tokens: prompt tokens that one of ``hash_ids`` stands for; None: what the format
            says (512 in Mooncake, 16 in Bailian), or what explains how many ids each prompt has.
            Kept in ``metadata["hash_block_tokens"]``.

    A file without arrivals reads as one burst, with ``metadata["arrivals"] == "absent"``.

    Raises:
        InputError: what is wrong, with the file, line, column and value.
    """
    if format is not None and format not in FORMATS:
        near = get_close_matches(format, FORMATS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FORMATS)}"
        raise InputError(f"no trace format is called {format!r}; {hint}")
    if on_error not in ("fail", "skip"):
        raise InputError(f"on_error is 'fail' or 'skip', not {on_error!r}")
    if hash_block_tokens is not None and hash_block_tokens < 1:
        raise InputError(f"hash_block_tokens is {hash_block_tokens}; it must be at least 1")
    if format == parquet.NAME or (format is None and _is_parquet(path)):
        found = parquet.read(str(path), columns)
        return build_trace(found, on_error, hash_block_tokens) if isinstance(found, Draft) else found
    source = open_source(path)
    name = format or next((name for name, reader in TEXT_READERS.items() if reader.matches(source)), None)
    if name is None:
        raise InputError(f"{source.name} is in no format known here ({_looks(source)}); see --format")
    draft = TEXT_READERS[name].read(source, columns)
    draft.metadata["format"] = name
    return build_trace(draft, on_error, hash_block_tokens)


def _is_parquet(path: str | Path) -> bool:
    if str(path) == "-":
        return False
    try:
        with open(path, "rb") as file:
            return file.read(len(parquet.MAGIC)) == parquet.MAGIC
    except OSError:
        return False


def _looks(source: Source) -> str:
    return f"it begins with {source.data[:30]!r}"
