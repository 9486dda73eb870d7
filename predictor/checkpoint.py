"""A trained length predictor on disk: safetensors weights, a JSON config and a model card; never pickle."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from torch import Tensor, nn

from predictor.backbone import Backbone
from predictor.features import PromptSignals, fingerprint, pooled_features
from predictor.head import Bins, Floats, SoftLabelHead, quantiles
from predictor.pooling import PoolingSettings, PositionTrend
from predictor.train import Fitted
from traces import Estimates
from traces.errors import InputError
from traces.estimates import QUANTILES


class LengthPredictor(nn.Module, PyTorchModelHubMixin, library_name="estp", license="apache-2.0"):
    """Pooling settings, position trend, bins and head as one object with `save_pretrained`/`from_pretrained`.

    `predictor`: the name its estimates bear; `backbone`, `backbone_fingerprint`, `dtype`: which LLM's
    activations it was trained on; `facts`: what it was trained on and how well it did, for the model card.
    """

    def __init__(
        self,
        predictor: str,
        backbone: str,
        backbone_fingerprint: str,
        dtype: str,
        pooling: dict[str, Any],
        edges: list[float],
        features: int,
        trend: dict[str, Any] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.predictor = predictor
        self.backbone = backbone
        self.backbone_fingerprint = backbone_fingerprint
        self.dtype_name = dtype
        self.pooling = PoolingSettings.from_json(pooling)
        self.trend = None if trend is None else PositionTrend.from_json(trend)
        self.bins = Bins(tuple(edges))
        self.facts = facts or {}
        self.head = SoftLabelHead(features, len(edges) - 1)
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) pooled features -> (n, K) bin probabilities, float64."""
        logits: Tensor = self.head(features.float())
        return logits.double().softmax(-1)

    def probabilities(self, signals: Sequence[PromptSignals], prompts: Sequence[str]) -> Floats:
        """(n, K) bin probabilities of n prompts from their signals."""
        features = pooled_features(signals, [self.pooling], self.trend, prompts)[0]
        with torch.no_grad():
            return np.asarray(self(features).numpy())

    def head_hash(self) -> str:
        """SHA-256 over the weights, so that estimates can name what made them."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.head.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        return digest.hexdigest()

    def summary(self) -> str:
        """One line: settings and test scores."""
        p = self.pooling
        test = self.facts.get("test", {})
        measured = ", ".join(f"{k} {v:.3g}" for k, v in test.items())
        return f"{p.pooling}, {p.signal_scale}, lambda {p.lambda1:g} {p.lambda2:g}, alpha {p.alpha:g}; test: {measured}"

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The card that `save_pretrained` writes: data, settings, measures and limits."""
        facts = json.dumps(self.facts, indent=1, sort_keys=True)
        return ModelCard(
            f"---\nlicense: apache-2.0\nlibrary_name: estp\n---\n\n# Length predictor `{self.predictor}`\n\n"
            f"Predicts how many tokens `{self.backbone}` writes in answer to a prompt, from its {self.dtype_name} "
            f"prefill activations ({self.summary()}).\n\n"
            "It knows no other model, chat template or sampling settings than those below, no length beyond its "
            f"last bin edge ({self.bins.edges[-1]:.0f} tokens), and refuses the activations of another model.\n\n"
            f"```json\n{facts}\n```\n"
        )

    def write(self, folder: Path) -> None:
        """`save_pretrained` into a new or empty folder, all or nothing."""
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
        try:
            self.save_pretrained(part)
            part.chmod(0o755)
            part.replace(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def check_backbone(self, backbone: Backbone) -> None:
        """Refuse activations of another LLM: InputError naming the difference."""
        found = fingerprint(backbone)
        if found != self.backbone_fingerprint:
            raise InputError(
                f"predictor {self.predictor!r} was trained on the activations of {self.backbone!r} "
                f"(fingerprint {self.backbone_fingerprint}), but the model is {backbone.name!r} ({found}); "
                "use that model, or train a predictor for this one"
            )
        dtype = str(backbone.model.dtype).removeprefix("torch.")
        if dtype != self.dtype_name:
            raise InputError(
                f"predictor {self.predictor!r} was trained on {self.dtype_name} activations, but the model "
                f"runs in {dtype}; use --dtype {self.dtype_name}"
            )


def make_checkpoint(
    name: str,
    backbone: Backbone,
    pooling: PoolingSettings,
    trend: PositionTrend | None,
    fitted: Fitted,
    facts: dict[str, Any],
) -> LengthPredictor:
    """Bundle a trained head with all that is needed to use it on a new prompt."""
    checkpoint = LengthPredictor(
        predictor=name,
        backbone=backbone.name,
        backbone_fingerprint=fingerprint(backbone),
        dtype=str(backbone.model.dtype).removeprefix("torch."),
        pooling=pooling.to_json(),
        edges=list(fitted.bins.edges),
        features=backbone.hidden_size,
        trend=trend.to_json() if trend is not None and pooling.needs_trend else None,
        facts=facts,
    )
    checkpoint.head.load_state_dict(fitted.head.state_dict())
    return checkpoint


def load_predictor(source: str | Path) -> LengthPredictor:
    """Load a checkpoint from a folder or a hub name. Raises InputError when there is none."""
    local = Path(source).exists()
    if local and not (Path(source) / "config.json").is_file():
        raise InputError(
            f"{source} is no predictor: it has no config.json; give a folder that estp train wrote"
        )
    try:
        loaded: LengthPredictor = LengthPredictor.from_pretrained(str(source))
    except (OSError, TypeError, KeyError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"cannot load a predictor from {str(source)!r}: {reason}") from error
    return loaded.eval()


def as_estimates(checkpoint: LengthPredictor, request_id: Any, probabilities: Floats) -> Estimates:
    """The estimates table of one predictor: mean = sum_j p_j c_j over bin centres, quantiles, probabilities."""
    return Estimates(
        predictor=checkpoint.predictor,
        request_id=request_id,
        mean=probabilities @ checkpoint.bins.centres,
        quantiles=quantiles(probabilities, checkpoint.bins, tuple(QUANTILES)),
        probabilities=probabilities,
        bin_edges=np.array(checkpoint.bins.edges),
        metadata={
            "backbone": checkpoint.backbone,
            "backbone_fingerprint": checkpoint.backbone_fingerprint,
            "dtype": checkpoint.dtype_name,
            "head_sha256": checkpoint.head_hash(),
            "signals": checkpoint.pooling.to_json(),
        },
    )
