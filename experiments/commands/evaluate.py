"""``estp evaluate``: every predictor on the same splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL

if TYPE_CHECKING:
    from predictor.cells import Cells
    from predictor.evaluate import Evaluation
    from predictor.methods import Data, Method
    from predictor.remaining import Remaining
    from traces import Trace

EVERY = 16


@dataclass(frozen=True)
class Evaluate:
    """Compare length predictors on real output lengths.

    Each method is trained and tested on the same splits by prompt, its settings chosen on validation. MAE, RMSE,
    Kendall's tau, bin accuracy, CRPS and calibration a scenario, and differences with 95% bootstrap intervals by
    prompt. With --out finished fits are kept beside the file, so a killed run goes on where it stopped, and a
    later one with more methods or seeds trains only those.
    """

    trace: Annotated[Positional[str], arg(metavar="TRACE")] = "embedded"
    """Trace with prompts and real output lengths; embedded: the one included."""
    methods: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="")] = ()
    """Only these methods; a wrong name lists all. ssjf-reg, ssjf-mc and ltr run if named, or with --encoder."""
    encoder: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Folder or hub name of what ssjf-reg, ssjf-mc and ltr fine-tune (default: google-bert/bert-base-uncased)."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM whose activations are read."""
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str = "auto"
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""
    seeds: int = 5
    """So many splits and starts: 0, 1, ..."""
    epochs: int = 30
    short_grids: bool = False
    """Fewer candidates a pooling: what validation chose on the embedded LLM, and its neighbours."""
    leave_one_scenario_out: bool = False
    """Also train without each scenario in turn, and test on it alone."""
    encoder_learning_rate: float = 2e-5
    """Of the encoder's fine-tuning; an encoder that is not pretrained needs more, such as 5e-4."""
    learning_curve: Annotated[tuple[float, ...], arg(metavar="SHARE ...", help_behavior_hint="")] = ()
    """Also train on these shares of the training prompts, such as 0.1 0.25 0.5."""
    scenario: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    """Column that tells the scenario; if not given: scenario, ForeLen's split or AlpacaEval's dataset."""
    tokenizer: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Counts the tokens of texts that come without lengths: a tokenizer.json, a folder with one, a hub name, or
    smollm2-135m-instruct for the embedded one."""
    on_error: Literal["fail", "skip"] = "fail"
    """Refuse a trace at its first fault, or leave such rows out and say how many."""
    remaining: Annotated[int, arg(metavar="N")] = 0
    """Also compare predictions of the remaining length (TRAIL's refinement, PLP) on so many answers and the same
    splits; estp remaining has more options."""
    cost: Annotated[int, arg(metavar="N")] = 0
    """Also measure milliseconds and megabytes a prompt on so many prompts."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write all figures, chosen settings and validation losses as JSON."""

    def run(self) -> int:
        """Print the tables; exit code 0."""
        from experiments.evaluation import as_json, not_run, render, render_cost, render_protocol
        from experiments.remaining import render as render_remaining
        from predictor.cells import Cells, fingerprint_of
        from predictor.cost import measure_cost
        from predictor.evaluate import evaluate, random_splits
        from traces.errors import InputError
        from traces.files import atomic_path

        if self.seeds < 1:
            raise InputError(f"--seeds is {self.seeds}; at least 1 is needed")
        methods = self._methods()
        data, backbone, name = self._read(self._trace(), methods)
        cells = None
        if self.out is not None:
            cells = Cells(self.out.with_name(self.out.name + ".cells"), fingerprint_of(data, name))
        splits = random_splits(data, range(self.seeds))
        result = evaluate(data, methods, splits, cells=cells)
        print(render(result))
        protocols = self._protocols(result, methods, cells)
        for protocol, parts in protocols.items():
            print("\n" + render_protocol(protocol.replace("_", " "), parts))
        remaining = self._remaining(result, backbone)
        if remaining is not None:
            print("\n" + render_remaining(remaining))
        cost = measure_cost(backbone, data, methods, splits[0], self.cost) if self.cost > 0 else None
        if cost is not None:
            print("\n" + render_cost(cost))
        if not self.methods:
            print("\n" + not_run(result, self.remaining > 0, self.cost > 0))
        if self.out is not None:
            with atomic_path(self.out) as temporary:
                temporary.write_text(as_json(result, self.model, protocols, remaining, cost))
            print(f"\nwrote {self.out}")
        return 0

    def _trace(self) -> Trace:
        from experiments.commands.trace_source import Reading
        from predictor.embedded import ROLLOUT
        from predictor.rows import with_scenario

        source = str(ROLLOUT) if self.trace == "embedded" else self.trace
        trace = Reading(on_error=self.on_error, tokenizer=self.tokenizer).read(source)
        return with_scenario(trace, self.scenario)

    def _methods(self) -> list[Method]:
        from predictor.backbone import pick_device
        from predictor.baselines.encoder import BERT, FineTuning
        from predictor.catalogue import NEED_ENCODER, catalogue
        from predictor.train import TrainSettings
        from traces.errors import InputError

        device = str(pick_device(self.device))
        tuning = FineTuning(self.encoder or BERT, self.encoder_learning_rate, device=device)
        known = catalogue(TrainSettings(epochs=self.epochs), tuning, self.short_grids)
        unknown = [name for name in self.methods if name not in known]
        if unknown:
            raise InputError(f"there is no method {unknown[0]!r}; the methods are {', '.join(known)}")
        default = [name for name in known if self.encoder or name not in NEED_ENCODER]
        return [known[name] for name in dict.fromkeys(self.methods or default)]

    def _read(self, trace: Trace, methods: list[Method]) -> tuple[Data, Any, str]:
        """What the methods read of the LLM, which is loaded only if one of them does; it; and its fingerprint."""
        from predictor.backbone import load_backbone
        from predictor.features import fingerprint, read_signals
        from predictor.layers import read_layers
        from predictor.methods import Data

        texts = Data(trace).prompts
        reads = frozenset().union(*(method.reads for method in methods))
        if not reads and not self.remaining:
            return Data(trace), None, ""
        backbone = load_backbone(self.model, self.device, self.dtype, self.trust_remote_code)
        data = Data(
            trace,
            read_signals(backbone, texts) if "signals" in reads else (),
            read_layers(backbone, texts) if "layers" in reads else None,
        )
        return data, backbone, f"{fingerprint(backbone)} {backbone.model.dtype}"

    def _remaining(self, result: Evaluation, backbone: Any) -> Remaining | None:
        from predictor.remaining import read_and_evaluate

        if self.remaining < 1:
            return None
        return read_and_evaluate(backbone, result.data.trace, result.splits, self.remaining, EVERY)

    def _protocols(
        self, result: Evaluation, methods: list[Method], cells: Cells | None
    ) -> dict[str, dict[str, Evaluation]]:
        """The evaluations of each further protocol that was asked for, by part, the plain one beside them."""
        from predictor.evaluate import evaluate, only, smaller_splits, splits_without

        found: dict[str, dict[str, Evaluation]] = {}
        data, splits = result.data, result.splits
        if self.leave_one_scenario_out:
            parts = found["leave_one_scenario_out"] = {}
            for scenario in sorted(set(data.scenarios)):
                without = splits_without(data, scenario, splits)
                parts[f"{scenario}, trained on all"] = only(result, scenario)
                parts[f"{scenario}, left out"] = evaluate(data, methods, without, cells=cells)
        if self.learning_curve:
            shares = {f"{share:.0%}": smaller_splits(data, share, splits) for share in self.learning_curve}
            curve = {name: evaluate(data, methods, smaller, cells=cells) for name, smaller in shares.items()}
            found["learning_curve"] = {**curve, "100%": result}
        return found
