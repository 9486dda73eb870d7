"""What a sweep runs: settings that hold everywhere, and a grid of those that vary, as single cells."""

from __future__ import annotations

import difflib
import itertools
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any

from experiments.compare import Setup
from experiments.options import Load, Requests, Server
from sim.latency import LATENCIES
from sim.metrics import parse_goodput
from sim.plugins import load
from sim.policies import ALIASES, POLICIES
from sim.routers import ROUTERS
from traces.errors import InputError

DEFAULT_REPLICATIONS = 5
# What `estp compare` calls its options, without the dashes.
SETTINGS: dict[str, Any] = {"policy": str} | {
    name: hint for group in (Requests, Load, Server) for name, hint in typing.get_type_hints(group).items()
}
# Settings whose values are a name with its own settings behind commas.
SPECS = ("policy", "latency", "router", "form")
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Cell:
    """One simulation.

    Attributes:
        varied: the settings that tell it from the other cells, policy and seed always among them.
        requests, load, server: its options, as `estp compare` groups them.
        policy, seed: of this run.
    """

    varied: Mapping[str, Any]
    requests: Requests
    load: Load
    server: Server
    policy: str
    seed: int

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.varied.items())

    def setup(self) -> Setup:
        """The run as a comparison of one policy on one seed.

        Raises:
            InputError: settings that contradict each other.
        """
        arrivals, number = self.load.process(), self.requests.num_prompts
        return Setup((self.policy,), (self.seed,), arrivals, number, self.server.arguments())


@dataclass(frozen=True)
class Plan:
    """A sweep: the product of the grid's axes, each with its replications.

    Attributes:
        settings: setting -> value, for all cells. Settings are the options of `estp compare`
            (``policy``, ``trace``, ``request_rate``, ``batch_size``, ``latency``, ``seed``, ...).
        grid: axis -> values. An axis is a setting, or has any name and values that are mappings of
            settings which go together, such as ``{"batching": "static", "batch_size": 8}``.
        source: what messages call it.
        lines: place in the file -> line, for messages; a place is a path of keys and indices.

    Raises:
        InputError: an unknown or repeated setting, or a value that it cannot have.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    source: str = "the sweep"
    lines: Mapping[Place, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = {name: self._checked(name, value, (name,)) for name, value in self.settings.items()}
        object.__setattr__(self, "settings", settings)
        object.__setattr__(self, "grid", {axis: self._axis(axis, self.grid[axis]) for axis in self.grid})
        set_by: dict[str, str] = dict.fromkeys(settings, "the settings of all cells")
        for axis, values in self.grid.items():
            for name in dict.fromkeys(name for value in values for name in value):
                if name in set_by:
                    where = self._where(("grid", axis))
                    raise InputError(f"{where}: {name} is set by {set_by[name]} too; keep one of them")
                set_by[name] = f"the axis {axis}"
        if "policy" not in set_by:
            raise InputError(f"{self.source} names no policy; add a line such as policy: fcfs")

    def cells(self) -> list[Cell]:
        """Every cell, in the order in which the grid lists them, the seed varying fastest.

        Raises:
            InputError: settings of a cell that contradict each other, or two cells that are one.
        """
        names = self.varied()
        cells: list[Cell] = []
        seen: set[tuple[Any, ...]] = set()
        for choice in itertools.product(*self.grid.values()):
            chosen = {name: value for part in choice for name, value in part.items()}
            for cell in self._replications({**self.settings, **chosen}, names):
                same = (cell.requests, cell.load.process(), cell.server, cell.policy, cell.seed)
                if same in seen:
                    raise InputError(
                        f"{self.source}: the cell {cell} comes twice; a value is in the grid twice"
                    )
                seen.add(same)
                cells.append(cell)
        return cells

    def varied(self) -> list[str]:
        """The settings that the axes set, then the policy and the seed: the columns that name a cell."""
        found = [name for values in self.grid.values() for value in values for name in value]
        return [*dict.fromkeys([*(name for name in found if name != "seed"), "policy"]), "seed"]

    def _replications(self, chosen: dict[str, Any], names: Sequence[str]) -> Iterator[Cell]:
        requests: Requests = _group(Requests, chosen)
        load: Load = _group(Load, chosen)
        server: Server = _group(Server, chosen)
        policy = chosen["policy"]
        try:
            # A grid that lists seeds has said how often each run is repeated.
            seeds = load.seeds(1 if "seed" in self._on_axes() else DEFAULT_REPLICATIONS)
            Setup((policy,), seeds, load.process(), requests.num_prompts, server.arguments())
        except InputError as error:
            about = ", ".join(f"{name}={chosen[name]}" for name in names if name in chosen)
            raise InputError(f"{self.source}, where {about}: {error}") from error
        for seed in seeds:
            varied = {name: _shown(chosen.get(name)) for name in names}
            yield Cell({**varied, "seed": seed}, requests, load, server, policy, seed)

    def _on_axes(self) -> set[str]:
        return {name for values in self.grid.values() for value in values for name in value}

    def _axis(self, axis: str, values: Any) -> list[dict[str, Any]]:
        place: Place = ("grid", axis)
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"{self._where(place)}: the axis {axis} needs a list of values, as in [1, 2, 4]")
        for i, value in enumerate(values):
            if axis in SPECS and re.fullmatch(r"\w+=[^,]*", str(value)):
                raise InputError(
                    f"{self._where((*place, i))}: {value} is no {axis}; in a list, quote a value that has commas"
                )
        checked = []
        for i, value in enumerate(values):
            if not isinstance(value, Mapping) or axis == "columns":
                checked.append({axis: self._checked(axis, value, (*place, i))})
                continue
            if not value:
                raise InputError(f"{self._where((*place, i))}: the axis {axis} has an empty value")
            checked.append({name: self._checked(name, value[name], (*place, i, name)) for name in value})
        return checked

    def _checked(self, name: str, value: Any, place: Place) -> Any:
        where = self._where(place)
        if name not in SETTINGS:
            near = difflib.get_close_matches(str(name), [*SETTINGS, "grid"], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(SETTINGS)}"
            raise InputError(f"{where}: no setting is called {name!r}; {hint}")
        try:
            converted = _convert(name, value, SETTINGS[name])
            _resolve(name, converted)
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
        return converted

    def _where(self, place: Place) -> str:
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.source}, line {self.lines[place]}" if place else self.source


def _group(kind: Any, chosen: Mapping[str, Any]) -> Any:
    return kind(**{one.name: chosen[one.name] for one in fields(kind) if one.name in chosen})


def _convert(name: str, value: Any, hint: Any) -> Any:
    """The value as its option's type; 1 is a float, and a text may be a number (YAML reads 1e-3 as text)."""
    options = [option for option in typing.get_args(hint) if option is not NoneType]
    if typing.get_origin(hint) is tuple:
        return _texts(name, value)
    if typing.get_origin(hint) is typing.Literal or (
        options and typing.get_origin(options[0]) is typing.Literal
    ):
        literals = typing.get_args(hint if typing.get_origin(hint) is typing.Literal else options[0])
        if value in literals:
            return value
        near = difflib.get_close_matches(str(value), [str(one) for one in literals], n=1, cutoff=0.5)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"{name} is {value!r}; {meant}it is one of {', '.join(map(str, literals))}")
    kind = options[0] if options else hint
    if kind is float:
        return _number(name, value)
    if isinstance(value, bool) == (kind is bool) and isinstance(value, kind):
        return value
    needed = {int: "a whole number", bool: "true or false", str: "a text"}[kind]
    raise InputError(f"{name} is {value!r}; it must be {needed}")


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{name} is {value!r}; it must be a number")


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return tuple(f"{key}={column}" for key, column in value.items())
    values = value.split() if isinstance(value, str) and name != "estimates" else value
    values = [values] if isinstance(values, str) else values
    if not isinstance(values, Sequence) or not all(isinstance(one, str) for one in values):
        raise InputError(f"{name} is {value!r}; it must be a text or a list of texts")
    return tuple(values)


def _resolve(name: str, value: Any) -> None:
    """See that a name stands for something, before any cell runs."""
    if name == "policy":
        load(value, "policy", POLICIES, ALIASES)
    elif name == "latency":
        load(value, "latency model", LATENCIES)
    elif name == "router":
        load(value, "router", ROUTERS)
    elif name == "goodput" and value:
        parse_goodput(" ".join(value))
    elif name == "trace" and value == "-":
        raise InputError("a sweep cannot read standard input, which is there only once; name a file")


def _shown(value: Any) -> Any:
    return " ".join(value) if isinstance(value, tuple) else value
