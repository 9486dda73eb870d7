"""Synthetic traces: a one-line specification that gives the same trace, to the last byte, wherever it is run.

    arrivals=gamma,rate=5,shape=0.5 prompt=lognormal,median=400,sigma=1 output=pareto,least=30,alpha=1.6
    correlation=0.3 requests=10000 seed=1

Prompt and output are drawn from a Gaussian copula: two normal scores with the given correlation.
``lengths=FILE`` draws pairs of lengths from a trace instead, with replacement, so that whatever hangs
together in it still does. ``samples=n`` makes every prompt n requests that share it, as in RL rollouts:
with ``arrivals=burst`` they all are there at once. ``users=n think=X`` makes it a closed loop
(`traces.closed_loop`): n users, each with one request at a time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.errors import InputError
from traces.lengths import LENGTHS, Lengths, Lognormal, whole
from traces.processes import PROCESSES, Burst, Process
from traces.schema import Trace
from traces.spec import parse, spelled

VERSION = 1
HASH_DIGITS = 12
AT_ONCE = Burst()
SOME_PROMPT = Lognormal(400, 1.0)
SOME_OUTPUT = Lognormal(200, 0.8)


@dataclass(frozen=True)
class Spec:
    """What a synthetic trace is made from.

    Attributes:
        arrivals: when requests arrive (`traces.processes`).
        prompt, output: how long they are (`traces.lengths`).
        requests: how many, all samples counted.
        seed: of all draws. Arrivals and lengths have generators of their own, so that changing one
            leaves the other as it is.
        correlation: of the normal scores of prompt and output length.
        samples: requests a prompt; more than one share the whole prompt as their prefix.
        same: share of the variance of output scores that the samples of a prompt have in common.
        lengths: a trace to draw pairs of lengths from, in place of prompt and output.
        sha256: the first digits of that file's hash; None: not checked yet.
        users: in a closed loop, how many; None: open arrivals.
        think: seconds between an answer and its user's next request: the mean of an exponential.

    Raises:
        InputError: a value out of range, or settings that contradict each other.
    """

    arrivals: Process = AT_ONCE
    prompt: Lengths = SOME_PROMPT
    output: Lengths = SOME_OUTPUT
    requests: int = 1000
    seed: int = 0
    correlation: float = 0.0
    samples: int = 1
    same: float = 0.0
    lengths: str | None = None
    sha256: str | None = None
    users: int | None = None
    think: float = 0.0

    def __post_init__(self) -> None:
        if self.requests < 1 or self.samples < 1 or self.seed < 0:
            raise InputError(
                "a synthetic trace needs requests and samples of at least 1, and a seed of at least 0"
            )
        if self.requests % self.samples:
            raise InputError(f"{self.requests} requests are not {self.samples} samples of every prompt")
        if not -1 < self.correlation < 1:
            raise InputError(f"the correlation is {self.correlation:g}; it must be above -1 and below 1")
        if not 0 <= self.same <= 1:
            raise InputError(f"same is {self.same:g}; it must be a share from 0 to 1")
        if self.lengths is not None and (self.samples > 1 or self.correlation != 0):
            raise InputError(
                "lengths drawn from a trace keep its own correlation, and have one answer a prompt; "
                "leave out correlation and samples"
            )
        if not 0 <= self.think < float("inf"):
            raise InputError(f"the think time is {self.think:g} s; it must be at least 0 and finite")
        if self.users is None and self.think:
            raise InputError("a think time is for a closed loop; say how many users there are")
        if self.users is not None and (self.users < 1 or self.arrivals != AT_ONCE):
            raise InputError(
                "a closed loop needs at least 1 user, and no arrivals: they follow from the answers"
            )

    def __str__(self) -> str:
        """The one-line specification; what is as by default is left out, the seed and the count excepted."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in PARTS:
                if self.lengths is None or field.name == "arrivals":
                    words.append(f"{field.name}={spelled(value, PARTS[field.name])}")
            elif value != field.default or field.name in ("requests", "seed"):
                words.append(f"{field.name}={shlex.quote(str(value))}")
        return " ".join(words)


PARTS: dict[str, Any] = {"arrivals": PROCESSES, "prompt": LENGTHS, "output": LENGTHS}
WHOLE = ("requests", "seed", "samples", "users")
TEXT = ("lengths", "sha256")


def parse_spec(text: str) -> Spec:
    """Read a one-line specification.

    Raises:
        InputError: a word that is none of a specification, or a value out of range.
    """
    given: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"the specification {text!r} has an open quote ({error})") from error
    names = [field.name for field in dataclasses.fields(Spec)]
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in names:
            raise InputError(f"{word!r} is no part of a specification; there are {', '.join(names)}")
        if name in given:
            raise InputError(f"the specification says {name} twice")
        given[name] = _part(name, value)
    return Spec(**given)


def synthesise(spec: Spec) -> Trace:
    """Draw the trace; the specification is kept in ``metadata["synthetic"]``.

    Raises:
        InputError: the trace that lengths are drawn from is not readable, or not the same as before.
    """
    spec, pairs = _with_lengths(spec)
    rngs = [np.random.default_rng([spec.seed, stream]) for stream in range(3)]
    prompt_tokens, output_tokens = (
        _lengths(spec, rngs[0]) if pairs is None else _resampled(spec, pairs, rngs[0])
    )
    columns: dict[str, Any] = {}
    if spec.samples > 1:
        columns["prefix_id"] = np.repeat(np.arange(spec.requests // spec.samples), spec.samples)
        columns["prefix_tokens"] = prompt_tokens
        columns["extra"] = {"sample": np.tile(np.arange(spec.samples), spec.requests // spec.samples)}
    metadata: dict[str, Any] = {"synthetic": {"spec": str(spec), "version": VERSION}}
    if spec.users is None:
        arrival_s = spec.arrivals.draw(spec.requests, rngs[1])
    else:
        columns |= _turns(spec, rngs[2], columns.get("extra", {}))
        arrival_s = np.zeros(spec.requests)
        metadata["arrivals"] = "closed loop"
    return Trace(
        np.arange(spec.requests), arrival_s, prompt_tokens, output_tokens, metadata=metadata, **columns
    )


def _part(name: str, value: str) -> Any:
    if name in PARTS:
        return parse(value, PARTS[name], name)
    if name in TEXT:
        return value
    try:
        return int(value) if name in WHOLE else float(value)
    except ValueError:
        raise InputError(f"{name}={value!r} is no {'whole ' if name in WHOLE else ''}number") from None


def _lengths(spec: Spec, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    prompts = spec.requests // spec.samples
    scores = rng.standard_normal((2, prompts))
    own = rng.standard_normal(spec.requests)
    common = np.repeat(
        spec.correlation * scores[0] + np.sqrt(1 - spec.correlation**2) * scores[1], spec.samples
    )
    same = 1.0 if spec.samples == 1 else spec.same
    output = np.sqrt(same) * common + np.sqrt(1 - same) * own
    prompt_tokens = np.repeat(whole(spec.prompt.at(scores[0])), spec.samples)
    return prompt_tokens, whole(spec.output.at(output))


def _with_lengths(spec: Spec) -> tuple[Spec, Trace | None]:
    """The spec with the hash of the file that lengths come from, and that file's trace."""
    if spec.lengths is None:
        return spec, None
    from traces.readers import read_trace

    trace = read_trace(spec.lengths)
    found = hashlib.sha256(Path(spec.lengths).read_bytes()).hexdigest()[:HASH_DIGITS]
    if spec.sha256 is not None and spec.sha256 != found:
        raise InputError(
            f"{spec.lengths} is not the file that the specification names (sha256 {found}..., where "
            f"{spec.sha256}... is asked for)"
        )
    return dataclasses.replace(spec, sha256=found), trace


def _resampled(
    spec: Spec, pairs: Trace, rng: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    rows = rng.integers(len(pairs), size=spec.requests)
    return pairs.prompt_tokens[rows], pairs.output_tokens[rows]


def _turns(spec: Spec, rng: np.random.Generator, extra: dict[str, Any]) -> dict[str, Any]:
    """Requests dealt out to the users in turn, with the think time before each but a user's first."""
    assert spec.users is not None
    user = np.arange(spec.requests) % spec.users
    think_s = rng.exponential(1, spec.requests) * spec.think
    think_s[: spec.users] = 0.0
    return {"extra": {**extra, "user": user, "think_s": think_s}}
