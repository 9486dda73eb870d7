"""Readers of public trace formats, one a file: each splits the bytes, ``build`` has the rows checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from traces.combine import merge
from traces.errors import InputError
from traces.readers import (
    access_log,
    alpaca_eval,
    azure,
    bailian,
    burstgpt,
    forelen,
    json_list,
    jsonl,
    llmservingsim,
    lmcache,
    mooncake,
    openai_batch,
    parquet,
    plain_csv,
    ragpulse,
    refused,
    sharegpt,
)
from traces.readers.build import build_trace
from traces.readers.draft import Draft, OnError, Options
from traces.readers.source import Source, open_source
from traces.schema import Trace


class Reader(Protocol):
    """What a module in this folder has: how its format is known, and how it is read."""

    def matches(self, source: Source) -> bool: ...

    # Several drafts where a file is read piece by piece; each goes through the checks before the next is made.
    def read(self, source: Source, columns: Mapping[str, str] | None) -> Draft | Iterator[Draft]: ...


# In order of sniffing: the most particular first. Names after csv are other words for the same readers.
TEXT_READERS: dict[str, Reader] = {
    "azure-2023": azure,
    "burstgpt": burstgpt,
    "bailian": bailian,
    "ragpulse": ragpulse,
    "mooncake": mooncake,
    "openai-batch": openai_batch,
    "llmservingsim": llmservingsim,
    "lmcache": lmcache,
    "sharegpt": sharegpt,
    "access-log": access_log,
    "alpaca-eval": alpaca_eval,
    "forelen": forelen,
    "jsonl": jsonl,
    "json": json_list,
    "csv": plain_csv,
    "azure-2024": azure,
    "aiperf": mooncake,
    "vllm-custom": jsonl,
    "splitwise": plain_csv,
    "vidur": plain_csv,
}
FORMATS = ("parquet", *TEXT_READERS)


def read_trace(
    path: str | Path,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    on_error: OnError = "fail",
    hash_block_tokens: int | None = None,
    tokenizer: str | None = None,
) -> Trace:
    """Read a trace in any known format; gzip is undone, and ``-`` is standard input.

    Args:
        path: the file, or a folder of ForeLen CSVs.
        format: one of ``FORMATS``; None tells it from the content.
        columns: trace column -> the file's name for it, for csv, json, jsonl and foreign Parquet;
            arrivals in other units are named ``arrival_ms``, ``arrival_us`` or ``arrival_ns``.
        on_error: ``fail`` refuses the file at its first fault; ``skip`` leaves such rows out and
            lists them in ``metadata["dropped"]``.
        hash_block_tokens: prompt tokens that one of ``hash_ids`` stands for; None: what the format
            says (512 in Mooncake, 16 in Bailian), or what explains how many ids each prompt has.
            Kept in ``metadata["hash_block_tokens"]``.
        tokenizer: counts the tokens of texts that come without lengths: a ``tokenizer.json``, a
            folder with one, a name on the Hugging Face hub, or ``smollm2-135m-instruct`` for the
            embedded model's.

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
    options = Options(on_error, hash_block_tokens, tokenizer)
    if format in (None, "forelen") and str(path) != "-" and Path(path).is_dir():
        files = forelen.splits(Path(path))
        splits = [file.name.split(".")[0] for file in files]
        return merge([_read_file(file, "forelen", columns, options) for file in files], splits, label="split")
    return _read_file(path, format, columns, options)


def _read_file(
    path: str | Path, format: str | None, columns: Mapping[str, str] | None, options: Options
) -> Trace:
    with open_source(path) as source:
        if format == "parquet" or (format is None and source.head.startswith(parquet.MAGIC)):
            found = parquet.read(source.name, columns, source.data if source.path is None else None)
            return build_trace([found], options, {}) if isinstance(found, Draft) else found
        name = format or _sniffed(source)
        drafts = TEXT_READERS[name].read(source, columns)
        return build_trace([drafts] if isinstance(drafts, Draft) else drafts, options, {"format": name})


def _sniffed(source: Source) -> str:
    why = refused.reason(source)
    if why is not None:
        raise InputError(f"{source.name} {why}")
    for name, reader in TEXT_READERS.items():
        if reader.matches(source):
            return name
    raise InputError(f"{source.name} is in no format known here ({_looks(source)}); see --format")


def _looks(source: Source) -> str:
    return f"it begins with {source.head[:30]!r}"
