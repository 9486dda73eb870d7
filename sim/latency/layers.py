"""Measured times of the layers of a model on a GPU, in the folder layout of LLMServingSim's profiler.

``<variant>/meta.yaml`` names the GPU and the model; ``<variant>/tp<N>/`` holds microseconds:

* ``dense.csv`` (layer, tokens, time_us): layers whose time follows from the tokens of the step.
* ``per_sequence.csv`` (layer, sequences, time_us): the output head and the sampler.
* ``attention.csv`` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us): a chunk of so many tokens
  behind so many cached ones, beside so many decoding requests with so many cached tokens each. Newer ones
  have ``prefill_key`` instead, the keys that a token of the chunks attends to in the mean: cached tokens
  and half a chunk; less than that, where several chunks were measured together.
* ``moe.csv`` (ep, tokens, activated_experts, time_us), for a mixture of experts: the experts of one of ``ep``
  devices, for so many tokens of all devices, of which some token is sent to so many experts of this one.
  Older ones have no ``ep``: all experts are on the device, and a device with a part of them is taken to
  work on its share of the tokens.

The points of attention and experts need not be a full grid: each slice is interpolated on its own points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from sim.latency.interpolation import Floats, interpolate, resample
from sim.latency.presets import MODELS, preset_called
from traces.errors import InputError

ONCE = ("embedding", "final_layernorm")
"""Dense layers that run once a step; all others run in every decoder layer."""
TWICE = ("layernorm",)
"""Layers that run twice in a decoder layer: before the attention and before the MLP."""

ATTENTION = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
FAR = 512
"""The slope of the attention in the prefill's cached tokens is taken up to here at least: between the
first points other kernels run, and their difference is no slope."""


@dataclass(frozen=True, eq=False)
class Experts:
    """The times of the experts of one device.

    Attributes:
        count: experts of a layer on this device. share: of them, those that a token is sent to.
        worked_on: share of a step's tokens that this device works on.
        tokens, activated: axes of ``seconds`` (T, A), of all layers.
    """

    count: float
    share: float
    worked_on: float
    tokens: Floats
    activated: Floats
    seconds: Floats

    def step_s(self, tokens: Any) -> Any:
        """Seconds for that many tokens, each sent to experts at random: with so many activated as are expected."""
        activated = self.count * (1 - (1 - self.share) ** np.asarray(tokens, np.float64))
        at = np.multiply(tokens, self.worked_on), activated
        return interpolate((self.tokens, self.activated), self.seconds, at)


@dataclass(frozen=True, eq=False)
class Layers:
    """The times of one folder, as functions.

    Attributes:
        folder: where they come from. gpu, model: the names in its meta.yaml.
        layers: decoder layers. tensor_parallel_size: GPUs that share each of them.
        tokens, token_s: (T,) seconds of all dense layers of a step by its tokens.
        sequences, sequence_s: (S,) seconds of output head and sampler by sequences.
        axes: chunk (A,), cached tokens of the chunk (B,), decoding requests (C,), their cached tokens (D,).
        attention_s: (A, B, C, D) seconds of the attention of all layers.
        experts: those of a mixture of experts, else None.
    """

    folder: Path
    gpu: str
    model: str
    layers: int
    tensor_parallel_size: int
    tokens: Floats
    token_s: Floats
    sequences: Floats
    sequence_s: Floats
    axes: tuple[Floats, ...]
    attention_s: Floats
    experts: Experts | None = None

    def step_s(
        self,
        chunk: Any,
        cached: Any,
        decode_requests: Any,
        context: Any,
        sequences: Any,
        apart: bool = False,
        replicas: int = 1,
    ) -> Any:
        """Seconds of a step, arrays that broadcast.

        Args:
            chunk: prefill tokens. cached: tokens in the cache before them.
            decode_requests: decoding requests. context: tokens that each of them attends to.
            sequences: requests for which the output head runs.
            apart: the attention of prefill and of decode, where a step has both, as two kernels one after
                the other, and not as the one that was measured for such steps.
            replicas: servers that share the experts, with as many tokens each.
        """
        if apart:
            prefill_s = np.where(np.greater(chunk, 0), self._attention(chunk, cached, 0, 0), 0.0)
            decode_s = np.where(
                np.greater(decode_requests, 0), self._attention(0, 0, decode_requests, context), 0.0
            )
            attention_s = prefill_s + decode_s
        else:
            attention_s = self._attention(chunk, cached, decode_requests, context)
        tokens = np.add(chunk, decode_requests)
        token_s = interpolate((self.tokens,), self.token_s, (tokens,))
        if self.experts is not None:
            token_s = token_s + self.experts.step_s(tokens * replicas)
        return attention_s + token_s + interpolate((self.sequences,), self.sequence_s, (sequences,))

    def _attention(self, *at: Any) -> Any:
        return np.maximum(interpolate(self.axes, self.attention_s, at), self._least_s)

    @cached_property
    def _least_s(self) -> float:
        return float(self.attention_s[:, self.axes[1] >= 0].min())


@lru_cache(maxsize=8)
def read_layers(
    folder: str, tensor_parallel_size: int | None, layers: int | None, expert_parallel_size: int = 1
) -> Layers:
    """The times below ``folder``, which is a ``tp<N>`` folder or one that holds (in any depth) a single variant.

    ``expert_parallel_size``: over how many devices whole experts are spread.

    Raises:
        InputError: there is no such folder, or several to choose from, or a file of it is faulty, or
            the number of layers is not known.
    """
    place = _find(Path(folder), tensor_parallel_size)
    meta = _meta(place)
    model = str(meta.get("model", ""))
    shape = layers or _layers_of(place, model)
    runs = dict.fromkeys(ONCE, 1) | dict.fromkeys(TWICE, 2 * shape)
    tokens, token_s = _sum_of_lines(place / "dense.csv", "tokens", lambda layer: runs.get(layer, shape))
    sequences, sequence_s = _sum_of_lines(place / "per_sequence.csv", "sequences", lambda layer: 1)
    axes, attention_s = _attention(place / "attention.csv")
    gpu = str(meta.get("hardware", meta.get("gpu", "")))
    size = int(place.name.removeprefix("tp"))
    experts = _experts(place / "moe.csv", expert_parallel_size, shape)
    dense = tokens, token_s, sequences, sequence_s
    return Layers(place, gpu, model, shape, size, *dense, axes, shape * attention_s, experts)


def _find(folder: Path, size: int | None) -> Path:
    if not folder.is_dir():
        raise InputError(f"latency profile {folder} is not a folder")
    found = sorted(
        {
            path.parent
            for path in [folder / "attention.csv", *folder.glob("**/attention.csv")]
            if path.is_file()
        }
    )
    if size is not None:
        found = [path for path in found if path.name == f"tp{size}"]
    if not found:
        wanted = "tp<N>" if size is None else f"tp{size}"
        raise InputError(f"latency profile {folder} holds no {wanted}/attention.csv")
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found)
        raise InputError(
            f"latency profile {folder} holds several: {names}; name one of them, or tensor_parallel_size"
        )
    if not found[0].name.removeprefix("tp").isdigit():
        raise InputError(f"latency profile {found[0]}: the folder must be called tp1, tp2, ...")
    return found[0]


def _meta(place: Path) -> dict[str, Any]:
    path = place.parent / "meta.yaml"
    if not path.is_file():
        return {}
    try:
        meta = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"latency profile: {path} cannot be read: {error}") from error
    return meta if isinstance(meta, dict) else {}


def _layers_of(place: Path, model: str) -> int:
    """From a ``config.json`` beside or above the times, else from the preset of that name."""
    for folder in (place, *place.parents[:3]):
        path = folder / "config.json"
        if path.is_file():
            try:
                return int(json.loads(path.read_text())["num_hidden_layers"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} tells no num_hidden_layers: {error}") from error
    preset = preset_called(model.rpartition("/")[2], MODELS)
    if preset is None:
        raise InputError(
            f"latency profile {place} is of {model or 'an unnamed model'}, whose number of layers is not "
            "known: give layers, or put the model's config.json into the folder"
        )
    return preset.layers


def _sum_of_lines(path: Path, axis: str, runs: Callable[[str], int]) -> tuple[Floats, Floats]:
    """Seconds of all layers of a file together, each as often as it ``runs``, at the points of any of them."""
    rows = _read(path, ("layer", axis))
    points = rows[axis].unique().sort().to_numpy()
    total = np.zeros(len(points))
    for (layer,), part in rows.sort(axis).group_by("layer"):
        own = part[axis].to_numpy()
        if len(np.unique(own)) != len(own):
            raise InputError(f"latency profile: {path} gives layer {layer} twice for the same {axis}")
        total += runs(str(layer)) * resample(own, part["time_us"].to_numpy() * 1e-6, points)
    return points, total


def _experts(path: Path, devices: int, layers: int) -> Experts | None:
    if not path.is_file():
        return None
    rows = _read(path, ("tokens", "activated_experts"))
    apart = "ep" in rows.columns
    if apart:
        sizes = rows["ep"].unique().sort().to_list()
        if devices not in sizes:
            known = ", ".join(map(str, sizes))
            raise InputError(f"latency profile: {path} has no times for ep = {devices}, only for {known}")
        rows = rows.filter(pl.col("ep") == devices)
    table = (
        rows.sort("tokens", "activated_experts").select("tokens", "activated_experts", "time_us").to_numpy()
    )
    if rows.select("tokens", "activated_experts").n_unique() != len(rows):
        raise InputError(f"latency profile: {path} gives a point twice")
    axes = [np.unique(table[:, 0]), np.unique(table[:, 1])]
    # A single token activates as many experts as it is sent to; where many tokens were measured, all were.
    share = float(table[table[:, 0] == axes[0][0], 1].min() / axes[1][-1] / axes[0][0])
    parts = 1 if apart else devices
    seconds = layers * _fill(table, axes) * 1e-6
    return Experts(axes[1][-1] / parts, min(share, 1.0), 1 / parts, axes[0], axes[1], seconds)


def _attention(path: Path) -> tuple[tuple[Floats, ...], Floats]:
    """The axes and the seconds of one layer's attention on their full grid, slice by slice."""
    rows = _attention_rows(path)
    if rows.select(ATTENTION).n_unique() != len(rows):
        raise InputError(f"latency profile: {path} gives a point twice")
    axes = [rows[name].unique().sort().to_numpy() for name in ATTENTION]
    # Many short chunks in a step cost what one chunk would behind fewer than no tokens (`Profile.chunk_time`).
    axes[1] = np.concatenate([[-axes[0][-1]], axes[1]])
    table = rows.sort(ATTENTION).select(*ATTENTION, "time_us").to_numpy()
    return tuple(axes), _fill(table, axes) * 1e-6


def _attention_rows(path: Path) -> pl.DataFrame:
    try:
        header = pl.read_csv(path, n_rows=0).columns
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"latency profile: {path} cannot be read: {error}") from error
    if "prefill_key" not in header:
        return _read(path, ATTENTION)
    rows = _read(path, ("prefill_chunk", "prefill_key", "n_decode", "kv_decode"))
    if "layer" in header:  # others are those of linear attention and the like
        rows = rows.filter(pl.col("layer") == "attention")
    if "decode_q_len" in header:  # more than one: speculative decoding
        rows = rows.filter(pl.col("decode_q_len") == 1)
    if rows.is_empty():
        raise InputError(f"latency profile: {path} has no rows of layer attention with decode_q_len 1")
    return rows.with_columns(kv_prefill=pl.col("prefill_key") - 0.5 * pl.col("prefill_chunk"))


def _fill(rows: Floats, axes: Sequence[Floats]) -> Floats:
    """Resample on the full grid, the last axis first.

    Args:
        rows: (n, d + 1), in order; d coordinates and a value.
        axes: d rising arrays.
    """
    points, starts = np.unique(rows[:, 0], return_index=True)
    if len(axes) == 1:
        return resample(points, rows[:, 1], axes[0])
    values = np.array([_fill(part[:, 1:], axes[1:]) for part in np.split(rows, starts[1:])])
    if axes[0][0] < 0 and len(points) > 1:  # cached tokens of a chunk
        far = min(int(np.searchsorted(points, FAR)), len(points) - 1)
        slope = (values[far] - values[0]) / (points[far] - points[0])
        values = np.concatenate([[values[0] + slope * (axes[0][0] - points[0])], values])
        points = np.concatenate([axes[0][:1], points])
    return resample(points, values, axes[0])


def _read(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    try:
        rows = pl.read_csv(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"latency profile: {path} cannot be read: {error}") from error
    for name in (*columns, "time_us"):
        if name not in rows.columns:
            raise InputError(
                f"latency profile: {path} has no column {name!r}; it has {', '.join(rows.columns)}"
            )
    wanted = [name for name in (*columns, "time_us") if name != "layer"]
    numbers = rows.select(wanted).select(pl.all().cast(pl.Float64, strict=False)).to_numpy()
    if not len(rows) or not (np.isfinite(numbers) & (numbers >= 0)).all() or not numbers[:, -1].all():
        raise InputError(f"latency profile: {path} must hold rows of numbers, at least 0, and times above 0")
    return rows.with_columns(pl.Series(name, numbers[:, i]) for i, name in enumerate(wanted))
