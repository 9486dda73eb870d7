"""Which requests share KV blocks: the names that a trace gives to the beginnings of its prompts.

A trace may tell it in one of three ways, taken in this order:

* ``hash_ids`` (Mooncake): one id for each ``g`` tokens of the prompt, the last for what is left; an id
  stands for these tokens and all before them. ``g`` is ``metadata["hash_block_tokens"]``, or else the
  power of two that explains how many ids every prompt has.
* ``prefix_id`` and ``prefix_tokens``: the first tokens of the prompt are the first of that prefix.
* ``session_id``: the prompt of a turn begins with the prompt and the answer of the turn before, where
  it is long enough for that; else it begins anew.

A block of the KV cache is named by what its last token is part of, so a block that a shared part
fills only partly is the request's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.kv import Chain
from traces.errors import InputError
from traces.schema import Trace

Chains = Callable[[int], Chain]
"""From a row of the trace to the families of names of that request's first full blocks."""


def chains(trace: Trace, block_size: int) -> Chains | None:
    """Who shares what in a trace; None if it tells of no sharing.

    Raises:
        InputError: the trace's hash ids fit no block size.
    """
    if trace.hash_ids is not None:
        return _hashed(trace, block_size)
    if trace.prefix_id is not None and trace.prefix_tokens is not None:
        return _prefixed(trace, block_size)
    if trace.session_id is not None:
        return _sessions(trace, block_size)
    return None


def hash_block_tokens(trace: Trace) -> int:
    """Tokens a hash id stands for.

    Raises:
        InputError: the metadata's value is no whole number above 0, or there is none and no power of
            two explains the number of ids.
    """
    given: Any = trace.metadata.get("hash_block_tokens")
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise InputError(f"the trace's hash_block_tokens = {given!r} must be a whole number, at least 1")
        return given
    assert trace.hash_ids is not None
    ids = np.array([len(row) for row in trace.hash_ids])
    some = ids > 0
    for exponent in range(17):
        tokens = 1 << exponent
        if (-(-trace.prompt_tokens[some] // tokens) == ids[some]).all():
            return tokens
    raise InputError(
        "the trace has hash ids, but no power of two tokens an id explains how many each prompt has: put "
        "the right number into the trace's metadata as hash_block_tokens"
    )


def _hashed(trace: Trace, block_size: int) -> Chains:
    """Families are the paths of the tree of ids that nothing in this trace branches off: few, and long."""
    tokens, hash_ids, prompt_tokens = hash_block_tokens(trace), trace.hash_ids, trace.prompt_tokens.tolist()
    assert hash_ids is not None
    rows = np.concatenate(([0], np.cumsum([len(ids) for ids in hash_ids])))
    ids = np.concatenate([*hash_ids, np.empty(0, np.int64)])
    before = np.full(len(ids), -1)
    _, at, kind = np.unique(ids, return_index=True, return_inverse=True)
    before[1:] = kind[:-1]
    before[rows[:-1][rows[:-1] < len(ids)]] = -1
    if (before != before[at[kind]]).any():  # an id does not tell what was before it, so the path has to
        kind, before = _along_paths(ids.tolist(), before.tolist())
        _, at = np.unique(kind, return_index=True)
    parents = before[at]
    branches = np.bincount(parents[parents >= 0], minlength=len(at)) > 1
    starts = np.flatnonzero((before < 0) | branches[before])
    bounds = np.searchsorted(starts, rows).tolist()
    start, name, first = starts.tolist(), kind[starts].tolist(), rows.tolist()

    def chain(row: int) -> Chain:
        full = min(prompt_tokens[row], (first[row + 1] - first[row]) * tokens) // block_size
        named = []
        end = full
        for i in range(bounds[row + 1] - 1, bounds[row] - 1, -1):
            # A block belongs to the id that its last token is part of.
            begin = (start[i] - first[row]) * tokens // block_size
            if end > begin:
                named.append((name[i], end - begin))
                end = begin
        return named[::-1]

    return chain


def _along_paths(ids: list[int], before: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Name each id by all ids up to it: its number, and that of the one before it (-1: the first)."""
    numbers: dict[tuple[int, int], int] = {}
    kind: list[int] = []
    parents: list[int] = []
    for name, preceding in zip(ids, before, strict=True):
        parent = -1 if preceding < 0 else kind[-1]
        parents.append(parent)
        kind.append(numbers.setdefault((parent, name), len(numbers)))
    return np.array(kind), np.array(parents)


def _prefixed(trace: Trace, block_size: int) -> Chains:
    prefix_id, prefix_tokens = trace.prefix_id, trace.prefix_tokens
    assert prefix_id is not None
    assert prefix_tokens is not None

    def chain(row: int) -> Chain:
        blocks = int(min(prefix_tokens[row], trace.prompt_tokens[row])) // block_size
        return [(int(prefix_id[row]), blocks)] if blocks and prefix_id[row] >= 0 else []

    return chain


def _sessions(trace: Trace, block_size: int) -> Chains:
    session_id = trace.session_id
    assert session_id is not None
    before: dict[int, int] = {}
    starts = np.zeros(len(trace), np.int64)
    begun: dict[int, int] = {}
    for row, session in enumerate(session_id.tolist()):
        prompt, output = int(trace.prompt_tokens[row]), int(trace.output_tokens[row])
        if prompt < before.get(session, 0):
            begun[session] = begun.get(session, 0) + 1
        before[session] = prompt + output
        starts[row] = begun.get(session, 0)

    def chain(row: int) -> Chain:
        blocks = int(trace.prompt_tokens[row] + trace.output_tokens[row]) // block_size
        return [((int(session_id[row]), int(starts[row])), blocks)] if session_id[row] >= 0 else []

    return chain
