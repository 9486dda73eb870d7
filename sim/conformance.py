"""Replay decisions that were recorded from vLLM's own scheduler, and tell the first that differs.

A case is a dict of ``name``, ``limits``, ``requests`` and ``steps`` as ``tools/record_vllm_steps.py``
writes it: what the scheduler decided in each step, with arrivals given in steps, so that no clock
enters. The engine that replays it is the one that simulates; here every step lasts one virtual second.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.decoding import Sequence
from sim.engine import Engine
from sim.kv import Chain
from sim.plan import Limits
from traces.errors import InputError

Case = dict[str, Any]
Step = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """What a replay found.

    Attributes:
        identical, cases: how many cases agree in every step, of how many.
        steps: steps compared.
        lines: what to print: one a failing case, and the count.
    """

    identical: int
    cases: int
    steps: int
    lines: list[str]

    @property
    def exit_code(self) -> int:
        """0 if all cases are identical, else 1."""
        return 0 if self.identical == self.cases else 1


def run(paths: Iterable[str | Path], leap: bool = True) -> Report:
    """Replay every case of the files (JSON, gzipped or not) and compare all steps.

    Raises:
        InputError: a file is missing, is not such a file, or has no cases.
    """
    lines, identical, cases, steps = [], 0, 0, 0
    for path in paths:
        for case in read_cases(path):
            cases += 1
            steps += len(case["steps"])
            difference = first_difference(case, leap)
            if difference is None:
                identical += 1
            else:
                lines.append(f"{case.get('name', f'case {cases}')}: {difference}")
    lines.append(f"identical {identical} of {cases} ({steps} steps)")
    return Report(identical, cases, steps, lines)


def read_cases(path: str | Path) -> list[Case]:
    """The cases of one file.

    Raises:
        InputError: see `run`.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"recorded steps: there is no file {path}")
    try:
        data = path.read_bytes()
        cases = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"recorded steps: {path} is not JSON (plain or gzipped): {error}") from error
    if isinstance(cases, dict):
        cases = [cases]
    if not isinstance(cases, list) or not cases:
        raise InputError(f"recorded steps: {path} holds no list of cases")
    for i, case in enumerate(cases):
        for key in ("limits", "requests", "steps"):
            if not isinstance(case, dict) or key not in case:
                raise InputError(f"recorded steps: case {i} of {path} has no {key!r}")
    return cases


def first_difference(case: Case, leap: bool = True) -> str | None:
    """The first step in which the engine and the record differ, in words; None if there is none."""
    ours = replay(case, leap)
    for theirs in case["steps"]:
        step = next(ours, None)
        if step is None:
            return f"ours ended before step {theirs['step']}"
        for key in ("step", "tokens", "preempted", "finished"):
            expected = theirs[key]
            if key == "tokens":
                expected = {int(number): tokens for number, tokens in expected.items()}
            if step[key] != expected:
                return f"step {theirs['step']}, {key}: recorded {expected}, ours {step[key]}"
    extra = next(ours, None)
    return None if extra is None else f"ours goes on with step {extra['step']} after the record's last"


def replay(case: Case, leap: bool = True) -> Iterator[Step]:
    """What the engine decides on a case, step by step, in the format of the record.

    Steps in which nothing ran and nobody was preempted are left out, as in the record.
    """
    limits = case["limits"]
    machine = Engine(read_limits(limits))
    coming = sorted(case["requests"], key=lambda request: (request["arrival_step"], request["id"]))
    ids = [request["id"] for request in coming]
    clock = arrived = 0
    while True:
        while arrived < len(coming) and coming[arrived]["arrival_step"] <= clock:
            machine.add(_sequence(arrived, coming[arrived], limits))
            arrived += 1
        plan = machine.plan()
        if plan is None:
            if arrived == len(coming):
                return
            clock = max(clock + 1, coming[arrived]["arrival_step"])
            continue
        steps = plan.steps if leap else 1
        if arrived < len(coming):
            steps = min(steps, max(1, coming[arrived]["arrival_step"] - clock))
        tokens = {ids[sequence.number]: count for sequence, count in plan.chunks}
        tokens |= {ids[sequence.number]: 1 for sequence in machine.decoders()}
        preempted = sorted(ids[sequence.number] for sequence in plan.preempted)
        finished = sorted(ids[sequence.number] for sequence in machine.apply(steps)[1])
        for i in range(steps):
            if tokens or preempted:
                ends = finished if i == steps - 1 else []
                yield {"step": clock + i, "tokens": tokens, "preempted": preempted, "finished": ends}
        clock += steps


def read_limits(limits: dict[str, Any]) -> Limits:
    """The limits of a recorded case as the engine's own.

    Raises:
        InputError: one is missing, or none of ours.
    """
    values = dict(limits)
    try:
        values["priority"] = {"fcfs": False, "priority": True}[values.pop("policy")]
        return Limits(**values)
    except (KeyError, TypeError) as error:
        raise InputError(f"recorded steps: these limits cannot be read ({error}): {limits}") from error


def _sequence(number: int, request: dict[str, Any], limits: dict[str, Any]) -> Sequence:
    shared = request.get("prefix_tokens", 0) // limits["block_size"]
    chain: Chain = [(request["prefix_id"], shared)] if shared and limits.get("enable_prefix_caching") else []
    return Sequence(
        number, request["prompt_tokens"], request["output_tokens"], request.get("priority", 0), chain
    )
