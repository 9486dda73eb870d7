"""From text to object: ``name,key=value`` or a person's own ``file.py:Class,key=value``, and back.

Policies, routers, batch forms and latency models are all named this way, on the command line and in
the settings that a result carries.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.util
import inspect
import sys
import traceback
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.errors import InputError


def load(spec: str, kind: str, classes: Mapping[str, Any], aliases: Mapping[str, str] | None = None) -> Any:
    """Make the object that ``spec`` names.

    Args:
        spec: ``name``, ``name,key=value,...`` or ``path/file.py:Class,key=value,...``.
        kind: what it is, for messages ("policy").
        classes: short name -> class.
        aliases: short name -> spec, whose values the rest of ``spec`` may override.

    Raises:
        InputError: unknown name (with the nearest ones), unknown or ill-typed key, or a file that
            is missing, fails to load, or has no such class.
    """
    name, _, rest = spec.strip().partition(",")
    path, colon, attribute = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _make(_from_file(Path(path), attribute, kind), _pairs(rest, spec, kind), spec, kind)
    aliases = aliases or {}
    pairs = _pairs(rest, spec, kind)
    if name in aliases:
        name, _, preset = aliases[name].partition(",")
        pairs = _pairs(preset, spec, kind) | pairs
    if name not in classes:
        # Only the well-known predictors have a policy of their name.
        ranked = f", shortest,predictor={name} for a predictor's order" if "shortest" in classes else ""
        raise InputError(f"{unknown(name, [*classes, *aliases], kind)}{ranked}, or your own as file.py:Class")
    return _make(classes[name], pairs, spec, kind)


def spec_of(thing: Any, classes: Mapping[str, Any]) -> str:
    """The text from which `load` makes ``thing`` again (as far as its settings are dataclass fields)."""
    names = {cls: name for name, cls in classes.items()}
    cls = type(thing)
    if cls in names:
        name = names[cls]
    else:
        named = thing if inspect.isfunction(thing) else cls
        try:
            name = f"{inspect.getfile(named)}:{named.__qualname__}"
        except (OSError, TypeError):  # made at a prompt, so there is no file to make it again from
            name = named.__qualname__
    settings = {
        key: spec_of(value, classes).replace(",", "+") if dataclasses.is_dataclass(value) else value
        for key, value in settings_of(thing).items()
    }
    return ",".join([name, *(f"{key}={value}" for key, value in settings.items())])


def settings_of(thing: Any) -> dict[str, Any]:
    """The fields of a dataclass object that differ from their defaults."""
    if not dataclasses.is_dataclass(thing):
        return {}
    values = {field.name: (getattr(thing, field.name), field.default) for field in dataclasses.fields(thing)}
    return {name: value for name, (value, default) in values.items() if value != default}


def unknown(name: str, known: Sequence[str], kind: str) -> str:
    """The sentence for a name that is not among the known ones, with the nearest of them."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"unknown {kind} {name!r}: {hint}known are {', '.join(known)}"


def defined_at(thing: Any) -> str:
    """``file:line`` of a callable object's code."""
    code = _code(thing)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else type(thing).__name__


def raised_at(error: Exception, thing: Any) -> str:
    """``file:line`` of the last line that ran in the callable's own file when it raised, or of all lines."""
    frames = traceback.extract_tb(error.__traceback__)
    code = _code(thing)
    own = [frame for frame in frames if code and frame.filename == code.co_filename]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _code(thing: Any) -> Any:
    call = thing if inspect.isfunction(thing) else type(thing).__call__
    return getattr(call, "__code__", None)


def _pairs(text: str, spec: str, kind: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise InputError(f"{kind} {spec!r}: {part!r} is not of the form key=value")
        if key in pairs:
            raise InputError(f"{kind} {spec!r}: {key} is given twice")
        pairs[key] = value
    return pairs


def _make(made_by: Any, pairs: dict[str, str], spec: str, kind: str) -> Any:
    if inspect.isfunction(made_by):
        if pairs:
            raise InputError(
                f"{kind} {spec!r}: a function takes no settings; write a dataclass with __call__"
            )
        return made_by
    parameters = inspect.signature(made_by).parameters
    types = typing.get_type_hints(made_by if dataclasses.is_dataclass(made_by) else made_by.__init__)
    for key in pairs:
        if key not in parameters:
            raise InputError(
                f"{kind} {spec!r}: no setting {key!r}; it has: {', '.join(parameters) or 'none'}"
            )
    missing = [
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and key not in pairs
    ]
    if missing:
        raise InputError(f"{kind} {spec!r} needs a value for {missing[0]}: write {spec},{missing[0]}=...")
    values = {key: _convert(value, types.get(key), f"{kind} {spec!r}: {key}") for key, value in pairs.items()}
    try:
        return made_by(**values)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{kind} {spec!r} cannot be made: {type(error).__name__}: {error}") from error


def _convert(text: str, wanted: Any, where: str) -> Any:
    """``text`` as the annotated type, the first that fits of a union; unannotated: a number, else text."""
    options = typing.get_args(wanted) or (wanted,) if wanted not in (None, Any) else (int, float, str)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        if option is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if option in (int, float):
            try:
                return option(text)
            except ValueError:
                continue
        if option is str or (isinstance(option, str) and option == text):
            return text
    names = " or ".join(getattr(option, "__name__", repr(option)) for option in options)
    raise InputError(f"{where} = {text!r} is not {names}")


def _from_file(path: Path, attribute: str, kind: str) -> Any:
    if not path.is_file():
        raise InputError(f"{kind} file {path} does not exist")
    # The name differs by place, so two files of one name do not become one module.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    found = importlib.util.spec_from_file_location(f"estp_plugin_{path.stem}_{digest}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    # dataclasses look their module up by name.
    sys.modules[found.name] = module
    try:
        found.loader.exec_module(module)
    except Exception as error:
        line = error.lineno if isinstance(error, SyntaxError) else _line_in(path, error)
        raise InputError(f"{kind} file {path}:{line} raised {type(error).__name__}: {error}") from error
    made_by = getattr(module, attribute, None)
    if made_by is None or not callable(made_by):
        mine = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        ]
        raise InputError(
            f"{kind} file {path} has no class {attribute!r}; it has: {', '.join(mine) or 'none'}"
        )
    if inspect.isclass(made_by) and "__call__" not in dir(made_by):
        raise InputError(f"{kind} {path}:{attribute} has no __call__ method, which is what a {kind} is")
    return made_by


def _line_in(path: Path, error: Exception) -> Any:
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return lines[-1] if lines else "?"
