"""ForeLen: CSV with ``user_prompt_content``, ``response_content`` and ``target_length`` (output tokens).

Splits differ in their columns. A folder of them is read as one trace, with the split of each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from traces.errors import InputError
from traces.readers.columns import map_columns
from traces.readers.draft import Draft
from traces.readers.plain_csv import read_header, read_rows
from traces.readers.source import Source

COLUMNS = {"prompt": "user_prompt_content", "response": "response_content", "output_tokens": "target_length"}


def matches(source: Source) -> bool:
    """The header has the prompt's column."""
    return COLUMNS["prompt"] in source.header


def read(source: Source, columns: Mapping[str, str] | None) -> Iterator[Draft]:
    """Read one split; prompts are for a tokenizer to count, answers too where there is no target_length.

    Raises:
        InputError: the prompts, or both the lengths and the answers, are missing.
    """
    header = read_header(source)
    known = {target: column for target, column in COLUMNS.items() if column in header}
    mapped = map_columns(header, known | dict(columns or {}), source.name)
    for rows in read_rows(source, whole="hash_ids" in mapped.columns):
        yield Draft(source.name, rows.frame, mapped, rows.line_of, faults=rows.faults)


def splits(folder: Path) -> list[Path]:
    """The CSV files of a folder, by name.

    Raises:
        InputError: there are none.
    """
    files = sorted(file for file in folder.iterdir() if file.name.endswith((".csv", ".csv.gz")))
    if not files:
        raise InputError(
            f"{folder} is a folder without CSV files; give one file, or a folder of ForeLen CSVs"
        )
    return files
