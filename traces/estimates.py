"""Estimates of output lengths: what a predictor says about each request, on disk and joined to a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from traces.errors import InputError
from traces.parquet import read_table, write_table
from traces.schema import Array, Trace, id_array, shown_id

QUANTILES = {0.05: "q05", 0.1: "q10", 0.25: "q25", 0.5: "q50", 0.75: "q75", 0.9: "q90", 0.95: "q95"}
# Estimates come from float32 heads, whose sums over the bins are off by about 1e-6.
PROBABILITY_SUM_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Estimates:
    """One predictor's estimates, a row a request.

    Attributes:
        predictor: the name that policies use, such as ``estp``.
        request_id: (n,) int64, or object array of str; unique.
        mean: (n,) float64, tokens; finite. A predictor that only ranks puts its score here and
            says so in ``metadata``.
        quantiles: level -> (n,) float64, tokens; the levels are those of ``QUANTILES``.
        probabilities: (n, K) float64, a row sums to 1, or None.
        bin_edges: (K + 1,) float64, rising, tokens, or None; given exactly when probabilities are.
        metadata: JSON-able facts (backbone, head's hash, signal settings).

    Raises:
        InputError: a rule above is broken; the message names the predictor, request and value.
    """

    predictor: str
    request_id: Array
    mean: NDArray[np.float64]
    quantiles: dict[float, NDArray[np.float64]] = field(default_factory=dict)
    probabilities: NDArray[np.float64] | None = None
    bin_edges: NDArray[np.float64] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.predictor:
            raise InputError("a predictor needs a name; this one's is empty")
        ids = id_array(self.request_id)
        object.__setattr__(self, "request_id", ids)
        object.__setattr__(self, "mean", self._column("mean", self.mean))
        unknown = [level for level in self.quantiles if level not in QUANTILES]
        if unknown:
            raise InputError(
                f"predictor {self.predictor!r}: quantile {unknown[0]} is not one of {[*QUANTILES]}"
            )
        quantiles = {
            q: self._column(QUANTILES[q], self.quantiles[q]) for q in QUANTILES if q in self.quantiles
        }
        object.__setattr__(self, "quantiles", quantiles)
        if len(set(ids.tolist())) < len(ids):
            values, counts = np.unique(ids, return_counts=True)
            raise InputError(
                f"predictor {self.predictor!r} has {counts.max()} estimates for request "
                f"{shown_id(values, int(np.argmax(counts)))}; one a request is needed"
            )
        self._check_bins()

    def __len__(self) -> int:
        return len(self.request_id)

    def take(self, indices: ArrayLike) -> Estimates:
        """The estimates at these rows (integers, or a boolean mask), in the order given."""
        rows = np.asarray(indices)
        return dataclasses.replace(
            self,
            request_id=self.request_id[rows],
            mean=self.mean[rows],
            quantiles={q: column[rows] for q, column in self.quantiles.items()},
            probabilities=None if self.probabilities is None else self.probabilities[rows],
        )

    def align(self, trace: Trace) -> NDArray[np.int64]:
        """Rows (n,) of these estimates in the order of the trace's requests.

        Raises:
            InputError: a request has no estimate, or an estimate belongs to no request.
        """
        row_of = {value: row for row, value in enumerate(self.request_id.tolist())}
        wanted = trace.request_id.tolist()
        rows = np.fromiter((row_of.get(value, -1) for value in wanted), np.int64, len(wanted))
        missing = [wanted[i] for i in np.flatnonzero(rows < 0)]
        known = set(wanted)
        unused = [value for value in row_of if value not in known]
        if missing:
            hint = self._other_kind_of_id(trace)
            raise InputError(
                f"predictor {self.predictor!r} has no estimate for {_some(missing)}{hint}; predict lengths "
                "for the whole trace, or leave those requests out"
            )
        if unused:
            raise InputError(
                f"predictor {self.predictor!r} has estimates for {_some(unused)} not in the trace; "
                "use the estimates that were made for this trace"
            )
        return rows

    def _other_kind_of_id(self, trace: Trace) -> str:
        kinds = [
            "numbers" if ids.dtype == np.int64 else "text" for ids in (trace.request_id, self.request_id)
        ]
        if kinds[0] == kinds[1] or not len(self):
            return ""
        return f" (ids are {kinds[0]} in the trace and {kinds[1]} in the estimates)"

    def _column(self, name: str, values: ArrayLike) -> NDArray[np.float64]:
        column = np.asarray(values, dtype=np.float64)
        if column.shape != (len(self.request_id),):
            raise InputError(
                f"predictor {self.predictor!r}: {name} has shape {column.shape} for "
                f"{len(self.request_id)} requests"
            )
        bad = ~np.isfinite(column)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"predictor {self.predictor!r}, request {shown_id(self.request_id, row)}: "
                f"{name} is {column[row]}; it must be finite"
            )
        return column

    def _check_bins(self) -> None:
        if (self.probabilities is None) != (self.bin_edges is None):
            raise InputError(f"predictor {self.predictor!r}: probabilities and bin edges come together")
        if self.probabilities is None or self.bin_edges is None:
            return
        table = np.asarray(self.probabilities, dtype=np.float64)
        edges = np.asarray(self.bin_edges, dtype=np.float64)
        object.__setattr__(self, "probabilities", table)
        object.__setattr__(self, "bin_edges", edges)
        if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            raise InputError(
                f"predictor {self.predictor!r}: bin edges must be finite and rise, but are {edges}"
            )
        if table.shape != (len(self), len(edges) - 1):
            raise InputError(
                f"predictor {self.predictor!r}: probabilities have shape {table.shape}; {len(self)} requests "
                f"and {len(edges)} bin edges need ({len(self)}, {len(edges) - 1})"
            )
        bad = ~(np.isfinite(table).all(axis=1) & (table >= 0).all(axis=1))
        bad |= ~(np.abs(table.sum(axis=1) - 1) < PROBABILITY_SUM_TOLERANCE)
        if bad.any():
            row = int(np.argmax(bad))
            raise InputError(
                f"predictor {self.predictor!r}, request {shown_id(self.request_id, row)}: "
                f"probabilities are no distribution (sum {table[row].sum():g}, smallest {table[row].min():g})"
            )


def write_estimates(
    estimates: Sequence[Estimates], path: str | Path, metadata: dict[str, Any] | None = None
) -> None:
    """Write all predictors' estimates as one Parquet table, a row a request and predictor.

    Columns: request_id, predictor, mean, q05 ... q95 (empty where not given), probabilities.
    The bin edges and each predictor's own metadata stand in the file's metadata.

    Raises:
        InputError: no estimates, one name twice, ids of two kinds, or the file cannot be written.
    """
    names = [one.predictor for one in estimates]
    if not names:
        raise InputError(f"there are no estimates to write to {path}")
    if len(set(names)) < len(names):
        raise InputError(f"two predictors have one name among {', '.join(sorted(names))}")
    if len({one.request_id.dtype for one in estimates}) > 1:
        raise InputError("request ids are numbers for one predictor and text for another")
    facts = {
        **(metadata or {}),
        "kind": "estimates",
        "units": {"mean": "tokens", "bin_edges": "tokens", **dict.fromkeys(QUANTILES.values(), "tokens")},
        "bin_edges": {
            one.predictor: one.bin_edges.tolist() for one in estimates if one.bin_edges is not None
        },
        "predictors": {one.predictor: one.metadata for one in estimates},
    }
    write_table(pl.concat([_frame(one) for one in estimates]), path, facts)


def read_estimates(path: str | Path) -> dict[str, Estimates]:
    """Read a table of estimates; the predictors come in the order in which they were written.

    Each predictor's ``metadata`` is the file's, overlaid with its own.

    Raises:
        InputError: the file is missing, is no estimates table, or breaks a rule of ``Estimates``.
    """
    frame, facts = read_table(path, "estimates")
    for column in ("request_id", "predictor", "mean"):
        if column not in frame.columns:
            raise InputError(f"{path} lacks the column {column!r}; it has {', '.join(frame.columns)}")
        if frame[column].null_count():
            raise InputError(f"{path}: column {column!r} is empty in row {frame[column].is_null().arg_max()}")
    own = facts.get("predictors", {})
    edges = facts.get("bin_edges", {})
    structure = ("kind", "schema_version", "units", "bin_edges", "predictors")
    shared = {key: value for key, value in facts.items() if key not in structure}
    found = {}
    for part in frame.partition_by("predictor", maintain_order=True):
        name = str(part["predictor"][0])
        try:
            found[name] = _estimates(name, part, edges.get(name), {**shared, **own.get(name, {})})
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    return found


def _frame(one: Estimates) -> pl.DataFrame:
    n = len(one)
    ids = one.request_id
    dtype = pl.Int64 if ids.dtype == np.int64 else pl.String
    columns = [
        pl.Series("request_id", ids.tolist(), dtype=dtype),
        pl.Series("predictor", [one.predictor] * n, dtype=pl.String),
        pl.Series("mean", one.mean, dtype=pl.Float64),
    ]
    for level, name in QUANTILES.items():
        column = one.quantiles.get(level)
        columns.append(pl.Series(name, [None] * n if column is None else column, dtype=pl.Float64))
    table = [None] * n if one.probabilities is None else one.probabilities.tolist()
    columns.append(pl.Series("probabilities", table, dtype=pl.List(pl.Float64)))
    return pl.DataFrame(columns)


def _estimates(
    name: str, part: pl.DataFrame, edges: list[float] | None, metadata: dict[str, Any]
) -> Estimates:
    ids = part["request_id"]
    quantiles = {
        level: part[column].to_numpy()
        for level, column in QUANTILES.items()
        if column in part.columns and part[column].null_count() < len(part)
    }
    table = None
    if edges is not None:
        if "probabilities" not in part.columns or part["probabilities"].null_count():
            raise InputError(f"predictor {name!r} has bin edges but lacks probabilities")
        lengths = part["probabilities"].list.len().unique().to_list()
        if len(lengths) > 1:
            raise InputError(f"predictor {name!r} has rows of {lengths} probabilities; all need one length")
        table = np.array(part["probabilities"].to_list(), dtype=np.float64).reshape(len(part), -1)
    return Estimates(
        predictor=name,
        request_id=ids.to_numpy() if ids.dtype.is_integer() else np.array(ids.to_list(), dtype=object),
        mean=part["mean"].to_numpy(),
        quantiles=quantiles,
        probabilities=table,
        bin_edges=None if edges is None else np.asarray(edges, dtype=np.float64),
        metadata=metadata,
    )


def _some(ids: list[Any]) -> str:
    shown = ", ".join(repr(value) for value in ids[:3])
    more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
    return f"{'request' if len(ids) == 1 else 'requests'} {shown}{more}"
