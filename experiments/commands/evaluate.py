"""``estp evaluate``: every predictor on the same splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL

if TYPE_CHECKING:
    from predictor.cells import Cells
    from predictor.evaluate import Evaluation
    from predictor.methods import Data, Method
    from traces import Trace


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
    """Only these methods; a wrong name lists all."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM whose activations are read."""
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str = "auto"
    seeds: int = 5
    """So many splits and starts: 0, 1, ..."""
    epochs: int = 30
    leave_one_scenario_out: bool = False
    """Also train without each scenario in turn, and test on it alone."""
    learning_curve: Annotated[tuple[float, ...], arg(metavar="SHARE ...", help_behavior_hint="")] = ()
    """Also train on these shares of the training prompts, such as 0.1 0.25 0.5."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None
    """Also write all figures, chosen settings and validation losses as JSON."""

    def run(self) -> int:
        """Print the tables; exit code 0."""
        from experiments.evaluation import as_json, render, render_protocol
        from predictor.cells import Cells, fingerprint_of
        from predictor.embedded import read_rollout
        from predictor.evaluate import evaluate, random_splits
        from traces.errors import InputError
        from traces.files import atomic_path

        if self.seeds < 1:
            raise InputError(f"--seeds is {self.seeds}; at least 1 is needed")
        methods = self._methods()
        trace = read_rollout(self.trace)
        data, backbone = self._read(trace, methods)
        cells = None
        if self.out is not None:
            cells = Cells(self.out.with_name(self.out.name + ".cells"), fingerprint_of(trace, backbone))
        splits = random_splits(data, range(self.seeds))
        result = evaluate(data, methods, splits, cells=cells)
        print(render(result))
        protocols = self._protocols(result, methods, cells)
        for name, parts in protocols.items():
            print("\n" + render_protocol(name.replace("_", " "), parts))
        if self.out is not None:
            with atomic_path(self.out) as temporary:
                temporary.write_text(as_json(result, self.model, protocols))
            print(f"\nwrote {self.out}")
        return 0

    def _methods(self) -> list[Method]:
        from predictor.catalogue import catalogue
        from predictor.train import TrainSettings
        from traces.errors import InputError

        known = catalogue(TrainSettings(epochs=self.epochs))
        unknown = [name for name in self.methods if name not in known]
        if unknown:
            raise InputError(f"there is no method {unknown[0]!r}; the methods are {', '.join(known)}")
        return [known[name] for name in dict.fromkeys(self.methods or known)]

    def _read(self, trace: Trace, methods: list[Method]) -> tuple[Data, str]:
        """What the methods read of the LLM, which is loaded only if one of them does; and its fingerprint."""
        from predictor.backbone import load_backbone
        from predictor.features import fingerprint, read_signals
        from predictor.layers import read_layers
        from predictor.methods import Data

        reads = frozenset().union(*(method.reads for method in methods))
        if not reads:
            return Data(trace), ""
        backbone = load_backbone(self.model, self.device, self.dtype)
        texts = Data(trace).prompts
        data = Data(
            trace,
            read_signals(backbone, texts) if "signals" in reads else (),
            read_layers(backbone, texts) if "layers" in reads else None,
        )
        return data, f"{fingerprint(backbone)} {backbone.model.dtype}"

    def _protocols(
        self, result: Evaluation, methods: list[Method], cells: Cells | None
    ) -> dict[str, dict[str, Evaluation]]:
        """The evaluations of each further protocol that was asked for, by part, the plain one beside them."""
        from predictor.evaluate import evaluate, smaller_splits, splits_without

        found: dict[str, dict[str, Evaluation]] = {}
        data, splits = result.data, result.splits
        if self.leave_one_scenario_out:
            found["leave_one_scenario_out"] = {
                f"without {scenario}": evaluate(
                    data, methods, splits_without(data, scenario, splits), cells=cells
                )
                for scenario in sorted(set(data.scenarios))
            }
        if self.learning_curve:
            shares = {f"{share:.0%}": smaller_splits(data, share, splits) for share in self.learning_curve}
            parts = {name: evaluate(data, methods, smaller, cells=cells) for name, smaller in shares.items()}
            found["learning_curve"] = {**parts, "100%": result}
        return found
