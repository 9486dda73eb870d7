"""The ``estp`` command: finds the subcommand, runs it, and turns the user's errors into one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module, metadata
from typing import Any, Protocol

# One command, one module with one dataclass. Only the module that is asked for is imported, and what
# is heavy (polars, matplotlib, torch) is imported inside its ``run``, so that help answers at once.
COMMANDS = {
    "compare": "experiments.commands.compare:Compare",
    "conformance": "experiments.commands.conformance:Conformance",
    "stress": "experiments.commands.stress:Stress",
    "demo": "experiments.commands.demo:Demo",
    "sweep": "experiments.commands.sweep:Sweep",
    "report": "experiments.commands.report:Report",
    "prompts": "experiments.commands.prompts:Prompts",
    "rollout": "experiments.commands.rollout:Rollout",
    "train": "experiments.commands.train:Train",
    "predict": "experiments.commands.predict:Predict",
    "explain": "experiments.commands.explain:Explain",
    "diagnose": "experiments.commands.diagnose:Diagnose",
    "evaluate": "experiments.commands.evaluate:Evaluate",
    "remaining": "experiments.commands.remaining:Remaining",
    "trace": "experiments.commands.trace:TraceCommand",
    "calibrate": "experiments.commands.calibrate:Calibrate",
    "validate": "experiments.commands.validate:Validate",
    "export-priority": "experiments.commands.export_priority:ExportPriority",
}

DESCRIPTION = (
    "What would a scheduler that knows only predicted output lengths do to an LLM server? "
    "Predict lengths from an LLM's prefill, and simulate batching under any policy, without the GPU."
)
USER_ERROR = 2
INTERRUPTED = 130


class Command(Protocol):
    """A subcommand: a frozen dataclass whose fields are its options."""

    def run(self) -> int:
        """Do the work; the exit code. Raises InputError where the user has to mend something."""
        ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 0, 1 (a check failed), 2 (bad input) or 130 (interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(metadata.version("estp"))
        return 0
    try:
        return _parse(given).run()
    except ValueError as error:
        # Imported late: the package behind it costs more time than the parser.
        from traces.errors import InputError

        if not isinstance(error, InputError):
            raise
        print(f"estp: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("estp: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone (``estp ... | head``); Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parse(arguments: list[str]) -> Command:
    import tyro

    chosen = arguments[0] if arguments else ""
    # With one subcommand tyro would leave out its name, so a second one always stands beside it.
    names = [chosen, next(name for name in COMMANDS if name != chosen)] if chosen in COMMANDS else COMMANDS
    classes: dict[str, Any] = {name: _load(COMMANDS[name]) for name in names}
    command: Command = tyro.extras.subcommand_cli_from_dict(
        classes, prog="estp", description=DESCRIPTION, args=arguments
    )
    return command


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    sys.exit(main())
