"""What is read back from disk: values of JSON, each as it must be, and files that an earlier run left.

Whatever is otherwise is an InputError that names it and what was found.

Python's `json` also reads NaN, infinities, numbers of any size and halves of surrogate pairs; none of them is
taken here.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from traces.errors import InputError

Loaded = TypeVar("Loaded")


def text(value: Any, what: str) -> str:
    """A string that is not empty and can be written as UTF-8."""
    if not isinstance(value, str) or not value or not _encodable(value):
        raise InputError(f"{what} must be some text, not {shown(value)}")
    return value


def number(value: Any, what: str) -> float:
    """A finite number."""
    try:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int beyond every float
        fine = False
    if not fine:
        raise InputError(f"{what} must be a finite number, not {shown(value)}")
    return float(value)


def whole(value: Any, what: str, least: int = 0) -> int:
    """An integer of at least `least`, and no larger than 64 bits hold."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        raise InputError(f"{what} must be a whole number of at least {least}, not {shown(value)}")
    return value


def items(value: Any, what: str) -> list[Any]:
    """A list (or the tuple that it was before it was stored)."""
    if not isinstance(value, list | tuple):
        raise InputError(f"{what} must be a list, not {shown(value)}")
    return list(value)


def mapping(value: Any, what: str) -> dict[str, Any]:
    """An object of named values."""
    if not isinstance(value, dict):
        raise InputError(f"{what} must hold named values, not {shown(value)}")
    return value


def named(value: Any, what: str, *keys: str) -> list[Any]:
    """The values of these keys of an object, which must have them."""
    found = mapping(value, what)
    for key in keys:
        if key not in found:
            raise InputError(f"{what} has no {key!r}")
    return [found[key] for key in keys]


def finished(
    file: Path, load: Callable[[Path], Loaded], remedy: str = "delete it, and it is made anew"
) -> Loaded:
    """`load(file)` of a file that an earlier run finished. Raises InputError with the remedy when it is damaged."""
    try:
        return load(file)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} is damaged ({reason}); {remedy}") from error


def job_of(file: Path) -> dict[str, Any]:
    """What a folder of unfinished work says it belongs to."""
    return finished(
        file, lambda one: mapping(json.loads(one.read_text()), "it"), f"delete {file.parent} to start anew"
    )


def shown(value: Any) -> str:
    """The value as JSON, cut to a readable length."""
    said = json.dumps(value, default=str)
    return said if len(said) <= 60 else f"{said[:57]}..."


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
