"""A trained length predictor on disk: safetensors weights, a JSON config and a model card; never pickle."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from predictor.backbone import Backbone
from predictor.conformal import Correction
from predictor.features import PromptSignals, fingerprint, pooled_features, prompt_rng
from predictor.head import Bins, Floats, SoftLabelHead, quantiles
from predictor.model_card import card, check_facts
from predictor.pooling import PoolingSettings, PositionTrend, token_weights
from predictor.stored import items, number, shown, text, whole
from predictor.train import Fitted
from traces import Estimates
from traces.errors import InputError
from traces.estimates import QUANTILES

WEIGHTS = "model.safetensors"
DTYPES = ("float32", "bfloat16", "float16")
PICKLES = {".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth"}


class LengthPredictor(nn.Module, PyTorchModelHubMixin, library_name="estp", license="apache-2.0"):
    """Pooling settings, position trend, bins and head as one object with `save_pretrained`/`from_pretrained`.

    `predictor`: the name its estimates bear; `backbone`, `backbone_fingerprint`, `dtype`: which LLM's
    activations it was trained on; `facts`: what it was trained on and how well it did, for the model card;
    `conformal`: the `Correction` of its quantiles, None where there is none (the bins' own are given then);
    `layers`: those whose last token's states lie side by side in its features (0 the embeddings), None where
    the last layer's states are pooled.
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
        conformal: dict[str, Any] | None = None,
        layers: list[int] | None = None,
    ) -> None:
        super().__init__()
        self.predictor = text(predictor, "predictor")
        self.backbone = text(backbone, "backbone")
        self.backbone_fingerprint = text(backbone_fingerprint, "backbone_fingerprint")
        if dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, not {shown(dtype)}")
        self.dtype_name = dtype
        self.pooling = PoolingSettings.from_json(pooling)
        self.trend = None if trend is None else PositionTrend.from_json(trend)
        if self.pooling.needs_trend and self.trend is None:
            raise InputError(f"predictor {predictor!r} pools by a detrended signal, but no trend is given")
        self.layers = tuple(whole(k, "layers") for k in items(() if layers is None else layers, "layers"))
        if self.layers and self.pooling.pooling != "last":
            raise InputError(
                f"predictor {predictor!r} pools by {self.pooling.pooling!r}, but of chosen layers only the last "
                "token's states are read"
            )
        self.bins = Bins(tuple(number(edge, "edges") for edge in items(edges, "edges")))
        if not (self.bins.edges[0] >= 0 and self.bins.edges[-1] < 2**31):
            raise InputError(f"edges must lie from 0 to {2**31 - 1} tokens, not {shown(edges)}")
        self.facts = {} if facts is None else check_facts(facts)
        self.conformal = None if conformal is None else Correction.from_json(conformal)
        self.head = SoftLabelHead(whole(features, "features", 2), len(self.bins.edges) - 1)
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        """(n, d) pooled features -> (n, K) bin probabilities, float64."""
        logits: Tensor = self.head(features.float())
        return logits.double().softmax(-1)

    def probabilities(self, signals: Sequence[PromptSignals], prompts: Sequence[str]) -> Floats:
        """(n, K) bin probabilities of n prompts from their signals, which must hold the predictor's `layers`."""
        if self.layers:
            features = torch.stack([torch.cat([one.last[k] for k in self.layers]) for one in signals])
        else:
            features = pooled_features(signals, [self.pooling], self.trend, prompts)[0]
        with torch.no_grad():
            found = np.asarray(self(features).numpy())
        if not np.isfinite(found).all():
            raise InputError(
                f"predictor {self.predictor!r} gives no finite probabilities; its settings ({self.summary()}) or "
                "weights are out of any range"
            )
        return found

    def quantiles(self, probabilities: Floats) -> dict[float, Floats]:
        """Level -> (n,) tokens of (n, K) bin probabilities, at the levels of the estimates table.

        A predictor with a conformal correction gives them corrected, and leaves out those levels that it had too
        few prompts for.
        """
        plain = quantiles(probabilities, self.bins, tuple(QUANTILES))
        return plain if self.conformal is None else self.conformal.apply(plain)

    def weights(self, signals: PromptSignals, prompt: str) -> Floats | None:
        """(N,) share of each token in the pooled vector, summing to one; None for `max`, which has no shares."""
        if self.pooling.pooling == "max":
            return None
        row = token_weights(
            [self.pooling],
            signals.entropy,
            signals.received,
            trend=self.trend,
            window=signals.window,
            rng=prompt_rng(prompt),
        )[0]
        return np.asarray(row.double().numpy())

    def head_hash(self) -> str:
        """SHA-256 over the weights, the bins and the position trend, so that estimates can name what made them."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.head.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        trend = None if self.trend is None else self.trend.to_json()
        digest.update(json.dumps([self.bins.edges, trend]).encode())
        return digest.hexdigest()

    def identity(self) -> dict[str, Any]:
        """What estimates must have in common with this predictor to be its own; stored beside each of them."""
        facts: dict[str, Any] = {
            "backbone": self.backbone,
            "backbone_fingerprint": self.backbone_fingerprint,
            "dtype": self.dtype_name,
            "head_sha256": self.head_hash(),
            "signals": self.pooling.to_json(),
        }
        if self.conformal is not None:
            facts["conformal"] = self.conformal.to_json()
        if self.layers:
            facts["layers"] = list(self.layers)
        return facts

    def summary(self) -> str:
        """One line: settings and test scores."""
        p = self.pooling
        test = self.facts.get("test", {})
        measured = ", ".join(f"{key} {test[key]:.3g}" for key in ("mae", "rmse", "tau") if key in test)
        if self.layers:
            return f"last token of layers {', '.join(map(str, self.layers))}; test: {measured}"
        return f"{p.pooling}, {p.signal_scale}, lambda {p.lambda1:g} {p.lambda2:g}, alpha {p.alpha:g}; test: {measured}"

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The card that `save_pretrained` writes: data, settings, measures and limits."""
        return ModelCard(
            card(
                self.predictor,
                self.backbone,
                self.backbone_fingerprint,
                self.dtype_name,
                self.pooling,
                self.layers,
                self.bins.edges,
                self.facts,
            )
        )

    @classmethod
    def _from_pretrained(
        cls, *, model_id: str, map_location: str = "cpu", **options: Any
    ) -> "LengthPredictor":
        """Safetensors only: the library's own would fall back to a pickle, and prints on standard output."""
        hub = {
            key: options.pop(key)
            for key in ("revision", "cache_dir", "force_download", "local_files_only", "token")
        }
        folder = Path(model_id)
        if folder.is_dir():
            _check_folder(folder)
            file = str(folder / WEIGHTS)
        else:
            try:
                file = hf_hub_download(repo_id=model_id, filename=WEIGHTS, **hub)
            except EntryNotFoundError as error:
                raise InputError(
                    f"{model_id!r} has no {WEIGHTS}; only safetensors are loaded, never pickled weights"
                ) from error
        # Without memory of its own until the weights are there: settings may ask for any size.
        with torch.device("meta"):
            made = cls(**options)
        weights = load_file(file, device=map_location)
        _check_weights(made.state_dict(), weights)
        made.load_state_dict(weights, assign=True)
        return made.eval()

    def write(self, folder: Path) -> None:
        """`save_pretrained` into a new or empty folder, all or nothing."""
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as error:
            raise InputError(f"cannot write {folder}: {error.strerror or error}") from error
        try:
            self.save_pretrained(part)
            # safetensors makes a private file; a result is an ordinary one, as the config beside it is.
            (part / WEIGHTS).chmod((part / "config.json").stat().st_mode)
            part.chmod(0o755)
            part.replace(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def check_backbone(self, backbone: Backbone) -> None:
        """Refuse activations of another LLM: InputError naming the difference."""
        # First, because the fingerprint is of the weights as they are loaded.
        dtype = str(backbone.model.dtype).removeprefix("torch.")
        if dtype != self.dtype_name:
            raise InputError(
                f"predictor {self.predictor!r} was trained on {self.dtype_name} activations, but the model "
                f"runs in {dtype}; use --dtype {self.dtype_name}"
            )
        found = fingerprint(backbone)
        if found != self.backbone_fingerprint:
            raise InputError(
                f"predictor {self.predictor!r} was trained on the activations of {self.backbone!r} "
                f"(fingerprint {self.backbone_fingerprint}), but the model is {backbone.name!r} ({found}); "
                "use that model, or train a predictor for this one"
            )
        depth = len(backbone.model.get_decoder().layers)
        missing = [str(k) for k in self.layers if k > depth]
        if missing:
            raise InputError(
                f"predictor {self.predictor!r} reads layer {missing[0]}, but {backbone.name!r} has the layers 0 to "
                f"{depth}"
            )
        given, read = backbone.hidden_size * max(1, len(self.layers)), len(self.head.mean)
        if given != read:
            raise InputError(
                f"predictor {self.predictor!r} has a head for {read} features, but its settings read {given} of "
                f"{backbone.name!r}"
            )

    def check_estimates(self, estimates: Estimates) -> None:
        """Refuse estimates that another predictor or another LLM made: InputError naming each difference."""
        found = differences(self.identity(), estimates.metadata)
        if found:
            raise InputError(
                f"the estimates {estimates.predictor!r} are not those of predictor {self.predictor!r}: "
                f"{'; '.join(found)}; predict again, or name the predictor that made them"
            )


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What `found` says otherwise than `wanted`, one phrase a value; keys that only `found` has do not count."""
    phrases = []
    for key, value in wanted.items():
        other = found.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            phrases += [f"{key}.{phrase}" for phrase in differences(value, other)]
        elif other is None:
            phrases.append(f"{key} is not given")
        elif other != value:
            phrases.append(f"{key} is {other}, not {value}")
    return phrases


def make_checkpoint(
    name: str,
    backbone: Backbone,
    pooling: PoolingSettings,
    trend: PositionTrend | None,
    fitted: Fitted,
    facts: dict[str, Any],
    correction: Correction | None = None,
    layers: Sequence[int] = (),
) -> LengthPredictor:
    """Bundle a trained head with all that is needed to use it on a new prompt."""
    checkpoint = LengthPredictor(
        predictor=name,
        backbone=backbone.name,
        backbone_fingerprint=fingerprint(backbone),
        dtype=str(backbone.model.dtype).removeprefix("torch."),
        pooling=pooling.to_json(),
        edges=list(fitted.bins.edges),
        features=len(fitted.head.mean),
        trend=trend.to_json() if trend is not None and pooling.needs_trend else None,
        facts=facts,
        conformal=None if correction is None else correction.to_json(),
        layers=list(layers) or None,
    )
    checkpoint.head.load_state_dict(fitted.head.state_dict())
    return checkpoint


def load_predictor(source: str | Path) -> LengthPredictor:
    """Load a checkpoint from a folder or a hub name. Raises InputError when there is none, or a pickled one."""
    if Path(source).exists():
        _check_folder(Path(source))
    try:
        loaded: LengthPredictor = LengthPredictor.from_pretrained(str(source))
    except (OSError, TypeError, RuntimeError, ValueError, SafetensorError) as error:
        raise InputError(
            f"cannot load a predictor from {str(source)!r}: {' '.join(str(error).split())}"
        ) from error
    return loaded


def _check_folder(folder: Path) -> None:
    """Refuse a folder that is no checkpoint, or holds weights that could run code when they are read."""
    pickled = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES) if folder.is_dir() else []
    if pickled:
        raise InputError(
            f"{folder} holds pickled weights ({', '.join(pickled)}), which can run code when they are loaded; "
            f"only {WEIGHTS} is read: convert them, or remove them"
        )
    for name in ("config.json", WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(
                f"{folder} is no predictor: it has no {name}; give a folder that estp train wrote"
            )
    try:
        config = json.loads((folder / "config.json").read_text())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{folder / 'config.json'} holds no settings, but {type(config).__name__}")


def _check_weights(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Refuse weights that the settings do not ask for, and such as no training leaves: InputError naming one."""
    for name in sorted({*wanted, *found}):
        if name not in wanted or name not in found:
            raise InputError(f"{WEIGHTS} {'lacks' if name in wanted else 'has an unknown'} tensor {name!r}")
        kinds = [
            f"{list(one.shape)} {str(one.dtype).removeprefix('torch.')}"
            for one in (found[name], wanted[name])
        ]
        if kinds[0] != kinds[1]:
            raise InputError(f"{name} is {kinds[0]} in {WEIGHTS}, but the settings ask for {kinds[1]}")
        if not found[name].isfinite().all():
            raise InputError(f"{name} holds values that are not finite")


def as_estimates(checkpoint: LengthPredictor, request_id: Any, probabilities: Floats) -> Estimates:
    """The estimates table of one predictor: mean = sum_j p_j c_j over bin centres, quantiles, probabilities."""
    return Estimates(
        predictor=checkpoint.predictor,
        request_id=request_id,
        mean=probabilities @ checkpoint.bins.centres,
        quantiles=checkpoint.quantiles(probabilities),
        probabilities=probabilities,
        bin_edges=np.array(checkpoint.bins.edges),
        metadata=checkpoint.identity(),
    )
