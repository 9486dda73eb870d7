"""Options of static batches with a real LLM, and the runs that they make."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.hf.static_runs import StaticRun
    from predictor.backbone import Backbone
    from traces import Estimates, Trace

SEED_OF_CHOICE = 7


@dataclass(frozen=True)
class Static:
    """Static batches with a real LLM (--engine hf)."""

    batch_size: Annotated[int, arg(metavar="N")] = 4
    """Most requests in a batch."""
    rates: Annotated[tuple[float, ...], arg(metavar="PER_S ...")] = (float("inf"), 2.0, 1.0)
    """Loads: requests a second of Poisson arrivals; inf: all at once."""
    max_output_tokens: Annotated[int, arg(metavar="N")] = 96
    """Take only requests whose answers have at most so many tokens, to keep real runs short."""
    budget_s: Annotated[float | None, arg(metavar="S", help_behavior_hint="")] = None
    """Begin no run after so many seconds; the same command goes on where it stopped."""

    def choose(self, trace: Trace, count: int, seed: int) -> Trace:
        """``count`` requests, drawn from those that are short enough.

        Raises:
            InputError: there are too few.
        """
        import numpy as np

        from traces.errors import InputError

        short = np.flatnonzero(trace.output_tokens <= self.max_output_tokens)
        if not 1 <= count <= len(short):
            raise InputError(
                f"{len(short)} requests have at most {self.max_output_tokens} output tokens; "
                f"{count} were asked for"
            )
        return trace.take(np.sort(np.random.default_rng([seed, SEED_OF_CHOICE]).permutation(short)[:count]))

    def loads(self, chosen: Trace, seed: int) -> dict[str, Trace]:
        """The same requests at each load.

        Raises:
            InputError: a rate is not above 0.
        """
        import numpy as np

        from traces.arrivals import Arrivals

        loads = dict[str, Any]()
        for rate in self.rates:
            burst = rate == float("inf")
            arrivals = Arrivals("burst") if burst else Arrivals("poisson", rate)
            name = "all at once" if burst else f"{rate:g} per s"
            loads[name] = arrivals.apply(chosen, np.random.default_rng([seed, len(loads)]))
        return loads


def run_all(
    static: Static,
    loads: Mapping[str, Trace],
    estimates: Mapping[str, Estimates],
    policies: Sequence[str],
    repeats: int,
    records: Path,
    backbone: tuple[str, str, str, bool],
) -> tuple[list[StaticRun], int]:
    """Make the runs that ``records`` does not hold; the model is loaded only if there is one to make.

    Args:
        backbone: what `load_backbone` takes: model, device, dtype and whether its own code is trusted.

    Returns: the runs, and how many are missing because the budget was spent.
    """
    from experiments.hf.engine import PaddedEngine
    from experiments.hf.static_runs import StaticRun, ranks, read_run, run_static, write_run
    from predictor.backbone import load_backbone

    began_s, engine, runs, missing = time.monotonic(), None, [], 0
    records.mkdir(parents=True, exist_ok=True)
    for repeat in range(repeats):
        for load, trace in loads.items():
            for policy in policies:
                path = records / f"{load.replace(' ', '-')}-{policy}-{repeat}.json"
                facts = {
                    "model": backbone[0].rstrip("/").rpartition("/")[2],
                    "requests": [str(name) for name in trace.request_id],
                    "arrival_s": trace.arrival_s.tolist(),
                    "output_tokens": trace.output_tokens.tolist(),
                    "batch_size": static.batch_size,
                }
                if path.exists():
                    runs.append(read_run(path, facts))
                    continue
                if static.budget_s is not None and time.monotonic() - began_s > static.budget_s:
                    missing += 1
                    continue
                if engine is None:
                    engine = PaddedEngine(load_backbone(*backbone))
                    engine.run([[1] * 64] * static.batch_size, 8)  # the first batch of a process is slow
                print(f"running {path.stem}", file=sys.stderr, flush=True)
                prompts = _encoded(engine.backbone, trace)
                rank = ranks(trace, policy, estimates)
                before_s = engine.reference_s()
                batches = run_static(engine, prompts, trace, rank, static.batch_size)
                run = StaticRun(
                    load, policy, repeat, static.batch_size, (before_s, engine.reference_s()), batches
                )
                write_run(run, facts, path)
                runs.append(run)
    return runs, missing


def among(estimates: Mapping[str, Estimates], trace: Trace) -> dict[str, Estimates]:
    """The estimates of the trace's requests alone."""
    wanted = set(trace.request_id.tolist())
    return {
        name: one.take([row for row, value in enumerate(one.request_id.tolist()) if value in wanted])
        for name, one in estimates.items()
    }


def estimated(trace: Trace, path: Path, device: str) -> dict[str, Estimates]:
    """The embedded predictors' estimates for the trace, from ``path``, where they are written first if need be."""
    from predictor.backbone import load_backbone
    from predictor.checkpoint import load_predictor
    from predictor.embedded import PREDICTORS
    from predictor.predict import predict
    from traces import read_estimates

    if not path.exists() or set(next(iter(read_estimates(path).values())).request_id) != set(
        trace.request_id
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        predictors = [load_predictor(one) for one in PREDICTORS]
        backbone = load_backbone(predictors[0].backbone, device, predictors[0].dtype_name)
        predict(trace, predictors, backbone, path)
    return read_estimates(path)


def _encoded(backbone: Backbone, trace: Trace) -> list[list[int]]:
    from traces.errors import InputError

    if trace.prompt is None:
        raise InputError("a real LLM needs the prompts' text, which the trace does not have")
    prompts = [backbone.encode(text) for text in trace.prompt]
    for row, (ids, told) in enumerate(zip(prompts, trace.prompt_tokens, strict=True)):
        if len(ids) != told:
            raise InputError(
                f"request {trace.request_id[row]}: its prompt has {len(ids)} tokens for {backbone.name}, and "
                f"{told} in the trace, which is of another LLM"
            )
    return prompts
