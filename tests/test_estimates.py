"""Estimates survive Parquet unchanged, and join a trace by request id or say which requests do not match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces import Estimates, InputError, Trace, read_estimates, write_estimates
from traces.estimates import QUANTILES


def trace_of(ids: list[Any]) -> Trace:
    n = len(ids)
    return Trace(np.array(ids), np.zeros(n), np.ones(n, np.int32), np.ones(n, np.int32))


finite = st.floats(-1e6, 1e6)


@st.composite
def estimate_tables(draw: st.DrawFn) -> list[Estimates]:
    textual = draw(st.booleans())
    found = []
    for name in draw(st.lists(st.sampled_from(["estp", "egtp", "ltr"]), min_size=1, unique=True)):
        ids: Any = draw(st.lists(st.text("abc/-0123", min_size=1), min_size=1, max_size=5, unique=True))
        if not textual:
            ids = list(range(len(ids)))
        n = len(ids)
        levels = draw(st.sets(st.sampled_from(sorted(QUANTILES))))
        column = st.lists(finite, min_size=n, max_size=n)
        bins = draw(st.none() | st.integers(1, 4))
        table = None
        if bins is not None:
            raw = np.array(
                draw(
                    st.lists(
                        st.lists(st.floats(0.1, 1), min_size=bins, max_size=bins), min_size=n, max_size=n
                    )
                )
            )
            table = raw / raw.sum(axis=1, keepdims=True)
        found.append(
            Estimates(
                predictor=name,
                request_id=np.array(ids, dtype=object if textual else np.int64),
                mean=np.array(draw(column)),
                quantiles={level: np.array(draw(column)) for level in levels},
                probabilities=table,
                bin_edges=None if bins is None else np.arange(bins + 1) * 10.0 + 1,
                metadata={"head": name},
            )
        )
    return found  # fmt: skip


@settings(max_examples=40)
@given(estimate_tables())
def test_parquet_brings_estimates_back(
    tmp_path_factory: pytest.TempPathFactory, tables: list[Estimates]
) -> None:
    path = tmp_path_factory.mktemp("estimates") / "e.parquet"
    write_estimates(tables, path, {"backbone": "tiny"})
    back = read_estimates(path)
    assert list(back) == [one.predictor for one in tables]
    for one in tables:
        other = back[one.predictor]
        assert other.request_id.tolist() == one.request_id.tolist()
        assert other.request_id.dtype == one.request_id.dtype
        assert np.array_equal(other.mean, one.mean)
        assert list(other.quantiles) == list(one.quantiles)
        for level, column in one.quantiles.items():
            assert np.array_equal(other.quantiles[level], column)
        assert (other.probabilities is None) == (one.probabilities is None)
        if one.probabilities is not None and one.bin_edges is not None:
            assert np.array_equal(other.probabilities, one.probabilities)  # type: ignore[arg-type]
            assert np.array_equal(other.bin_edges, one.bin_edges)  # type: ignore[arg-type]
        assert other.metadata == {"backbone": "tiny", "head": one.predictor}


def test_table_has_the_documented_columns(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    one = Estimates("estp", ["a"], [3.0], {0.5: [2.0]}, np.array([[0.25, 0.75]]), np.array([1.0, 2.0, 4.0]))  # type: ignore[arg-type, dict-item]
    write_estimates([one], path)
    frame = pl.read_parquet(path)
    quantiles = ["q05", "q10", "q25", "q50", "q75", "q90", "q95"]
    assert frame.columns == ["request_id", "predictor", "mean", *quantiles, "probabilities"]
    assert frame.row(0) == ("a", "estp", 3.0, None, None, None, 2.0, None, None, None, [0.25, 0.75])
    facts = json.loads(pl.read_parquet_metadata(path)["estp"])
    assert facts["kind"] == "estimates"
    assert facts["bin_edges"] == {"estp": [1.0, 2.0, 4.0]}


def test_align_gives_rows_in_trace_order() -> None:
    one = Estimates("estp", np.array([5, 3, 9]), np.array([50.0, 30.0, 90.0]))
    rows = one.align(trace_of([3, 9, 5]))
    assert one.mean[rows].tolist() == [30.0, 90.0, 50.0]
    assert one.take(rows).request_id.tolist() == [3, 9, 5]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2, 3], "'estp' has no estimate for request 3;"),
        ([1, 2, 3, 4, 5, 6], "no estimate for requests 3, 4, 5 and 1 more"),
        ([1], "'estp' has estimates for request 2 not in the trace"),
        (["1", "2"], r"ids are text in the trace and numbers in the estimates"),
    ],
)
def test_align_names_what_does_not_match(ids: list[Any], message: str) -> None:
    one = Estimates("estp", np.array([1, 2]), np.array([1.0, 2.0]))
    with pytest.raises(InputError, match=message):
        one.align(trace_of(ids))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictor": ""}, "needs a name"),
        ({"mean": [1.0, np.nan]}, "'p', request 'b': mean is nan; it must be finite"),
        ({"mean": [1.0]}, r"mean has shape \(1,\) for 2 requests"),
        ({"request_id": ["a", "a"]}, "'p' has 2 estimates for request 'a'"),
        ({"quantiles": {0.33: [1.0, 2.0]}}, "quantile 0.33 is not one of"),
        ({"quantiles": {0.5: [1.0, np.inf]}}, "request 'b': q50 is inf"),
        ({"probabilities": [[1.0], [1.0]]}, "probabilities and bin edges come together"),
        ({"probabilities": [[1.0], [1.0]], "bin_edges": [0.0, 1.0, 2.0]}, r"need \(2, 2\)"),
        ({"probabilities": [[1.0], [0.9]], "bin_edges": [0.0, 1.0]}, "request 'b': .* no distribution"),
        ({"probabilities": [[2.0, -1.0]] * 2, "bin_edges": [0.0, 1.0, 2.0]}, "request 'a': .* smallest -1"),
        ({"probabilities": [[1.0], [1.0]], "bin_edges": [1.0, 1.0]}, "bin edges must be finite and rise"),
    ],
)
def test_broken_rule_names_predictor_and_request(changes: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {"predictor": "p", "request_id": ["a", "b"], "mean": [1.0, 2.0]}
    with pytest.raises(InputError, match=message):
        Estimates(**(fields | changes))


def test_bad_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    one = Estimates("p", np.array([1]), np.array([1.0]))
    with pytest.raises(InputError, match="no estimates to write"):
        write_estimates([], path)
    with pytest.raises(InputError, match="two predictors have one name"):
        write_estimates([one, one], path)
    with pytest.raises(InputError, match="numbers for one predictor and text for another"):
        write_estimates([one, Estimates("q", np.array(["a"]), np.array([1.0]))], path)
    assert not path.exists()
    with pytest.raises(InputError, match="there is no file"):
        read_estimates(path)
