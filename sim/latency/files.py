"""Latency files: measured steps, the models fitted to them, and what they were measured on. JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.latency.affine import Affine
from sim.latency.fitting import FitError, Points
from sim.latency.protocol import Latency
from sim.latency.table import Table
from traces.errors import InputError
from traces.files import atomic_path

SCHEMA = "estp-latency-1"
MODELS = ("affine", "table")


@dataclass(frozen=True, eq=False)
class LatencyFile:
    """What `estp calibrate` found.

    Attributes:
        about: what was measured and on what: engine, model, dtype, machine, versions, date (ISO), and
            notes, a list of sentences such as that the machine was noisy. No host names or paths.
        points: all measured steps, those held out of the fit among them.
        affine: the affine model. table: an interpolated grid; None where the points make none.
        errors: by model name, how far it is off on the points that its fit did not see.
        use: the model that is used unless another is asked for: "affine" or "table".
    """

    about: dict[str, Any]
    points: Points
    affine: Affine
    table: Table | None
    errors: dict[str, FitError]
    use: str = "affine"

    def latency(self, use: str | None = None) -> Latency:
        """The model of that name; `use` of the file if None.

        Raises:
            InputError: the file has no such model.
        """
        name = self.use if use is None else use
        model: Latency | None = getattr(self, name) if name in MODELS else None
        if model is None:
            held = [name for name in MODELS if getattr(self, name) is not None]
            raise InputError(f"latency file: there is no model {name!r}; it has {', '.join(held)}")
        return model

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        content = {
            "schema": SCHEMA,
            "about": self.about,
            "use": self.use,
            "affine": dataclasses.asdict(self.affine),
            "table": None if self.table is None else dataclasses.asdict(self.table),
            "errors_on_held_out_points": {name: dataclasses.asdict(e) for name, e in self.errors.items()},
            "points": {name: np.round(values, 9).tolist() for name, values in vars(self.points).items()},
        }
        with atomic_path(path) as temporary:
            temporary.write_text(_compact(content))


def read_latency_file(path: str | Path) -> LatencyFile:
    """Read what `LatencyFile.write` wrote.

    Raises:
        InputError: it cannot be read, or is not of this schema.
    """
    try:
        content = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"latency file {path} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(f"latency file {path} is not of the schema {SCHEMA}: make it with estp calibrate")
    try:
        return LatencyFile(
            about=content["about"],
            points=Points(**content["points"]),
            affine=Affine(**content["affine"]),
            table=None if content["table"] is None else Table(**content["table"]),
            errors={name: FitError(**e) for name, e in content["errors_on_held_out_points"].items()},
            use=content["use"],
        )
    except InputError as error:
        raise InputError(f"latency file {path}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"latency file {path} is damaged: {type(error).__name__}: {error}") from error


def latency_from(spec: str) -> Latency | None:
    """The model of ``file=PATH`` or ``file=PATH,use=table``; None for any other spec.

    Raises:
        InputError: see `read_latency_file`, or another key than use.
    """
    if not spec.strip().startswith("file="):
        return None
    path, *pairs = spec.strip().removeprefix("file=").split(",")
    use: str | None = None
    for pair in pairs:
        key, _, use = pair.partition("=")
        if key.strip() != "use":
            raise InputError(f"latency model {spec!r}: {pair!r} is not use=affine or use=table")
    return read_latency_file(path).latency(use)


def _compact(content: dict[str, Any]) -> str:
    """JSON with one line for each list of numbers."""
    lines = []
    for key, value in content.items():
        if isinstance(value, dict) and key != "about":
            inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            lines.append(f"  {json.dumps(key)}: {{\n{inner}\n  }}")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
