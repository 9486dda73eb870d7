"""One-line specifications: ``name,key=value,...`` for a part, and parts as ``key=part`` between blanks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from traces.errors import InputError

T = TypeVar("T")


def parse(text: str, kinds: Mapping[str, type[T]], what: str) -> T:
    """A dataclass of ``kinds`` from ``name,key=value``; ``what`` is what errors call it.

    Raises:
        InputError: no such name or key, a value of the wrong kind, or a key that is needed is missing.
    """
    name, *pairs = text.split(",")
    if name not in kinds:
        raise InputError(f"{what}: there is no {name!r}{_hint(name, list(kinds))}")
    kind: Any = kinds[name]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{what}: {pair!r} in {text!r} is not of the form key=value")
        if key not in fields:
            raise InputError(f"{what}: {name} has no {key!r}{_hint(key, list(fields))}")
        given[key] = _value(value, str(fields[key].type), f"{what}: {key} of {name}")
    missing = [
        key for key, f in fields.items() if f.default is dataclasses.MISSING and key not in given
    ]  # fmt: skip
    if missing:
        raise InputError(f"{what}: {name} needs {missing[0]}, as in {name},{missing[0]}=VALUE")
    made: T = kind(**given)
    return made


def spelled(part: Any, kinds: Mapping[str, type[Any]]) -> str:
    """The text that ``parse`` turns into this part; what is as by default is left out."""
    name = next(name for name, kind in kinds.items() if type(part) is kind)
    pairs = [
        f"{field.name}={_text(getattr(part, field.name))}"
        for field in dataclasses.fields(part)
        if getattr(part, field.name) != field.default
    ]
    return ",".join([name, *pairs])


def positive(part: Any, *names: str) -> None:
    """Check that these fields are above 0 and finite.

    Raises:
        InputError: one is not.
    """
    for name in names:
        value = getattr(part, name)
        if not 0 < value < float("inf"):
            kind = type(part).__name__.lower()
            raise InputError(f"{name} of {kind} is {value:g}; it must be above 0 and finite")


def _value(text: str, kind: str, what: str) -> Any:
    if kind.startswith("str"):
        return text
    try:
        return int(text) if kind.startswith("int") else float(text)
    except ValueError:
        raise InputError(
            f"{what} is {text!r}, which is no {'whole ' * kind.startswith('int')}number"
        ) from None


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _hint(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"
