"""Finished cells of an evaluation on disk: one file a method, split and seed.

A file is named by a hash of everything that decides its content (method with its settings, data, split, seed),
so what is found is what would be computed, and a later run with more methods or seeds adds only those.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from predictor.methods import Data, Forecast, Method
from predictor.stored import finished
from predictor.train import Split
from traces.files import atomic_path


@dataclass(frozen=True)
class Cells:
    """Cells in `folder`, of the data that `fingerprint` names."""

    folder: Path
    fingerprint: str

    def read(self, method: Method, split: Split, seed: int) -> Forecast | None:
        """The finished forecast, or None."""
        file = self._file(method, split, seed)
        return finished(file, _read) if file.exists() else None

    def write(self, method: Method, split: Split, seed: int, forecast: Forecast) -> None:
        """Keep a forecast; a kill leaves the whole file or none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        columns = {name: getattr(forecast, name) for name in ("mean", "rank", "probabilities", "edges")}
        levels = sorted(forecast.quantiles or {})
        if forecast.quantiles:
            columns["quantiles"] = np.stack([forecast.quantiles[level] for level in levels])
        facts = {"levels": levels, "settings": forecast.settings}
        arrays = {name: np.ascontiguousarray(c, np.float64) for name, c in columns.items() if c is not None}
        with atomic_path(self._file(method, split, seed)) as temporary:
            save_file(arrays, temporary, {"facts": json.dumps(facts)})

    def _file(self, method: Method, split: Split, seed: int) -> Path:
        digest = hashlib.sha256(f"{self.fingerprint} {method!r} {seed}".encode())
        for part in (split.train, split.validation, split.test):
            digest.update(np.asarray(part, np.int64).tobytes() + b"|")
        return self.folder / f"{method.name}-{seed}-{digest.hexdigest()[:16]}.safetensors"


def _read(file: Path) -> Forecast:
    with safe_open(file, "np") as stored:
        found = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
        facts = json.loads(stored.metadata()["facts"])
    quantiles = dict(zip(facts["levels"], found["quantiles"], strict=True)) if facts["levels"] else None
    columns: dict[str, Any] = {name: found.get(name) for name in ("mean", "rank", "probabilities", "edges")}
    return Forecast(**columns, quantiles=quantiles, settings=facts["settings"])


def fingerprint_of(data: Data, backbone: str) -> str:
    """A hash of the rows that an evaluation reads and of the backbone whose states it uses."""
    digest = hashlib.sha256(backbone.encode())
    for texts in (data.prompts, data.prompt_ids.tolist(), data.scenarios.tolist()):
        digest.update(json.dumps(texts).encode())
    for numbers in (data.trace.prompt_tokens, data.lengths):
        digest.update(np.ascontiguousarray(numbers).tobytes())
    return digest.hexdigest()
