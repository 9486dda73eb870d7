"""``estp train``: a rollout -> a predictor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from experiments.options import EMBEDDED_MODEL

if TYPE_CHECKING:
    from predictor.backbone import Backbone
    from predictor.checkpoint import LengthPredictor
    from predictor.train import TrainSettings
    from traces import Trace


@dataclass(frozen=True)
class Train:
    """Train a length predictor on an LLM's prefill activations and real output lengths.

    Without --lambda1, --lambda2, --signal-scale or --alpha the settings are chosen on validation prompts from
    the pooling's grid. Prompts are split; all samples of a prompt are in one part.
    """

    trace: Annotated[Positional[str], arg(metavar="TRACE")]
    """Trace with prompts and real output lengths, such as estp rollout writes; embedded: the one included."""
    out: Annotated[Positional[Path], arg(metavar="DIR")]
    """Folder to write: model.safetensors, config.json and a model card."""
    pooling: Literal["mean", "last", "last-two-layers", "max", "egtp", "semantic", "estp"] = "estp"
    """last-two-layers: the last token's state after two thirds of the layers beside the one after the last."""
    layers: Annotated[tuple[int, ...], arg(metavar="K ...", help_behavior_hint="")] = ()
    """With --pooling last: the layers whose last token's states are read side by side, 0 the embeddings."""
    signal_scale: Literal["paper", "visible", "zscore", "detrended"] | None = None
    """How attention and entropy are scaled; paper: not at all."""
    lambda1: float | None = None
    """Weight of the attention received."""
    lambda2: float | None = None
    """Weight of the entropy."""
    alpha: float | None = None
    """Temperature of the softmax over tokens."""
    name: str | None = None
    """Name of the predictor in tables and policies; the pooling's if not given."""
    model: str = EMBEDDED_MODEL
    """Folder or hub name of the LLM whose activations are read."""
    device: str = "auto"
    """cpu, cuda, mps or auto."""
    dtype: str = "auto"
    trust_remote_code: bool = False
    """Let the LLM's repository run its own Python code here."""
    seed: int = 0
    """Of the split and of the head's start."""
    epochs: int = 30
    learning_rate: float = 1e-3
    batch_size: int = 64
    targets: Literal["rows", "samples"] = "rows"
    """rows: each answer is a target of its own; samples: all answers to one prompt are one, their distribution."""

    def run(self) -> int:
        """Train and write the folder; exit code 0."""
        from predictor.backbone import load_backbone
        from predictor.embedded import read_rollout
        from predictor.train import TrainSettings
        from traces.errors import InputError

        trace = read_rollout(self.trace)
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise InputError(f"{self.out} exists already; name a new folder or remove it")
        settings = TrainSettings(
            self.learning_rate, self.batch_size, self.epochs, seed=self.seed, targets=self.targets
        )
        fixed = self._fixed()
        backbone = load_backbone(self.model, self.device, self.dtype, self.trust_remote_code)
        checkpoint = self._train(trace, backbone, fixed, settings)
        checkpoint.write(self.out)
        print(f"wrote {self.out}: {checkpoint.summary()}")
        return 0

    def _fixed(self) -> dict[str, Any]:
        """The pooling settings that are given, none of which goes with layers."""
        from traces.errors import InputError

        given = {
            "signal_scale": self.signal_scale,
            "lambda1": self.lambda1,
            "lambda2": self.lambda2,
            "alpha": self.alpha,
        }
        fixed = {key: value for key, value in given.items() if value is not None}
        if self.layers and self.pooling != "last":
            raise InputError("--layers reads the last token of chosen layers; it goes with --pooling last")
        if fixed and (self.layers or self.pooling == "last-two-layers"):
            option = f"--{next(iter(fixed))}".replace("_", "-")
            raise InputError(f"{option} weighs tokens; of chosen layers only the last token is read")
        return fixed

    def _train(
        self, trace: Trace, backbone: Backbone, fixed: dict[str, Any], settings: TrainSettings
    ) -> LengthPredictor:
        from predictor.extensions.layers import TWO
        from predictor.features import read_signals
        from predictor.fitting import train_on_layers, train_predictor
        from predictor.layers import read_layers
        from predictor.rows import prompts_of

        name, texts = self.name or self.pooling, prompts_of(trace)
        if self.layers or self.pooling == "last-two-layers":
            states = read_layers(backbone, texts)
            return train_on_layers(name, trace, states, backbone, self.layers or states.at(TWO), settings)
        signals = read_signals(backbone, texts)
        return train_predictor(name, trace, signals, backbone, self.pooling, fixed, settings)
