"""``estp compare``: one trace, several policies, the differences and how sure they are."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, UseAppendAction, arg

from experiments.options import Load, Requests, Server

if TYPE_CHECKING:
    from experiments.compare import Setup
    from traces import Trace

DEFAULT_REPLICATIONS = 5


@dataclass(frozen=True)
class Compare:
    """Replay a trace under several scheduling policies and compare them.

    Every policy meets the same requests. With drawn arrivals the whole is repeated with other seeds,
    and differences are given with 95% intervals of the paired replications.
    """

    requests: OmitArgPrefixes[Requests] = field(default_factory=Requests)
    policy: Annotated[
        UseAppendAction[tuple[str, ...]], arg(metavar="SPEC", help_behavior_hint="(repeatable)")
    ] = ()
    """A policy: fcfs, sjf (knows the real lengths), egtp, estp, NAME,key=value, or your own as
    file.py:Class,key=value. If none is given: fcfs, sjf and the shortest first by each predictor."""
    load: OmitArgPrefixes[Load] = field(default_factory=Load)
    server: OmitArgPrefixes[Server] = field(default_factory=Server)
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for summary.json, records.parquet and the plots."""
    result_format: Literal["estp", "vllm"] = "estp"
    """vllm: also write what vllm bench serve --save-result writes, one file a run."""
    timeline: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for a timeline of each policy's first replication, for ui.perfetto.dev or chrome://tracing
    (continuous batching)."""
    workers: Annotated[int, arg(metavar="N")] = 1
    """Processes; the results are the same for any number."""
    rerun: Annotated[Path | None, arg(metavar="SUMMARY", help_behavior_hint="")] = None
    """Run again what this summary.json says; only --out, --timeline and --workers may be given with it."""

    def run(self) -> int:
        """Print the table, write the files; exit code 0."""
        from experiments import compare, report_files, table

        report_files.check_folder(self.out)
        report_files.check_folder(self.timeline, "--timeline")
        command = self if self.rerun is None else self._from_summary(self.rerun)
        trace = command.requests.read_trace()
        estimates = command.requests.read_estimates()
        setup = command._setup(tuple(estimates))
        inputs = command._inputs(setup, trace)
        if self.rerun is not None:
            report_files.check_same(inputs, self.rerun)
        comparison = compare.compare(
            trace, setup, estimates, workers=self.workers, progress=sys.stderr.isatty()
        )
        print(table.render(comparison))
        if self.out is not None:
            vllm = command.result_format == "vllm"
            report_files.write(comparison, self.out, command._options(setup), inputs, vllm)
            print(f"\nwrote {self.out}")
        if self.timeline is not None:
            for path in report_files.write_timelines(comparison, self.timeline):
                print(f"wrote {path}")
        return 0

    def _setup(self, predictors: tuple[str, ...]) -> Setup:
        from experiments.compare import Setup, default_policies

        return Setup(
            policies=self.policy or default_policies(predictors),
            seeds=self.load.seeds(DEFAULT_REPLICATIONS),
            arrivals=self.load.process(),
            num_requests=self.requests.num_prompts,
            server={**self.server.arguments(), "itl": self.result_format == "vllm"},
        )

    def _inputs(self, setup: Setup, trace: Trace) -> list[dict[str, Any]]:
        from experiments.report_files import fingerprints

        specs = [policy.split(",")[0].rpartition(":")[0] for policy in setup.policies]
        own_files = [path for path in dict.fromkeys(specs) if path.endswith(".py")]
        inputs = fingerprints([self.requests.trace, *self.requests.estimates, *own_files])
        repairs = {key: value for key, value in trace.metadata.items() if key in ("dropped", "reordered")}
        inputs[0] |= {"requests": len(trace), **repairs}
        return inputs

    def _options(self, setup: Setup) -> dict[str, Any]:
        """What --rerun needs: these options, with the defaults that depend on others filled in."""
        return {
            "requests": dataclasses.asdict(self.requests),
            "policy": list(setup.policies),
            "load": {**dataclasses.asdict(self.load), "replications": len(setup.seeds)},
            "server": dataclasses.asdict(self.server),
            "result_format": self.result_format,
        }

    def _from_summary(self, path: Path) -> Compare:
        from experiments.report_files import read_summary
        from traces.errors import InputError

        if dataclasses.replace(self, out=None, timeline=None, workers=1, rerun=None) != Compare():
            raise InputError("--rerun takes every setting from the summary; leave the others out")
        options = read_summary(path)["options"]
        try:
            command = Compare(
                requests=Requests(**_tuples(options["requests"])),
                policy=tuple(options["policy"]),
                load=Load(**options["load"]),
                server=Server(**_tuples(options["server"])),
                result_format=options["result_format"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} was not written by this version of estp compare ({error})") from error
        if command.requests.trace == "-":
            raise InputError(f"{path} was made from standard input, which is gone; save the trace in a file")
        return command


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
