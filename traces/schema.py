"""The trace: what was asked of a server, when, and how long each answer was."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traces.errors import InputError

UNITS = {
    "arrival_s": "seconds since the first arrival",
    "prompt_tokens": "tokens",
    "output_tokens": "tokens",
    "prefix_tokens": "tokens",
}
TEXT_COLUMNS = ("prompt", "response", "scenario")
NUMBER_COLUMNS: dict[str, type[np.generic]] = {
    "session_id": np.int64,
    "prefix_id": np.int64,
    "prefix_tokens": np.int32,
    "priority": np.float64,
}
OPTIONAL_COLUMNS = (*TEXT_COLUMNS, *NUMBER_COLUMNS, "hash_ids")
COLUMNS = ("request_id", "arrival_s", "prompt_tokens", "output_tokens", *OPTIONAL_COLUMNS)

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests as columns, arrays of one length n, in order of arrival.

    Attributes:
        request_id: (n,) int64, or object array of str; unique.
        arrival_s: (n,) float64, seconds since the first arrival; finite, >= 0, never falling.
        prompt_tokens: (n,) int32, at least 1.
        output_tokens: (n,) int32, at least 1: the length that the model really wrote. Only the
            engine and the oracle may read it.
        prompt, response, scenario: (n,) object arrays of str (None where unknown), or None.
        session_id: (n,) int64 (-1: in no session), or None.
        hash_ids: (n,) object array of (blocks,) int64 arrays naming the prompt's prefix blocks, or None.
        prefix_id: (n,) int64 naming a prompt prefix shared with others (-1: none), or None.
        prefix_tokens: (n,) int32, how many of the prompt's first tokens are that prefix, or None.
        priority: (n,) float64, smaller is more urgent (as in vLLM), or None.
        extra: other columns of the source, (n,) arrays by name.
        metadata: JSON-able facts about the trace (source, settings, what a reader dropped).

    Arrays that have the right type already are kept, not copied: whoever changes one in place changes the trace.

    Raises:
        InputError: a rule above is broken; the message names the request, its row and the value.
    """

    request_id: Array
    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    prompt: Array | None = None
    response: Array | None = None
    scenario: Array | None = None
    session_id: NDArray[np.int64] | None = None
    hash_ids: Array | None = None
    prefix_id: NDArray[np.int64] | None = None
    prefix_tokens: NDArray[np.int32] | None = None
    priority: NDArray[np.float64] | None = None
    extra: dict[str, Array] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ids = id_array(self.request_id)
        self._set("request_id", ids)
        self._set("arrival_s", _numbers("arrival_s", self.arrival_s, np.float64, ids))
        for name in ("prompt_tokens", "output_tokens"):
            self._set(name, _numbers(name, getattr(self, name), np.int32, ids, minimum=1))
        for name, dtype in NUMBER_COLUMNS.items():
            if getattr(self, name) is not None:
                minimum = 0 if name == "prefix_tokens" else None
                self._set(name, _numbers(name, getattr(self, name), dtype, ids, minimum=minimum))
        for name in TEXT_COLUMNS:
            if getattr(self, name) is not None:
                self._set(name, object_array(getattr(self, name)))
        if self.hash_ids is not None:
            self._set("hash_ids", object_array([np.asarray(row, np.int64) for row in self.hash_ids]))
        self._set("extra", {name: _plain(column) for name, column in self.extra.items()})
        for name in OPTIONAL_COLUMNS:
            _check_length(name, getattr(self, name), len(ids))
        for name, column in self.extra.items():
            if name in COLUMNS:
                raise InputError(f"extra column {name!r} has the name of a trace column; rename it")
            _check_length(name, column, len(ids))
        _check_arrivals(self.arrival_s, ids)
        _check_unique(ids)
        _check_prefixes(self, ids)

    def __len__(self) -> int:
        return len(self.request_id)

    def columns(self) -> dict[str, Array]:
        """The columns that are present, extra ones last, by name."""
        present = {name: getattr(self, name) for name in COLUMNS if getattr(self, name) is not None}
        return {**present, **self.extra}

    def take(self, indices: ArrayLike) -> Trace:
        """The requests at these rows (integers, or a boolean mask of length n), in the order given.

        Raises:
            InputError: the rows given are not in order of arrival, or one is given twice.
        """
        rows = np.asarray(indices)
        if rows.size == 0:
            rows = rows.astype(np.int64)
        changes: dict[str, Any] = {
            name: getattr(self, name)[rows] for name in COLUMNS if getattr(self, name) is not None
        }
        changes["extra"] = {name: column[rows] for name, column in self.extra.items()}
        return dataclasses.replace(self, **changes)

    def replace(self, **columns: Any) -> Trace:
        """A copy with these fields changed, checked like any other trace.

        Raises:
            InputError: a new column breaks a rule of the class.
        """
        return dataclasses.replace(self, **columns)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def id_array(ids: ArrayLike | Sequence[Any]) -> Array:
    """Request ids as (n,) int64, or as an object array of str.

    Raises:
        InputError: the ids are neither all whole numbers nor all strings.
    """
    values = np.asarray(ids)
    if values.ndim != 1:
        raise InputError(f"request_id is one column, but these ids have shape {values.shape}")
    if values.size == 0 or values.dtype.kind == "i":
        return np.require(values, np.int64, "W")
    if values.dtype.kind == "u" and values.max() <= np.iinfo(np.int64).max:
        return values.astype(np.int64)
    listed = list(ids)  # type: ignore[arg-type]
    if all(isinstance(value, str) for value in listed):
        return object_array([str(value) for value in listed])
    if all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in listed):
        try:
            return np.asarray(listed, dtype=np.int64)
        except OverflowError:
            raise InputError("a request id does not fit into 64 bits; give the ids as strings") from None
    found = next(v for v in listed if not isinstance(v, str))
    raise InputError(f"request ids are all whole numbers or all strings, but one is {found!r}")


def shown_id(ids: Array, row: int) -> str:
    """An id as the user wrote it: ``7``, ``'a'``, and not ``np.int64(7)``."""
    return repr(ids[row : row + 1].tolist()[0])


def object_array(values: Any) -> Array:
    """A one-dimensional object array, whatever the values are (nested sequences stay single objects)."""
    listed = list(values)
    array = np.empty(len(listed), dtype=object)
    array[:] = listed
    return array


def _plain(column: Any) -> Array:
    values = column if isinstance(column, np.ndarray) else np.asarray(column)
    return object_array(values.tolist()) if values.dtype.kind in "US" else values


def _where(ids: Array, row: int) -> str:
    return f"request {shown_id(ids, row)} (row {row})" if row < len(ids) else f"row {row}"


def _check_length(name: str, column: Array | None, n: int) -> None:
    if column is not None and (column.ndim != 1 or len(column) != n):
        raise InputError(f"column {name!r} has shape {column.shape}, but there are {n} request ids")


def _numbers(
    name: str, values: Any, dtype: type[np.generic], ids: Array, minimum: float | None = None
) -> Array:
    column = np.asarray(values)
    if column.size == 0:
        column = column.astype(dtype)
    _check_length(name, column, len(ids))
    if column.dtype.kind not in "iuf":
        raise InputError(f"column {name!r} holds {column.dtype} values; it needs numbers")
    bad = ~np.isfinite(column)
    rule = "it must be finite"
    if not bad.any() and minimum is not None:
        bad, rule = column < minimum, f"it must be at least {minimum:g}"
    if not bad.any() and np.dtype(dtype).kind == "i" and column.dtype != dtype:
        limits = np.iinfo(np.dtype(dtype))
        bad = (column != np.floor(column)) | (column < limits.min) | (column > limits.max)
        rule = f"it must be a whole number of at most {limits.max}"
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(f"{_where(ids, row)}: {name} is {column[row]}; {rule}")
    # A column that is right already is taken as it is: long traces should not be in memory twice.
    return np.require(column, dtype, "W")


def _check_arrivals(arrival_s: NDArray[np.float64], ids: Array) -> None:
    if len(arrival_s) == 0:
        return
    if arrival_s.min() < 0:
        row = int(np.argmax(arrival_s < 0))
        raise InputError(f"{_where(ids, row)}: arrival_s is {arrival_s[row]}; it must be at least 0")
    falls = arrival_s[1:] < arrival_s[:-1]
    if falls.any():
        row = int(np.argmax(falls)) + 1
        raise InputError(
            f"{_where(ids, row)} arrives at {arrival_s[row]} s, before the row above it "
            f"({arrival_s[row - 1]} s); sort the trace by arrival"
        )


def _check_unique(ids: Array) -> None:
    if len(ids) < 2:
        return
    if ids.dtype == np.int64:
        # Most ids count up, and that is seen a hundred times faster.
        if (ids[1:] > ids[:-1]).all() or len(np.unique(ids)) == len(ids):
            return
    elif len(set(ids)) == len(ids):
        return
    seen: dict[Any, int] = {}
    for row, value in enumerate(ids.tolist()):
        if value in seen:
            raise InputError(f"request id {value!r} stands in row {seen[value]} and again in row {row}")
        seen[value] = row


def _check_prefixes(trace: Trace, ids: Array) -> None:
    if trace.prefix_tokens is None:
        return
    longer = trace.prefix_tokens > trace.prompt_tokens
    if longer.any():
        row = int(np.argmax(longer))
        raise InputError(
            f"{_where(ids, row)}: prefix_tokens is {trace.prefix_tokens[row]}, more than the "
            f"{trace.prompt_tokens[row]} tokens of the prompt"
        )
