"""``estp export-priority``: estimates -> request priorities for a real vLLM server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

if TYPE_CHECKING:
    from traces import Estimates


@dataclass(frozen=True)
class ExportPriority:
    """Write an order of requests as vLLM priorities, to be run with --scheduling-policy priority.

    With --trace: lines for vllm run-batch, prompts included. Without: ids and priorities alone. Smaller is
    served earlier; ties go to the earlier arrival.
    """

    estimates: Annotated[Positional[Path], arg(metavar="ESTIMATES")]
    """The table that estp predict wrote."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """The JSON lines to write."""
    trace: Annotated[str | None, arg(metavar="TRACE", help_behavior_hint="")] = None
    """The trace with these requests' prompts; lines are in its order of arrival."""
    policy: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """A predictor of the table, fcfs (all alike) or sjf (the trace's real lengths); the table's only
    predictor, or estp, if not given."""
    predictor: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Refuse estimates that this predictor (a folder that estp train wrote) did not make."""
    scale: Literal["tokens", "rank"] = "tokens"
    """tokens: thousandths of a token, comparable between files; rank: 0, 1, ... for scores without a unit."""
    model: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Name of the model on the server; the LLM of the estimates if not given."""
    max_tokens: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None
    """Let no answer be longer."""
    recorded_lengths: bool = False
    """Make every answer as long as it is in the trace, as a simulation does."""

    def run(self) -> int:
        """Write the lines; exit code 0."""
        from predictor.priority import batch_lines, id_lines, priorities, values_of
        from traces import read_estimates, read_trace
        from traces.errors import InputError
        from traces.files import atomic_path

        if self.max_tokens is not None and self.max_tokens < 1:
            raise InputError(f"--max-tokens is {self.max_tokens}; at least 1 is needed")
        if self.max_tokens is not None and self.recorded_lengths:
            raise InputError("--max-tokens and --recorded-lengths exclude each other")
        estimates = read_estimates(self.estimates)
        trace = None if self.trace is None else read_trace(self.trace)
        if self.predictor is not None:
            self._check_predictor(self.predictor, estimates)
        policy = self.policy or (next(iter(estimates)) if len(estimates) == 1 else "estp")
        ids, values = values_of(policy, estimates, trace)
        numbers = priorities(values, self.scale)
        if trace is None:
            if self.model or self.max_tokens or self.recorded_lengths:
                raise InputError("--model, --max-tokens and --recorded-lengths need the prompts; add --trace")
            lines = id_lines(ids, numbers)
        else:
            backbones = [str(e.metadata["backbone"]) for e in estimates.values() if "backbone" in e.metadata]
            model = self.model or next(iter(backbones), None)
            if model is None:
                raise InputError(f"{self.estimates} names no LLM; say which the server has with --model")
            lines = batch_lines(
                trace, numbers, model, max_tokens=self.max_tokens, recorded_lengths=self.recorded_lengths
            )
        for source in (self.estimates, Path(self.trace or "-")):
            if self.out.exists() and source.exists() and self.out.samefile(source):
                raise InputError(f"{self.out} was read and would be overwritten; name another file to write")
        with atomic_path(self.out) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        spread = f" from {numbers.min()} to {numbers.max()}" if len(numbers) else ""
        print(f"wrote {self.out}: {len(numbers)} requests, {policy}, priorities{spread}")
        return 0

    def _check_predictor(self, source: str, estimates: dict[str, Estimates]) -> None:
        from predictor.checkpoint import load_predictor
        from traces.errors import InputError

        predictor = load_predictor(source)
        if predictor.predictor not in estimates:
            raise InputError(
                f"{self.estimates} has estimates of {', '.join(estimates)}, none of {predictor.predictor!r}"
            )
        predictor.check_estimates(estimates[predictor.predictor])
