"""Conversations: ShareGPT's ``[{"id", "conversations": [{"from", "value"}]}]``, and chats with ``messages``.

Every answer is a request. Its prompt is what was said since the answer before; its prompt tokens count
all that was said in the conversation so far, which is what a server is sent (vLLM's own reader takes the
first turn alone). Chats may also stand one a line, and a message may have ``role`` and ``content``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traces.errors import InputError
from traces.readers import json_list, jsonl
from traces.readers.columns import ColumnMap
from traces.readers.draft import Draft, Fault
from traces.readers.source import Source

KEYS = ("conversations", "messages")
ANSWERS = ("gpt", "assistant", "chatgpt", "bard", "bing", "model")


def matches(source: Source) -> bool:
    """The first entry, or the object on the first line, holds a list of messages."""
    first = source.first_object
    return any(isinstance(first.get(key), list) for key in KEYS)


def read(source: Source, columns: Mapping[str, str] | None) -> Draft:
    """One row an answer, with its conversation as the session; lengths are for a tokenizer to count.

    Raises:
        InputError: the file holds no answer, or a mapping is given, which this format does not need.
    """
    if columns:
        raise InputError("format sharegpt has fixed columns; leave out --columns")
    listed = source.is_list
    found: dict[str, list[Any]] = {name: [] for name in ("session", "turn", "prompt", "response", "id")}
    places: list[int] = []
    faults: list[Fault] = []
    entries = json_list.parse_entries(source) if listed else jsonl.parse_lines(source)
    for session, (place, entry) in enumerate(entries):
        if isinstance(entry, Fault):
            faults.append(entry)
            continue
        try:
            turns = list(_turns(entry))
        except InputError as error:
            faults.append(Fault(place, None, None, str(error)))
            continue
        name = entry.get("id", entry.get("uid"))
        for turn, (said, answer) in enumerate(turns):
            places.append(place)
            for key, value in zip(found, (session, turn, said, answer, name), strict=True):
                found[key].append(value)
    if not places:
        what = (
            f"{'entry' if listed else 'line'} {faults[0].line} {faults[0].reason}" if faults else "no answer"
        )
        raise InputError(f"{source.name} holds no conversation with an answer ({what})")
    frame = pl.DataFrame(
        found, schema_overrides={"id": pl.Object, "prompt": pl.String, "response": pl.String}
    )
    return Draft(
        source.name,
        _with_ids(frame),
        ColumnMap({"request_id": "id", "session_id": "session", "prompt": "prompt", "response": "response"}),
        places.__getitem__,
        place="entry" if listed else "line",
        faults=tuple(faults),
        history=True,
    )


def _turns(entry: dict[str, Any]) -> Iterator[tuple[str | None, str]]:
    """(what was said since the last answer, the answer) of each answer."""
    messages = next((entry[key] for key in KEYS if key in entry), None)
    if not isinstance(messages, list):
        raise InputError("has no list of conversations or messages")
    said: list[str] = []
    for message in messages:
        role, text = _message(message)
        if role in ANSWERS:
            yield "\n\n".join(said) if said else None, text
            said = []
        else:
            said.append(text)


def _message(message: Any) -> tuple[str, str]:
    if not isinstance(message, dict):
        raise InputError("has a message that is no object")
    role = message.get("from", message.get("role"))
    content = message.get("value", message.get("content"))
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n\n".join(part for part in parts if isinstance(part, str))
    elif isinstance(content, dict):
        content = next((text for text in content.values() if isinstance(text, str)), None)
    if not isinstance(role, str) or not isinstance(content, str):
        raise InputError("has a message without a role or a text")
    return role.lower(), content


def _with_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Ids of the form conversation/turn, or numbers where a conversation has none or shares its own."""
    names = frame["id"].to_list()
    turns = frame["turn"].to_list()
    ids = [f"{name}/{turn}" for name, turn in zip(names, turns, strict=True)]
    usable = all(isinstance(name, str | int) for name in names) and len(set(ids)) == len(ids)
    return frame.with_columns(pl.Series("id", ids if usable else [str(i) for i in range(len(ids))]))
