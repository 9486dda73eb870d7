"""Which of a file's columns is which column of a trace: given by the user, or by a known name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from traces.errors import InputError
from traces.schema import COLUMNS

# A first row that is no header may be as long as the file.
SHOWN_NAME = 80
TIME_UNITS = {"arrival_s": 1, "arrival_ms": 1_000, "arrival_us": 1_000_000, "arrival_ns": 1_000_000_000}

# Names are compared in lower case with every other character taken as an underscore.
ALIASES: dict[str, tuple[str, ...]] = {
    "arrival_s": ("arrival_s", "arrived_at", "arrival_time_s", "arrival_timestamp", "arrival"),
    "arrival_ms": ("arrival_ms", "arrival_time_ms"),
    "arrival_us": ("arrival_us", "arrival_time_us"),
    "arrival_ns": ("arrival_ns", "arrival_time_ns"),
    "prompt_tokens": (
        "prompt_tokens",
        "num_prefill_tokens",
        "input_tokens",
        "input_length",
        "contexttokens",
        "context_tokens",
        "request_tokens",
        "num_prompt_tokens",
        "prompt_len",
        "input_len",
        "input_toks",
        "prompt_length",
        "prompt_size",
    ),
    "output_tokens": (
        "output_tokens",
        "num_decode_tokens",
        "completion_tokens",
        "output_length",
        "generatedtokens",
        "generated_tokens",
        "response_tokens",
        "num_output_tokens",
        "output_len",
        "output_toks",
        "target_length",
        "response_length",
        "token_size",
    ),
    "request_id": ("request_id", "req_id", "id"),
    "session_id": ("session_id",),
    "prompt": ("prompt", "instruction", "question", "text_input", "input_text", "user_prompt_content"),
    "response": ("response", "output", "answer", "response_content", "completion"),
    "scenario": ("scenario",),
    "hash_ids": ("hash_ids",),
    "prefix_id": ("prefix_id",),
    "prefix_tokens": ("prefix_tokens",),
    "priority": ("priority",),
}
# These mean seconds in some formats and milliseconds in others; nothing in the file says which.
AMBIGUOUS_TIMES = ("timestamp", "time", "arrival_time")


@dataclass(frozen=True)
class ColumnMap:
    """Columns of a file by the trace column that they become.

    Attributes:
        columns: trace column -> the file's own name for it; ``arrival_s`` is absent in files
            that hold lengths only, a length in files that hold its text.
        ticks_per_s: how many units of the arrival column make a second.
        undecided_time: an arrival-like column whose unit is unknown unless it holds dates, or None.
    """

    columns: dict[str, str]
    ticks_per_s: int = 1
    undecided_time: str | None = None


def map_columns(found: Sequence[str], given: Mapping[str, str] | None, name: str) -> ColumnMap:
    """Match a file's columns to a trace's; what the user gives goes before known names.

    Args:
        found: the file's column names.
        given: trace column (or ``arrival_ms``, ``arrival_us``, ``arrival_ns``) -> the file's column.
        name: what errors call the file.

    Raises:
        InputError: a column that was named is not there, or neither a length column nor the text
            whose tokens could be counted is to be found.
    """
    columns: dict[str, str] = {}
    ticks = 1
    for target, column in (given or {}).items():
        if target not in COLUMNS and target not in TIME_UNITS:
            near = get_close_matches(target, [*COLUMNS, *TIME_UNITS], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(COLUMNS)}"
            raise InputError(f"{target!r} is not a column of a trace{hint}")
        if column not in found:
            raise InputError(f"{name} lacks the column {column!r} (for {target}); it has {_listed(found)}")
        if target in TIME_UNITS:
            target, ticks = "arrival_s", TIME_UNITS[target]
        columns[target] = column
    taken = set(columns.values())
    by_norm = {_normal(column): column for column in reversed(found) if column not in taken}
    for target, aliases in ALIASES.items():
        place = "arrival_s" if target in TIME_UNITS else target
        match = next((by_norm[alias] for alias in aliases if alias in by_norm), None)
        if match is not None and place not in columns:
            columns[place] = match
            ticks = TIME_UNITS.get(target, ticks)
    for target, text in (("prompt_tokens", "prompt"), ("output_tokens", "response")):
        if target not in columns and text not in columns:
            known = "" if len(found) < 2 else f". Name it with --columns {target}=NAME"
            if target == "output_tokens" and "prompt" in columns:
                known += ", or have a model answer the prompts with estp rollout"
            raise InputError(
                f"{name} has no column for {target}, nor a {text} to count; it has {_listed(found)}{known}"
            )
    undecided = None
    if "arrival_s" not in columns:
        undecided = next((by_norm[alias] for alias in AMBIGUOUS_TIMES if alias in by_norm), None)
    return ColumnMap(columns, ticks, undecided)


def _normal(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name.strip().lower())


def _listed(found: Sequence[str]) -> str:
    shown = ", ".join(
        repr(name if len(name) <= SHOWN_NAME else name[:SHOWN_NAME] + "...") for name in found[:20]
    )
    return f"{shown} and {len(found) - 20} more" if len(found) > 20 else shown
