"""One cell of a sweep where it runs, and the small file that remembers its result."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments import compare
from experiments.options import Load, Server
from experiments.sweep.plan import Cell
from sim import simulate
from traces.errors import InputError
from traces.estimates import Estimates
from traces.files import atomic_path
from traces.schema import Trace

SCHEMA_VERSION = 1
OWN_FILE = re.compile(r"^([^,:]+\.py):")


@dataclass(frozen=True)
class Inputs:
    """What cells share.

    Attributes:
        digest: of the files it was read from, and of how they were read; names it.
        trace: without its texts.
        estimates: predictor -> estimates, in the order of the trace.
    """

    digest: str
    trace: Trace = field(compare=False)
    estimates: Mapping[str, Estimates] = field(compare=False)


@dataclass(frozen=True)
class Task:
    """What a worker has to know of a cell.

    Attributes:
        policy, seed, load, num_prompts, server: as in `Cell`; paths of a person's files are absolute,
            as a worker's folder may be another.
        code: digest of the code that the sweep was started with.
    """

    policy: str
    seed: int
    load: Load
    num_prompts: int | None
    server: Server
    code: str


def task_of(cell: Cell) -> Task:
    """What is sent to the worker that runs the cell."""
    server = dataclasses.replace(
        cell.server,
        router=_absolute(cell.server.router),
        form=cell.server.form and _absolute(cell.server.form),
        latency=_absolute(cell.server.latency),
    )
    number = cell.requests.num_prompts
    return Task(_absolute(cell.policy), cell.seed, cell.load, number, server, code_digest())


def run_cell(inputs: Inputs, task: Task) -> dict[str, Any]:
    """``{"metrics": ...}``, or ``{"error": sentence}`` where the cell cannot be simulated.

    The draws of a cell depend on its seed and load alone: all policies meet the same requests.
    """
    try:
        if task.code != code_digest():
            raise InputError(
                "this worker has another version of estp than the sweep was started with; install the same"
            )
        workload = _workload(inputs, task.load, task.num_prompts, task.seed)
        arguments = task.server.arguments()
        result = simulate(
            workload.trace, task.policy, estimates=workload.estimates, seed=task.seed, **arguments
        )
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:
        # Not a person's fault, but no reason to give up the other cells. The place goes with it.
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return {"error": f"{type(error).__name__} at {place} (a fault of estp): {error}"}
    return {"metrics": result.metrics}


@functools.lru_cache(maxsize=2)
def _workload(inputs: Inputs, load: Load, num_prompts: int | None, seed: int) -> compare.Workload:
    # Any policy will do: a workload does not depend on it.
    setup = compare.Setup(("fcfs",), (seed,), load.process(), num_prompts)
    return compare.make_workload(inputs.trace, inputs.estimates, setup, seed)


@functools.lru_cache(maxsize=1)
def code_digest() -> str:
    """Of everything a result depends on: another simulator, other results."""
    import sim
    import traces

    packages = (Path(str(package.__file__)).parent for package in (sim, traces))
    files = [path for package in packages for path in package.rglob("*.py")]
    own = [Path(__file__), Path(str(compare.__file__))]
    digest = hashlib.sha256()
    for path in sorted([*files, *own], key=lambda path: (path.parent.name, path.name)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def name_of(cell: Cell, inputs: Mapping[str, str]) -> str:
    """The name of the cell's file: a hash of its settings, its inputs' content and the code.

    Args:
        cell: the cell.
        inputs: path -> SHA-256 of every file that the cell reads.
    """
    requests = dataclasses.asdict(cell.requests)
    files = [cell.requests.trace, *cell.requests.estimates, *own_files(cell)]
    settings = {
        "requests": {key: value for key, value in requests.items() if key not in ("trace", "estimates")},
        "files": [inputs[path] for path in files],
        "load": {**dataclasses.asdict(cell.load), "seed": cell.seed, "replications": None},
        "server": dataclasses.asdict(cell.server),
        "policy": cell.policy,
        "code": code_digest(),
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:24]


def own_files(cell: Cell) -> list[str]:
    """Python files of the person's that the cell uses."""
    texts = (cell.policy, cell.server.router, cell.server.form or "", cell.server.latency)
    return [found[1] for text in texts if (found := OWN_FILE.match(text))]


def write_cell(path: Path, cell: Cell, outcome: Mapping[str, Any]) -> None:
    """Write a cell's outcome, all or nothing.

    Raises:
        InputError: the file cannot be written.
    """
    shown = {"schema_version": SCHEMA_VERSION, "cell": dict(cell.varied), **outcome}
    if "error" in outcome:
        # The task had absolute paths; the person wrote others.
        shown["error"] = _as_written(str(outcome["error"]), cell)
    if "metrics" in outcome:
        shown["metrics"] = {
            key: value if math.isfinite(value) else None for key, value in outcome["metrics"].items()
        }
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(shown, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_cell(path: Path) -> dict[str, Any] | None:
    """What `write_cell` wrote; None if it is not there or not whole."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    whole = isinstance(found, dict) and found.get("schema_version") == SCHEMA_VERSION
    return found if whole and ("metrics" in found or "error" in found) else None


def _absolute(text: str) -> str:
    found = OWN_FILE.match(text)
    return f"{Path(found[1]).absolute()}{text[found.end(1) :]}" if found else text


def _as_written(sentence: str, cell: Cell) -> str:
    for path in own_files(cell):
        sentence = sentence.replace(str(Path(path).absolute()), path)
    return sentence
