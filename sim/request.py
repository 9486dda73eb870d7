"""What a scheduler knows of the requests: everything but their true output lengths.

The simulator numbers the requests of a trace by (arrival, id), so a smaller number is the earlier
arrival and, among equals, the smaller id: the rule that breaks every tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.errors import InputError
from traces.estimates import Estimates
from traces.schema import Trace

ORACLE = "oracle"
"""The predictor name under which this package's own policies, and no others, are given the true lengths."""

OPTIONAL = ("session_id", "scenario", "priority", "prompt", "prefix_id")


@dataclass(frozen=True, eq=False, slots=True)
class Estimate:
    """One predictor's view of one request (numbers), or of all of them (arrays with n rows).

    Attributes:
        predictor: its name.
        mean: tokens.
        quantiles: level -> tokens.
        probabilities: (K,) of the length bins, or (n, K), or None.
        bin_edges: (K + 1,) tokens, or None.
    """

    predictor: str
    mean: Any
    quantiles: Mapping[float, Any] = field(default_factory=dict)
    probabilities: NDArray[np.float64] | None = None
    bin_edges: NDArray[np.float64] | None = None

    def quantile(self, level: float) -> Any:
        """Tokens that the length stays below with probability ``level``.

        Raises:
            InputError: the predictor gave no quantile of that level.
        """
        if level not in self.quantiles:
            known = ", ".join(f"{q:g}" for q in sorted(self.quantiles)) or "none"
            raise InputError(f"predictor {self.predictor!r} gives no quantile {level:g}; it gives: {known}")
        return self.quantiles[level]

    def take(self, rows: Any) -> Estimate:
        """The estimates of these requests: a number for one, an index array for several."""
        return Estimate(
            self.predictor,
            self.mean[rows],
            {level: values[rows] for level, values in self.quantiles.items()},
            None if self.probabilities is None else self.probabilities[rows],
            self.bin_edges,
        )


@dataclass(frozen=True, eq=False, slots=True)
class Progress:
    """Where requests stand in continuous batching: numbers for one request, arrays for several.

    Attributes:
        running: whether they are in the batch.
        idle_steps: steps of the server since they last ran (or came), 0 while they run.
        waited_steps: steps that they were idle before they were last admitted, 0 while they wait.
        run_steps: steps since they were last admitted, 0 while they wait.
        cached: gives the prompt tokens of these requests whose KV is in the prefix cache now.
    """

    running: Any
    idle_steps: Any
    waited_steps: Any
    run_steps: Any
    cached: Callable[[], Any]


COME = Progress(running=False, idle_steps=0, waited_steps=0, run_steps=0, cached=lambda: 0)
"""Of requests that have just come."""

MOVING = ("running", "idle_steps", "waited_steps", "run_steps", "cached_tokens")
"""What a policy may read of a request that moves while it waits and runs."""


def moving(progress: Progress | None, name: str) -> Any:
    """One of ``MOVING``.

    Raises:
        InputError: the requests are asked about before they are at a server that takes steps.
    """
    if progress is None:
        raise InputError(
            f"a policy reads {name!r}, which is known only at a server that takes steps: use continuous "
            'batching, and let the policy say when its value moves (refresh = "step", "progress" or "event")'
        )
    return progress.cached() if name == "cached_tokens" else getattr(progress, name)


class Requests:
    """All requests of a run as columns, (n,) each; row = request number.

    It has the attributes of a `Request`, so a policy that only does arithmetic can be given all
    requests in one call (`sim.policies.Policy.vectorised`).

    Attributes:
        id: as in the trace.
        arrival_s: seconds.
        prompt_tokens: tokens, float64 so that no arithmetic on them overflows.
        generated_tokens, progress: of requests that have just come: all are asked at once only then.
        predictors_read: whose estimates have been asked for so far, but for the oracle's.
    """

    def __init__(
        self,
        trace: Trace,
        rows: NDArray[np.int64],
        estimates: Mapping[str, Estimates] | None = None,
        seed: int = 0,
    ) -> None:
        self.id = trace.request_id[rows]
        self.arrival_s = trace.arrival_s[rows]
        self.prompt_tokens = trace.prompt_tokens[rows].astype(np.float64)
        self.generated_tokens = np.zeros(len(rows))
        self.progress = COME
        self.predictors_read: set[str] = set()
        self._optional = {
            name: values[rows] for name in OPTIONAL if (values := getattr(trace, name)) is not None
        }
        # Estimates join by these. The trace itself is not kept, so that no length can leak.
        self._ids, self._rows = trace.request_id, rows
        self._tables = dict(estimates or {})
        self._columns: dict[str, Estimate] = {}
        self._seed = seed

    def __len__(self) -> int:
        return len(self.id)

    def __getitem__(self, number: int) -> Request:
        return Request(self, number)

    def estimate(self, predictor: str) -> Estimate:
        """What ``predictor`` says of every request.

        Raises:
            InputError: there is no such predictor, or it misses requests of this trace.
        """
        if predictor != ORACLE:
            self.predictors_read.add(predictor)
        if predictor not in self._columns:
            if predictor not in self._tables:
                raise self._unknown_predictor(predictor)
            table = self._tables[predictor]
            everything = Estimate(
                predictor, table.mean, table.quantiles, table.probabilities, table.bin_edges
            )
            self._columns[predictor] = everything.take(table.align(self._lengthless())[self._rows])
        return self._columns[predictor]

    def reveal(self, output_tokens: NDArray[np.int32]) -> None:
        """Let ``estimate("oracle")`` tell the true lengths, (n,) tokens. For the engine alone."""
        self._columns[ORACLE] = Estimate(ORACLE, output_tokens.astype(np.float64))

    @cached_property
    def uniform(self) -> NDArray[np.float64]:
        """One draw a request from U(0, 1): the same for every policy of a run with this seed."""
        return np.random.default_rng([self._seed, 1]).random(len(self))

    @cached_property
    def normal(self) -> NDArray[np.float64]:
        """One draw a request from N(0, 1): the same for every policy of a run with this seed."""
        return np.random.default_rng([self._seed, 2]).standard_normal(len(self))

    @property
    def session_id(self) -> Any:
        return self.optional("session_id")

    @property
    def scenario(self) -> Any:
        return self.optional("scenario")

    @property
    def priority(self) -> Any:
        return self.optional("priority")

    @property
    def prompt(self) -> Any:
        return self.optional("prompt")

    @property
    def prefix_id(self) -> Any:
        return self.optional("prefix_id")

    def waiting_s(self, now_s: Any) -> Any:
        """Seconds since each arrived, (n,)."""
        return now_s - self.arrival_s

    def __getattr__(self, name: str) -> Any:
        if name in MOVING:
            return moving(self.progress, name)
        raise AttributeError(f"requests have no {name!r}")

    def optional(self, name: str) -> Any:
        """A column that not every trace has, (n,).

        Raises:
            InputError: this trace lacks it.
        """
        if name not in self._optional:
            raise InputError(f"the trace has no column {name!r}, which a policy or router asks for")
        return self._optional[name]

    def _lengthless(self) -> Trace:
        """The trace by its ids alone, in its own order."""
        n = len(self._ids)
        ones = np.ones(n, np.int32)
        return Trace(self._ids, np.zeros(n), ones, ones)

    def _unknown_predictor(self, predictor: str) -> InputError:
        if predictor == ORACLE:
            return InputError("the true lengths ('oracle') are given to the built-in policies only")
        known = ", ".join(sorted(self._tables)) or "none were given"
        return InputError(
            f"no estimates by predictor {predictor!r} for any of the {len(self)} requests (first: "
            f"{self[0].id!r}); estimates there are: {known}"
        )


class Request:
    """One request, as a policy sees it.

    Attributes:
        number: its place in the order of (arrival, id), from 0.
        generated_tokens: tokens that it has got so far.
        progress: where it stands in continuous batching; None in static batching.
    """

    __slots__ = ("_all", "generated_tokens", "number", "progress")

    def __init__(
        self,
        requests: Requests,
        number: int,
        generated_tokens: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self._all = requests
        self.number = number
        self.generated_tokens = generated_tokens
        self.progress = progress

    def __repr__(self) -> str:
        return f"Request(id={self.id!r}, arrival_s={self.arrival_s:g}, prompt_tokens={self.prompt_tokens})"

    @property
    def id(self) -> int | str:
        value: int | str = self._all.id[self.number : self.number + 1].tolist()[0]
        return value

    @property
    def arrival_s(self) -> float:
        return float(self._all.arrival_s[self.number])

    @property
    def prompt_tokens(self) -> int:
        return int(self._all.prompt_tokens[self.number])

    @property
    def uniform(self) -> float:
        return float(self._all.uniform[self.number])

    @property
    def normal(self) -> float:
        return float(self._all.normal[self.number])

    def estimate(self, predictor: str) -> Estimate:
        """What ``predictor`` says of this request; raises InputError as `Requests.estimate` does."""
        return self._all.estimate(predictor).take(self.number)

    def waiting_s(self, now_s: float) -> float:
        """Seconds since it arrived."""
        return now_s - self.arrival_s

    def __getattr__(self, name: str) -> Any:
        if name in OPTIONAL:
            return self._all.optional(name)[self.number]
        if name in MOVING:
            return moving(self.progress, name)
        raise AttributeError(
            f"a request has no {name!r}; a policy may read id, arrival_s, prompt_tokens, generated_tokens, "
            f"estimate(predictor), waiting_s(now_s), uniform, normal, {', '.join((*OPTIONAL, *MOVING))}"
        )


class Some:
    """Several requests at one moment, (m,) arrays under the names that a `Request` has.

    For policies that only do arithmetic. One request may be there at several stages of its progress.
    """

    def __init__(
        self, requests: Requests, numbers: NDArray[np.int64], generated_tokens: Any, progress: Progress
    ) -> None:
        self._all = requests
        self.numbers = numbers
        self.generated_tokens = generated_tokens
        self.progress = progress

    def __len__(self) -> int:
        return len(self.numbers)

    def estimate(self, predictor: str) -> Estimate:
        """What ``predictor`` says of these requests; raises InputError as `Requests.estimate` does."""
        return self._all.estimate(predictor).take(self.numbers)

    def waiting_s(self, now_s: Any) -> Any:
        """Seconds since each arrived."""
        return now_s - self.arrival_s

    def __getattr__(self, name: str) -> Any:
        if name in MOVING:
            return moving(self.progress, name)
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._all, name)[self.numbers]
