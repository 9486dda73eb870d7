"""Groups of options that commands share: which requests, when they arrive, and on what server."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from traces import Estimates, Trace
    from traces.arrivals import Arrivals

EMBEDDED_MODEL = "smollm2-135m-instruct"
DEFAULT_LATENCY = "roofline,model=llama-3.1-8b,device=a100-80g"


def _unset(metavar: str, *aliases: str) -> Any:
    """An option whose default is said in its help text, if anywhere."""
    return arg(metavar=metavar, aliases=aliases or None, help_behavior_hint="")


@dataclass(frozen=True)
class Requests:
    """What is asked of the server."""

    trace: Annotated[Positional[str], _unset("TRACE")] = ""
    """Trace: Parquet, CSV or JSON lines, gzipped or not; - is standard input."""
    format: Annotated[str | None, _unset("NAME")] = None
    """Format of the trace; told from its content if not given."""
    columns: Annotated[tuple[str, ...], _unset("NAME=COLUMN ...")] = ()
    """Columns of a CSV, JSONL or foreign Parquet: arrival_ms=ts prompt_tokens=in output_tokens=out."""
    on_error: Literal["fail", "skip"] = "fail"
    """Refuse a trace at its first fault, or leave such rows out and list them."""
    estimates: Annotated[UseAppendAction[tuple[str, ...]], _unset("FILE")] = ()
    """Predicted lengths, from estp predict; repeat for more."""
    share_prompts: Annotated[str | None, _unset("TOKENIZER")] = None
    """Let prompts that begin alike share KV blocks (continuous batching), by the tokens of this tokenizer: a
    tokenizer.json, a folder with one, or a name on the hub."""
    num_prompts: Annotated[int | None, _unset("N")] = None
    """Use only so many requests: the first of recorded arrivals, else a random choice."""

    def read_trace(self) -> Trace:
        """The trace; what was left out of it is told on standard error.

        Raises:
            InputError: no trace is named, or it cannot be read.
        """
        from traces import read_trace
        from traces.errors import InputError

        if not self.trace:
            raise InputError("there is no trace; name a file, such as a CSV or Parquet of requests")
        columns: dict[str, str] = {}
        for pair in self.columns:
            name, equals, column = pair.partition("=")
            if not (name and equals and column):
                raise InputError(f"--columns {pair!r} is not of the form NAME=COLUMN")
            columns[name] = column
        trace = read_trace(self.trace, self.format, columns or None, on_error=self.on_error)
        _tell_dropped(trace.metadata)
        if self.share_prompts is not None:
            from traces.shared_prompts import with_prompt_hashes

            trace = with_prompt_hashes(trace, self.share_prompts)
        return trace

    def read_estimates(self) -> dict[str, Estimates]:
        """All predictors' estimates, by name.

        Raises:
            InputError: a file cannot be read, or a predictor is in two of them.
        """
        from traces import read_estimates
        from traces.errors import InputError

        found: dict[str, Estimates] = {}
        for path in self.estimates:
            for name, estimates in read_estimates(path).items():
                if name in found:
                    raise InputError(f"{path}: predictor {name!r} is in an earlier --estimates file too")
                found[name] = estimates
        return found


@dataclass(frozen=True)
class Load:
    """When requests arrive, and how often the whole is repeated."""

    arrivals: Literal["recorded", "poisson", "gamma", "burst"] = "recorded"
    """As in the trace, drawn at a rate, or all at once. All but recorded shuffle the requests."""
    request_rate: Annotated[float | None, _unset("PER_S", "--rate")] = None
    """Requests per second of poisson and gamma arrivals."""
    burstiness: Annotated[float | None, _unset("SHAPE")] = None
    """Shape of the gamma gaps, as in vLLM: below 1 is burstier than Poisson."""
    cv: Annotated[float | None, _unset("CV")] = None
    """The same as the gaps' coefficient of variation: burstiness = 1 / cv^2."""
    time_scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Recorded arrival times are multiplied by this: 0.5 doubles the load."""
    seed: int = 0
    """Seed of the first replication; the others follow it."""
    replications: Annotated[int | None, _unset("N")] = None
    """Independent repetitions of drawn arrivals (default: 5; recorded arrivals have 1)."""

    def process(self) -> Arrivals:
        """The arrival process.

        Raises:
            InputError: options that contradict each other or are out of range.
        """
        from traces.arrivals import Arrivals, burstiness_of
        from traces.errors import InputError

        if self.cv is not None and self.burstiness is not None:
            raise InputError("--cv and --burstiness say the same thing; give one")
        shape = self.burstiness if self.cv is None else burstiness_of(self.cv)
        return Arrivals(self.arrivals, self.request_rate, 1.0 if shape is None else shape, self.time_scale)

    def seeds(self, default: int) -> tuple[int, ...]:
        """One seed a replication; ``default`` of them where arrivals are drawn and none is said.

        Raises:
            InputError: a negative seed, or no replication.
        """
        from traces.errors import InputError

        count = self.replications
        if count is None:
            count = 1 if self.process().repeats_itself else default
        if count < 1:
            raise InputError(f"--replications is {count}; at least 1 is needed")
        if self.seed < 0:
            raise InputError(f"--seed is {self.seed}; it must be at least 0")
        return tuple(range(self.seed, self.seed + count))


@dataclass(frozen=True)
class Server:
    """The simulated server."""

    batching: Literal["static", "continuous"] = "static"
    """Padded batches that run to their longest output, or vLLM's continuous batching."""
    batch_size: Annotated[int | None, _unset("N")] = None
    """Static: most requests in a batch (default: 8)."""
    batch_timeout_s: Annotated[float | None, _unset("S")] = None
    """Static: how long an idle server waits for a full batch (default: 0)."""
    release: Annotated[Literal["batch", "token"] | None, _unset("{batch,token}")] = None
    """Static: a request completes at the end of its batch, or at its own last token (default: batch)."""
    form: Annotated[str | None, _unset("NAME")] = None
    """Static: how batches are formed: policy, window,predictor=P or bins,predictor=P (default: policy)."""
    max_num_seqs: Annotated[int | None, _unset("N")] = None
    """Continuous: most requests at once (default: 128)."""
    max_num_batched_tokens: Annotated[int | None, _unset("N")] = None
    """Continuous: most tokens in one step (default: 2048)."""
    max_model_len: Annotated[int | None, _unset("N")] = None
    """Continuous: most tokens of a prompt and its output (default: what the cache holds)."""
    block_size: Annotated[int | None, _unset("N")] = None
    """Continuous: tokens in a KV block (default: 16)."""
    num_blocks: Annotated[int | None, _unset("N")] = None
    """Continuous: KV blocks of a replica (default: what the device's memory holds)."""
    long_prefill_token_threshold: Annotated[int | None, _unset("N")] = None
    """Continuous: most prefill tokens of one request in a step (default: 0, no limit)."""
    enable_chunked_prefill: bool = True
    """Continuous: split a prefill over steps."""
    enable_prefix_caching: bool = True
    """Continuous: reuse the KV blocks of equal prompt prefixes."""
    latency: Annotated[str, arg(metavar="SPEC")] = DEFAULT_LATENCY
    """Step time: roofline,model=M,device=D, or affine,a=S,b=S,c=S,d=S: seconds a step, a prefill token,
    a decoding request and a context token."""
    replicas: Annotated[int, arg(metavar="N")] = 1
    """Servers, each with its own queue."""
    router: Annotated[str, arg(metavar="NAME")] = "round_robin"
    """Which replica gets a request."""
    max_concurrency: Annotated[int | None, _unset("N")] = None
    """Closed loop, as in vLLM: a request is sent at its arrival, or when fewer than so many are under way."""
    think_s: Annotated[float, arg(metavar="S")] = 0.0
    """Closed loop: seconds between an answer and the same user's next request."""
    goodput: Annotated[tuple[str, ...], _unset("NAME:MS ...")] = ()
    """Bounds that a good request meets, such as ttft:500 tpot:50, in milliseconds."""
    estimate_available: Literal["arrival", "prefill"] = "arrival"
    """When a request's estimate is there: before it is queued, or only after its prefill (continuous)."""
    estimate_cost_s: Annotated[float, arg(metavar="S")] = 0.0
    """Seconds that an estimate takes, where a policy reads it."""
    estimate_cost_per_token_s: Annotated[float, arg(metavar="S")] = 0.0
    """The same, a prompt token."""
    horizon_s: Annotated[float | None, _unset("S")] = None
    """Stop the simulated clock there. Means are then given only with --partial."""
    partial: bool = False
    """Give means though the horizon left requests unfinished: they favour the short ones."""

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``sim.simulate``.

        Raises:
            InputError: an option of the other kind of batching, or a value out of its range.
        """
        from sim.continuous import ContinuousBatching
        from sim.static import StaticBatching
        from traces.errors import InputError

        of_any = (
            "batching",
            "latency",
            "replicas",
            "router",
            "goodput",
            "estimate_available",
            "estimate_cost_s",
            "estimate_cost_per_token_s",
            "horizon_s",
            "partial",
            "max_concurrency",
            "think_s",
        )
        kind: Any = StaticBatching if self.batching == "static" else ContinuousBatching
        of_mine = {field.name for field in dataclasses.fields(kind)}
        given: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == field.default or field.name in of_any:
                continue
            if field.name not in of_mine:
                name = field.name.replace("_", "-")
                raise InputError(f"--{name} is not an option of {self.batching} batching; see --batching")
            given[field.name] = value
        return {
            "batching": kind(**given),
            "latency": self.latency,
            "replicas": self.replicas,
            "router": self.router,
            "goodput": " ".join(self.goodput) or None,
            "estimate_available": self.estimate_available,
            "estimate_cost_s": self.estimate_cost_s,
            "estimate_cost_per_token_s": self.estimate_cost_per_token_s,
            "horizon_s": self.horizon_s,
            "partial": self.partial,
            "max_concurrency": self.max_concurrency,
            "think_s": self.think_s,
        }


def _tell_dropped(metadata: dict[str, Any]) -> None:
    dropped = metadata.get("dropped")
    if dropped:
        print(f"left out {dropped['count']} rows of the trace:", file=sys.stderr)
        for reason, count in dropped["reasons"].items():
            print(f"  {count} x {reason}", file=sys.stderr)
        for row in dropped["rows"]:
            print(f"    {row}", file=sys.stderr)
    if metadata.get("reordered"):
        print(f"put {metadata['reordered']} rows of the trace in order of arrival", file=sys.stderr)
