"""Running a sweep: every cell once, each written as it ends, so that a killed sweep goes on where it was."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from experiments import parallel
from experiments.options import Requests
from experiments.sweep.cells import Inputs, name_of, own_files, read_cell, run_cell, task_of, write_cell
from experiments.sweep.plan import Cell, Plan
from experiments.sweep.table import CSV, PARQUET, results_table, write_results
from traces.errors import InputError
from traces.files import atomic_path

SUMMARY, CELLS = "sweep.json", "cells"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Swept:
    """What a sweep has come to.

    Attributes:
        table: one row a cell, in the order of the grid: what varied, then the metrics of
            `sim.metrics`, then ``error``. None while cells of other shards are missing.
        failed: cell and sentence of those that could not be simulated.
        missing: how many cells of other shards are still to be run.
    """

    table: pl.DataFrame | None
    failed: Sequence[tuple[Cell, str]]
    missing: int


def sweep(
    plan: Plan,
    out: str | Path,
    *,
    backend: parallel.Backend = "loky",
    workers: int | None = None,
    address: str | None = None,
    shard: tuple[int, int] = (1, 1),
    progress: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> Swept:
    """Run the cells of a plan that are not in ``out`` yet, and write the table when all are there.

    The same plan gives the same bytes on any backend and number of workers.

    Args:
        plan: what to run.
        out: folder for ``cells/`` (a small file a cell), ``sweep.json``, ``results.parquet`` and
            ``results.csv``; the same folder again goes on where an earlier sweep stopped.
        backend, workers, address: where it runs (`experiments.parallel.run`).
        shard: (i, n), from (1, n) to (n, n): run only every n-th cell, for batch queues. Shards
            write to one folder, and the last to end writes the table.
        progress: show a bar on standard error.
        say: is told what a person should know: cells found, cells that failed.

    Raises:
        InputError: the plan, an input or a setting is wrong. What fails in a single cell is in ``failed``.
    """
    which, of = shard
    if not 1 <= which <= of:
        raise InputError(f"shard {which}/{of} does not exist; they go from 1/{of} to {of}/{of}")
    folder = Path(out)
    cells = plan.cells()
    digests = _digests(cells)
    paths = [folder / CELLS / f"{name_of(cell, digests)}.json" for cell in cells]
    inputs = {source: _read(source, digests) for source in dict.fromkeys(map(_source, cells))}
    _prepare(folder, plan, inputs, digests, len(cells))

    mine = range(which - 1, len(cells), of)
    found = {i: read_cell(paths[i]) for i in mine}
    todo = [i for i in mine if "metrics" not in (found[i] or {})]
    if len(todo) < len(mine):
        done, all_mine = len(mine) - len(todo), f"{len(mine)} cells{_of_shard(shard)}"
        say(f"{done} of {all_mine} are in {folder} already; {len(todo)} to go")
    shared = {one.digest: one for one in inputs.values()}
    tasks = [(inputs[_source(cells[i])].digest, task_of(cells[i])) for i in todo]
    results = parallel.run(run_cell, shared, tasks, backend=backend, workers=workers, address=address)
    with _bar(len(mine), len(mine) - len(todo), progress) as bar:
        for position, result in results:
            i = todo[position]
            outcome = {"error": result.reason} if isinstance(result, parallel.Lost) else result
            write_cell(paths[i], cells[i], outcome)
            if "error" in outcome:
                bar.clear()
                say(f"cell {cells[i]} failed: {(read_cell(paths[i]) or outcome)['error']}")
            bar.update()
    return _collect(folder, plan, cells, paths, mine)


def parse_shard(text: str) -> tuple[int, int]:
    """``2/8`` as (2, 8). Raises InputError where it is no such thing."""
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise InputError(f"--shard {text!r} is not of the form i/n, with i from 1 to n, such as 2/8")
    return int(found[1]), int(found[2])


def _collect(folder: Path, plan: Plan, cells: list[Cell], paths: list[Path], mine: range) -> Swept:
    outcomes = [read_cell(path) for path in paths]
    there = [outcome for outcome in outcomes if outcome is not None]
    failed = [
        (cell, str(outcome["error"]))
        for i, (cell, outcome) in enumerate(zip(cells, outcomes, strict=True))
        if outcome and "error" in outcome and (i in mine or len(there) == len(cells))
    ]
    if len(there) < len(cells):
        return Swept(None, failed, len(cells) - len(there))
    table = results_table(plan, cells, there)
    write_results(table, folder)
    return Swept(table, failed, 0)


def _source(cell: Cell) -> Requests:
    """Which files the cell reads, and how."""
    return dataclasses.replace(cell.requests, num_prompts=None)


def _digests(cells: Sequence[Cell]) -> dict[str, str]:
    from experiments.report_files import fingerprints

    named = [path for cell in cells for path in (cell.requests.trace, *cell.requests.estimates)]
    if "" in named:
        raise InputError("the sweep names no trace; add a line such as trace: requests.parquet")
    files = dict.fromkeys([*named, *(path for cell in cells for path in own_files(cell))])
    return {entry["path"]: entry["sha256"] for entry in fingerprints([*files])}


def _read(source: Requests, digests: Mapping[str, str]) -> Inputs:
    trace, estimates = source.read_trace(), source.read_estimates()
    aligned = {name: one.take(one.align(trace)) for name, one in estimates.items()}
    how = {
        **dataclasses.asdict(source),
        "files": [digests[path] for path in (source.trace, *source.estimates)],
    }
    digest = hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()
    return Inputs(digest, trace.replace(prompt=None, response=None), aligned)


def _prepare(
    folder: Path, plan: Plan, inputs: Mapping[Requests, Inputs], digests: Mapping[str, str], count: int
) -> None:
    from experiments.report_files import check_folder

    check_folder(folder)
    try:
        (folder / CELLS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
    traces = {source.trace: one.trace for source, one in inputs.items()}
    summary = {
        "schema_version": SCHEMA_VERSION,
        "kind": "sweep",
        "source": plan.source,
        "settings": plan.settings,
        "grid": plan.grid,
        "cells": count,
        "inputs": [
            {"path": path, "sha256": digest, **({"requests": len(traces[path])} if path in traces else {})}
            for path, digest in digests.items()
        ],
    }
    with atomic_path(folder / SUMMARY) as temporary:
        temporary.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _of_shard(shard: tuple[int, int]) -> str:
    return "" if shard == (1, 1) else f" of shard {shard[0]}/{shard[1]}"


def _bar(total: int, done: int, progress: bool) -> Any:
    from tqdm import tqdm

    return tqdm(
        total=total,
        initial=done,
        desc="sweeping",
        unit="cell",
        ncols=min(100, shutil.get_terminal_size().columns),  # 80 where a terminal tells no width
        disable=not progress,
        file=sys.stderr,
        leave=False,
    )


__all__ = ["CSV", "PARQUET", "Swept", "parse_shard", "sweep"]
