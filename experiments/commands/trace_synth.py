"""``estp trace synth``: a trace from a one-line specification."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from experiments.commands.trace_source import Target


def _unset(metavar: str) -> Any:
    return arg(metavar=metavar, help_behavior_hint="")


@dataclass(frozen=True)
class Synth:
    """Draw a trace. Options add to --spec, or replace what it says; the whole is kept in the trace."""

    target: OmitArgPrefixes[Target]
    spec: Annotated[str | None, _unset("LINE")] = None
    """A specification, as estp trace fit prints it and as a synthetic trace's metadata has it."""
    arrivals: Annotated[str | None, _unset("PROCESS")] = None
    """poisson,rate=R; gamma,rate=R,shape=K; weibull,rate=R,shape=K;
    bursts,rate=R,burst_rate=R,calm_s=S,burst_s=S;
    diurnal,rate=R,amplitude=A,period_s=S;
    or burst: all at once (default: burst)."""
    prompt: Annotated[str | None, _unset("LENGTHS")] = None
    """lognormal,median=M,sigma=S; pareto,least=L,alpha=A;
    tailed,median=M,sigma=S,tail=SHARE,alpha=A; each with most=N if wanted;
    or constant,tokens=N (default: lognormal,median=400,sigma=1)."""
    output: Annotated[str | None, _unset("LENGTHS")] = None
    """The same (default: lognormal,median=200,sigma=0.8)."""
    lengths: Annotated[str | None, _unset("TRACE")] = None
    """Or: draw pairs of lengths from this trace, so that their correlation stays."""
    correlation: Annotated[str | None, _unset("R")] = None
    """Of the normal scores of prompt and output."""
    requests: Annotated[str | None, _unset("N")] = None
    """How many (default: 1000)."""
    seed: Annotated[str | None, _unset("N")] = None
    """Of all draws (default: 0)."""
    samples: Annotated[str | None, _unset("N")] = None
    """Requests a prompt, sharing it as their prefix: an RL rollout, with arrivals burst (default: 1)."""
    same: Annotated[str | None, _unset("SHARE")] = None
    """Share of the output's variance that the samples of a prompt have in common (default: 0)."""
    users: Annotated[str | None, _unset("N")] = None
    """A closed loop of so many users; traces.closed_loop finds the arrivals with the simulator."""
    think: Annotated[str | None, _unset("S")] = None
    """Mean seconds between an answer and its user's next request (default: 0)."""

    def run(self) -> int:
        """Write the trace and print its specification; exit code 0."""
        from traces.errors import InputError
        from traces.synthetic import parse_spec, synthesise

        words: dict[str, str] = {}
        try:
            given = shlex.split(self.spec or "")
        except ValueError as error:
            raise InputError(f"--spec {self.spec!r} has an open quote") from error
        for word in given:
            name = word.partition("=")[0]
            # Twice the same is for the parser to refuse; an option is to replace it.
            words[name if name not in words else f"{name} again"] = word
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name not in ("target", "spec") and value is not None:
                words[option.name] = f"{option.name}={value}"
        trace = synthesise(parse_spec(shlex.join(words.values())))
        code = self.target.write(trace)
        print(trace.metadata["synthetic"]["spec"])
        return code
