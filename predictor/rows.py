"""What training and evaluation ask of a trace's rows: texts, which rows share a prompt, scenarios."""

import numpy as np
from numpy.typing import NDArray

from traces import Trace
from traces.errors import InputError


def prompts_of(trace: Trace) -> list[str]:
    """The prompt of each row. Raises InputError when the trace has none, or one that is empty."""
    if trace.prompt is None:
        raise InputError("the trace has no column 'prompt', so there is no text to predict a length from")
    texts: list[str] = trace.prompt.tolist()
    for request, text in zip(trace.request_id, texts, strict=True):
        if not text:
            raise InputError(f"request {request!r} has an empty prompt")
    return texts


def prompt_ids(trace: Trace) -> NDArray[np.object_]:
    """(n,) what a split keeps together: the column `prompt_id`, else the prompt's text."""
    return np.asarray(trace.extra.get("prompt_id", prompts_of(trace)), dtype=object)


def with_scenario(trace: Trace, column: str | None = None) -> Trace:
    """The trace with its scenarios taken from another column.

    Without a name: its own scenarios, else ForeLen's `split` or AlpacaEval's `dataset`, else none. Raises
    InputError when there is no such column.
    """
    if column is None:
        found = [name for name in ("split", "dataset") if name in trace.extra]
        if trace.scenario is not None or not found:
            return trace
        column = found[0]
    columns = trace.columns()
    if column not in columns:
        raise InputError(f"the trace has no column {column!r} for the scenario; it has {', '.join(columns)}")
    return trace.replace(scenario=[str(value) for value in columns[column].tolist()])


def scenarios_of(trace: Trace) -> NDArray[np.object_]:
    """(n,) the scenario of each row; all `-` where the trace has none."""
    if trace.scenario is None:
        return np.full(len(trace), "-", dtype=object)
    return np.asarray(trace.scenario, dtype=object)
