"""``estp stress``: ready-made questions, each ending in one plot and one sentence."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from experiments.options import Requests, Server

if TYPE_CHECKING:
    from experiments.stress.case import Case

ALL = "all"
# Not part of what a question is: where it is written, and how.
ELSEWHERE = ("questions", "list", "server", "workers", "out")


@dataclass(frozen=True)
class Stress:
    """Ask a ready-made question about schedulers that rely on predicted lengths: one plot, one sentence.

    Without --trace, of the embedded LLM's answers to held-out prompts and the embedded predictors. Requests
    are drawn from the trace, and their arrivals at a rate; --list shows the questions.
    """

    questions: Annotated[Positional[tuple[str, ...]], arg(metavar="QUESTION", help_behavior_hint="")] = ()
    """Names of questions, or all."""
    list: bool = False
    """Show the questions and stop."""
    trace: Annotated[str | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Trace: Parquet, CSV or JSON lines; only its lengths are used, its arrivals are drawn anew."""
    format: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Format of the trace; told from its content if not given."""
    columns: Annotated[tuple[str, ...], arg(metavar="NAME=COLUMN ...", help_behavior_hint="")] = ()
    """Columns of a CSV, JSONL or foreign Parquet: prompt_tokens=in output_tokens=out."""
    estimates: Annotated[
        UseAppendAction[tuple[str, ...]], arg(metavar="FILE", help_behavior_hint="(repeatable)")
    ] = ()
    """Predicted lengths of that trace. If none are given, the true ones with log-normal noise of 0.5."""
    policy: Annotated[
        UseAppendAction[tuple[str, ...]], arg(metavar="SPEC", help_behavior_hint="(repeatable)")
    ] = ()
    """Whom to compare where a question is not about certain policies (default: fcfs, sjf and two predictors)."""
    num_prompts: Annotated[int, arg(metavar="N")] = 2000
    """Requests of a replication, drawn from the trace."""
    load: Annotated[float, arg(metavar="SHARE")] = 0.9
    """Request rate as a share of what the server can do under FCFS."""
    request_rate: Annotated[float | None, arg(metavar="PER_S", help_behavior_hint="")] = None
    """Requests per second, instead of --load."""
    seed: int = 0
    """Seed of the first replication; the others follow it."""
    replications: Annotated[int, arg(metavar="N")] = 10
    """Independent repetitions."""
    server: OmitArgPrefixes[Server] = field(default_factory=Server)
    workers: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Processes (default: one a core); the results are the same for any number."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Folder for each question's plot (PNG, SVG), data (CSV, JSON), sentence and command."""

    def run(self) -> int:
        """Print a sentence a question, write the files; exit code 0, or 2 if a question could not be asked."""
        from importlib import import_module

        from experiments.cli import USER_ERROR
        from experiments.report_files import check_folder
        from experiments.stress import QUESTIONS
        from experiments.stress.answer import write
        from experiments.style import plot_style
        from sim.plugins import unknown
        from traces.errors import InputError

        if self.list:
            for name, place in QUESTIONS.items():
                print(f"{name:16}{import_module(place).TITLE}")
            return 0
        if not self.questions:
            raise InputError(f"name a question, or all: {', '.join(QUESTIONS)}")
        for name in self.questions:
            if name not in (*QUESTIONS, ALL):
                raise InputError(unknown(name, [*QUESTIONS, ALL], "question"))
        check_folder(self.out)
        case = self._case()
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
        failed = False
        for name in QUESTIONS if ALL in self.questions else dict.fromkeys(self.questions):
            question = import_module(QUESTIONS[name])
            with plot_style():
                try:
                    answer = question.answer(case)
                except InputError as error:
                    # What one question cannot use, another may: an option of one kind of batching, say.
                    print(f"estp: stress {name}: {error}", file=sys.stderr)
                    failed = True
                    continue
                print(f"{question.TITLE} [{name}]\n  {answer.sentence}", flush=True)
                if self.out is not None:
                    write(answer, name, question.TITLE, self.out, self.command(name), self._settings(case))
        if self.out is not None:
            print(f"\nwrote {self.out}")
        return USER_ERROR if failed else 0

    def _case(self) -> Case:
        from joblib import cpu_count

        from experiments.options import Load
        from experiments.stress.case import embedded, make_case
        from traces.errors import InputError

        if self.trace is None and self.estimates:
            raise InputError("--estimates belong to a trace; name it with --trace")
        if self.trace is None:
            trace, estimates = embedded()
        else:
            asked = Requests(self.trace, self.format, self.columns, estimates=self.estimates)
            trace, estimates = asked.read_trace(), asked.read_estimates()
        workers = cpu_count() if self.workers is None else self.workers
        if workers < 1:
            raise InputError(f"{workers} workers cannot work; ask for 1 at least")
        return make_case(
            trace,
            estimates,
            self.policy,
            server=self.server,
            seeds=Load("burst", seed=self.seed, replications=self.replications).seeds(self.replications),
            num_requests=self.num_prompts,
            load=self.load,
            request_rate=self.request_rate,
            workers=workers,
            progress=sys.stderr.isatty(),
        )

    def command(self, name: str) -> str:
        """The command that makes a question's files again, wherever they are put and however many work."""
        words = ["estp", "stress", name]
        for group in (self, self.server):
            for option in dataclasses.fields(group):
                value = getattr(group, option.name)
                if option.name not in ELSEWHERE and value != option.default:
                    words += _flags(option.name.replace("_", "-"), value)
        return shlex.join(words)

    def _settings(self, case: Case) -> dict[str, Any]:
        from experiments.report_files import fingerprints

        return {
            "inputs": fingerprints([*([self.trace] if self.trace else []), *self.estimates]),
            "server": dataclasses.asdict(self.server),
            "policies": list(case.policies),
            "seeds": list(case.seeds),
            "num_prompts": case.num_requests,
            "load": case.load if case.request_rate is None else None,
            "request_rate": case.request_rate,
        }


def _flags(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, tuple):
        # --columns and --goodput take several values at once, the others one each time.
        if name in ("columns", "goodput"):
            return [f"--{name}", *value]
        return [word for one in value for word in (f"--{name}", one)]
    return [f"--{name}", str(value)]
