"""``estp compare``: one trace, several policies, the differences and how sure they are."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

if TYPE_CHECKING:
    from experiments.compare import Setup
    from traces import Estimates, Trace

DEFAULT_REPLICATIONS = 5
DEFAULT_LATENCY = "roofline,model=llama-3.1-8b,device=a100-80g"


@dataclass(frozen=True)
class Requests:
    """What is asked of the server."""

    trace: Positional[str] = ""
    """Trace: Parquet, CSV or JSON lines, gzipped or not; - is standard input."""
    format: Annotated[str | None, arg(metavar="NAME")] = None
    """Format of the trace; told from its content if not given."""
    columns: Annotated[tuple[str, ...], arg(metavar="NAME=COLUMN ...")] = ()
    """Columns of a CSV, JSONL or foreign Parquet: arrival_ms=ts prompt_tokens=in output_tokens=out."""
    on_error: Literal["fail", "skip"] = "fail"
    """Refuse a trace at its first fault, or leave such rows out and list them."""
    estimates: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="FILE")] = ()
    """Predicted lengths, from estp predict; repeat for more."""
    num_prompts: Annotated[int | None, arg(metavar="N")] = None
    """Use only so many requests: the first of recorded arrivals, else a random choice."""


@dataclass(frozen=True)
class Load:
    """When requests arrive, and how often the whole is repeated."""

    arrivals: Literal["recorded", "poisson", "gamma", "burst"] = "recorded"
    """As in the trace, drawn at a rate, or all at once. All but recorded shuffle the requests."""
    request_rate: Annotated[float | None, arg(metavar="PER_S", aliases=("--rate",))] = None
    """Requests per second of poisson and gamma arrivals."""
    burstiness: Annotated[float | None, arg(metavar="SHAPE")] = None
    """Shape of the gamma gaps, as in vLLM: below 1 is burstier than Poisson."""
    cv: Annotated[float | None, arg(metavar="CV")] = None
    """The same as the gaps' coefficient of variation: burstiness = 1 / cv^2."""
    time_scale: Annotated[float, arg(metavar="FACTOR")] = 1.0
    """Recorded arrival times are multiplied by this: 0.5 doubles the load."""
    seed: int = 0
    """Seed of the first replication; the others follow it."""
    replications: Annotated[int | None, arg(metavar="N")] = None
    """Independent repetitions with drawn arrivals (5 if not given; recorded arrivals have 1)."""


@dataclass(frozen=True)
class Server:
    """The simulated server."""

    batching: Literal["static", "continuous"] = "static"
    """Padded batches that run to their longest output, or vLLM's continuous batching."""
    batch_size: Annotated[int | None, arg(metavar="N")] = None
    """Static: requests in a batch (8)."""
    batch_timeout_s: Annotated[float | None, arg(metavar="S")] = None
    """Static: how long an idle server waits for a full batch (0)."""
    release: Literal["batch", "token"] | None = None
    """Static: a request completes at the end of its batch, or at its own last token (batch)."""
    form: Annotated[str | None, arg(metavar="NAME")] = None
    """Static: how batches are formed: policy, window,predictor=P or bins,predictor=P (policy)."""
    max_num_seqs: Annotated[int | None, arg(metavar="N")] = None
    """Continuous: most requests at once."""
    max_num_batched_tokens: Annotated[int | None, arg(metavar="N")] = None
    """Continuous: most tokens in one step."""
    max_model_len: Annotated[int | None, arg(metavar="N")] = None
    """Continuous: longest prompt and output together."""
    block_size: Annotated[int | None, arg(metavar="N")] = None
    """Continuous: tokens in a KV block."""
    num_blocks: Annotated[int | None, arg(metavar="N")] = None
    """Continuous: KV blocks of a replica; from the device's memory if not given."""
    enable_chunked_prefill: bool | None = None
    """Continuous: split prefills over steps."""
    long_prefill_token_threshold: Annotated[int | None, arg(metavar="N")] = None
    """Continuous: most prefill tokens of one request in a step."""
    enable_prefix_caching: bool | None = None
    """Continuous: reuse KV blocks of equal prompt prefixes."""
    latency: Annotated[str, arg(metavar="SPEC")] = DEFAULT_LATENCY
    """Step time: roofline,model=M,device=D, or affine,a=S,b=S,c=S,d=S in seconds a step, a prefill
    token, a decoding request and a context token."""
    replicas: Annotated[int, arg(metavar="N")] = 1
    """Servers."""
    router: Annotated[str, arg(metavar="NAME")] = "round_robin"
    """Which replica gets a request."""
    goodput: Annotated[tuple[str, ...], arg(metavar="NAME:MS ...")] = ()
    """Bounds that a good request meets, such as ttft:500 tpot:50, in milliseconds."""
    estimate_available: Literal["arrival", "prefill"] = "arrival"
    """When a request's estimate is there."""
    estimate_cost_s: Annotated[float, arg(metavar="S")] = 0.0
    """Seconds that an estimate takes after the arrival."""


@dataclass(frozen=True)
class Compare:
    """Replay a trace under several scheduling policies and compare them.

    Every policy meets the same requests. With drawn arrivals the whole is repeated with other seeds,
    and differences are given with 95% intervals of the paired replications.
    """

    requests: OmitArgPrefixes[Requests] = field(default_factory=Requests)
    policy: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="SPEC")] = ()
    """A policy: fcfs, sjf (knows the real lengths), egtp, estp, NAME,key=value, or your own as
    file.py:Class,key=value. Repeat for more; fcfs, sjf and one a predictor if not given."""
    load: OmitArgPrefixes[Load] = field(default_factory=Load)
    server: OmitArgPrefixes[Server] = field(default_factory=Server)
    out: Annotated[Path | None, arg(metavar="DIR")] = None
    """Folder for summary.json, records.parquet and the plots."""
    result_format: Literal["estp", "vllm"] = "estp"
    """vllm: also write what vllm bench serve --save-result writes, one file a run."""
    workers: Annotated[int, arg(metavar="N")] = 1
    """Processes; the results are the same for any number."""
    rerun: Annotated[Path | None, arg(metavar="SUMMARY")] = None
    """Run again what this summary.json says; only --out and --workers may be given with it."""

    def run(self) -> int:
        """Print the table, write the files; exit code 0."""
        from experiments import compare, report_files, table

        command, expected = self, None
        if self.rerun is not None:
            command, expected = self._from_summary()
        if not command.requests.trace:
            from traces.errors import InputError

            raise InputError("there is no trace; give a file, or --rerun a summary.json")
        report_files.check_folder(self.out)
        inputs = report_files.fingerprints([command.requests.trace, *command.requests.estimates])
        if expected is not None:
            report_files.check_same(inputs, expected, self.rerun)
        trace = command._read_trace()
        estimates = command._read_estimates()
        setup = command._setup(tuple(estimates))
        progress = sys.stderr.isatty()
        comparison = compare.compare(trace, setup, estimates, workers=self.workers, progress=progress)
        print(table.render(comparison))
        if self.out is not None:
            vllm = command.result_format == "vllm"
            report_files.write(comparison, self.out, command.as_options(setup), inputs, vllm)
            print(f"\nwrote {self.out}")
        return 0

    def as_options(self, setup: Setup) -> dict[str, Any]:
        """What --rerun needs: these options with the defaults that depend on others filled in."""
        return {
            "requests": dataclasses.asdict(self.requests),
            "policy": list(setup.policies),
            "load": {**dataclasses.asdict(self.load), "replications": len(setup.seeds)},
            "server": dataclasses.asdict(self.server),
            "result_format": self.result_format,
        }

    def _from_summary(self) -> tuple[Compare, list[dict[str, Any]]]:
        from experiments import report_files
        from traces.errors import InputError

        assert self.rerun is not None
        plain = dataclasses.replace(self, out=None, workers=1, rerun=None)
        if plain != Compare():
            raise InputError("--rerun takes every setting from the summary; leave the others out")
        options, inputs = report_files.read_options(self.rerun)
        try:
            command = Compare(
                requests=Requests(**_tuples(options["requests"])),
                policy=tuple(options["policy"]),
                load=Load(**options["load"]),
                server=Server(**_tuples(options["server"])),
                result_format=options["result_format"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(
                f"{self.rerun} was not written by this version of estp compare ({error})"
            ) from error
        return command, inputs

    def _read_trace(self) -> Trace:
        from traces import read_trace
        from traces.errors import InputError

        columns: dict[str, str] = {}
        for pair in self.requests.columns:
            name, equals, column = pair.partition("=")
            if not (name and equals and column):
                raise InputError(f"--columns {pair!r} is not of the form NAME=COLUMN")
            columns[name] = column
        trace = read_trace(
            self.requests.trace, self.requests.format, columns or None, on_error=self.requests.on_error
        )
        _tell_dropped(trace.metadata)
        return trace

    def _read_estimates(self) -> dict[str, Estimates]:
        from traces import read_estimates
        from traces.errors import InputError

        found: dict[str, Estimates] = {}
        for path in self.requests.estimates:
            for name, estimates in read_estimates(path).items():
                if name in found:
                    raise InputError(f"{path}: predictor {name!r} is in an earlier --estimates file too")
                found[name] = estimates
        return found

    def _setup(self, predictors: tuple[str, ...]) -> Setup:
        from experiments.compare import Setup, default_policies
        from traces.errors import InputError

        arrivals = self._arrivals()
        count = self.load.replications
        if count is None:
            count = 1 if arrivals.repeats_itself else DEFAULT_REPLICATIONS
        if count < 1:
            raise InputError(f"--replications is {count}; at least 1 is needed")
        if self.load.seed < 0:
            raise InputError(f"--seed is {self.load.seed}; it must be at least 0")
        return Setup(
            policies=self.policy or default_policies(predictors),
            seeds=tuple(range(self.load.seed, self.load.seed + count)),
            arrivals=arrivals,
            num_requests=self.requests.num_prompts,
            server=self._server(),
        )

    def _arrivals(self) -> Any:
        from traces.arrivals import Arrivals, burstiness_of
        from traces.errors import InputError

        load = self.load
        if load.cv is not None and load.burstiness is not None:
            raise InputError("--cv and --burstiness say the same thing; give one")
        shape = load.burstiness if load.cv is None else burstiness_of(load.cv)
        return Arrivals(load.arrivals, load.request_rate, 1.0 if shape is None else shape, load.time_scale)

    def _server(self) -> dict[str, Any]:
        from sim.simulate import BATCHINGS
        from traces.errors import InputError

        server = self.server
        kinds = {name: {f.name for f in dataclasses.fields(cls)} for name, cls in BATCHINGS.items()}
        given = {
            name: value
            for name, value in dataclasses.asdict(server).items()
            if value is not None and any(name in names for names in kinds.values())
        }
        if server.batching not in BATCHINGS:
            raise InputError(f"batching {server.batching!r} is not there; there is {', '.join(BATCHINGS)}")
        for name in given:
            if name not in kinds[server.batching]:
                raise InputError(f"--{name.replace('_', '-')} is not an option of {server.batching} batching")
        return {
            "batching": BATCHINGS[server.batching](**given),
            "latency": server.latency,
            "replicas": server.replicas,
            "router": server.router,
            "goodput": " ".join(server.goodput) or None,
            "estimate_available": server.estimate_available,
            "estimate_cost_s": server.estimate_cost_s,
            "itl": self.result_format == "vllm",
        }


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


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
