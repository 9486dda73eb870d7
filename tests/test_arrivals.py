"""Arrivals have the rate and variability asked for (means and CVs of the exponential and gamma laws)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traces import InputError, Trace
from traces.arrivals import Arrivals, burstiness_of

N = 20_000


def trace(n: int = 4) -> Trace:
    return Trace(np.arange(n), np.arange(n) * 2.0, np.arange(1, n + 1), np.arange(1, n + 1))


def gaps(arrivals: Arrivals, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.diff(arrivals.apply(trace(N), np.random.default_rng(seed)).arrival_s)


def test_recorded_arrivals_stay_and_scale() -> None:
    rng = np.random.default_rng(0)
    assert Arrivals().apply(trace(), rng).arrival_s.tolist() == [0, 2, 4, 6]
    scaled = Arrivals(time_scale=0.5).apply(trace(), rng, num_requests=3)
    assert scaled.arrival_s.tolist() == [0, 1, 2]
    assert scaled.request_id.tolist() == [0, 1, 2]


def test_poisson_gaps_have_mean_and_deviation_one_over_rate() -> None:
    sample = gaps(Arrivals("poisson", rate=4.0))
    # The mean of n exponential gaps has a standard error of mean / sqrt(n); five of them are allowed.
    assert sample.mean() == pytest.approx(0.25, rel=5 / N**0.5)
    assert sample.std() / sample.mean() == pytest.approx(1, rel=0.04)


@pytest.mark.parametrize("cv", [0.5, 2.0])
def test_gamma_gaps_have_the_cv_asked_for(cv: float) -> None:
    sample = gaps(Arrivals("gamma", rate=4.0, burstiness=burstiness_of(cv)))
    assert sample.mean() == pytest.approx(0.25, rel=5 * cv / N**0.5)
    assert sample.std() / sample.mean() == pytest.approx(cv, rel=0.06)


def test_burst_is_all_at_once_in_drawn_order() -> None:
    drawn = Arrivals("burst").apply(trace(50), np.random.default_rng(0))
    assert not drawn.arrival_s.any()
    assert sorted(drawn.request_id.tolist()) == list(range(50))
    assert drawn.request_id.tolist() != list(range(50))
    assert (drawn.output_tokens == drawn.request_id + 1).all()


def test_seed_fixes_everything_and_first_arrival_is_0() -> None:
    kind = Arrivals("poisson", rate=1.0)
    one, two, three = (kind.apply(trace(100), np.random.default_rng(s), 60) for s in (1, 1, 2))
    assert one.arrival_s[0] == 0
    assert len(one) == 60
    assert (one.arrival_s == two.arrival_s).all()
    assert (one.request_id == two.request_id).all()
    assert (one.arrival_s != three.arrival_s)[1:].all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "weekly"}, "not 'weekly'"),
        ({"kind": "poisson"}, "poisson arrivals need a request rate"),
        ({"kind": "poisson", "rate": 0.0}, "rate of arrivals is 0.0; it must be above 0"),
        ({"kind": "poisson", "rate": float("inf")}, "rate of arrivals is inf"),
        ({"kind": "recorded", "rate": 1.0}, "not for recorded"),
        ({"kind": "poisson", "rate": 1.0, "burstiness": 0.5}, "burstiness is for gamma"),
        ({"kind": "burst", "time_scale": 0.5}, "time scale is for recorded"),
        ({"time_scale": -1.0}, "time_scale of arrivals is -1.0"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Arrivals(**fields)


def test_too_many_requests_and_missing_arrivals_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="9 requests were asked for; the trace has 4"):
        Arrivals().apply(trace(), rng, 9)
    lengths_only = trace().replace(metadata={"arrivals": "absent"})
    with pytest.raises(InputError, match="no arrival times"):
        Arrivals().apply(lengths_only, rng)
    assert len(Arrivals("burst").apply(lengths_only, rng)) == 4
    with pytest.raises(InputError, match="coefficient of variation is 0"):
        burstiness_of(0.0)
