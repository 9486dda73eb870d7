"""Recorded runs of real vLLM servers, in the layout of LLMServingSim's ``bench``.

A folder holds ``meta.json`` (model, vLLM version, engine arguments), ``requests.jsonl`` (tokens and times
of each request) and ``timeseries.csv`` (requests running and waiting, a row a second). ``arrival_time`` is
Unix time, the other times are of a monotonic clock; the shortest time from arrival to queue joins the two.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traces import Trace
from traces.errors import InputError

Floats = NDArray[np.float64]

TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
COUNTS = ("input_toks", "output_toks")
BLOCK_SIZE = 16
"""Tokens of a KV block on a GPU, unless told otherwise."""
ASYNC_SINCE = (0, 14)
"""From this version on, vLLM schedules a step while the one before it runs (release notes of 0.14.0)."""


@dataclass(frozen=True, eq=False)
class Recording:
    """A recorded run. All times are seconds after the first arrival; arrays are (n,), by arrival.

    Attributes:
        model, vllm_version: names.
        trace: the requests at their recorded arrivals.
        queued_s: when the engine took the request into its queue, between two of its steps.
        first_token_s, completion_s: times of the first and the last token.
        limits: max_num_seqs, max_num_batched_tokens and, where recorded, max_model_len, block_size, num_blocks
            and enable_prefix_caching: arguments for `ContinuousBatching`.
        async_scheduling: whether a step was decided while the one before it ran.
        replicas, tensor_parallel_size: servers, and GPUs of each. expert_parallel_size: GPUs over which the
            experts of a mixture are spread.
        series: t, running and waiting at each tick (m,); empty if not recorded.
    """

    model: str
    vllm_version: str
    trace: Trace
    queued_s: Floats
    first_token_s: Floats
    completion_s: Floats
    limits: dict[str, Any]
    async_scheduling: bool
    replicas: int
    tensor_parallel_size: int
    expert_parallel_size: int
    series: dict[str, Floats]


def read_recording(folder: str | Path) -> Recording:
    """The recording in ``folder``, or in ``folder/vllm``.

    Raises:
        InputError: a file or a field is missing or wrong.
    """
    place = Path(folder)
    if not (place / "requests.jsonl").is_file() and (place / "vllm").is_dir():
        place = place / "vllm"
    meta, rows = _meta(place / "meta.json"), _requests(place / "requests.jsonl")
    version = str(meta.get("vllm_version", ""))
    arrival_s = rows["arrival_time"] - (rows["arrival_time"] - rows["queued_ts"]).max()
    start_s = arrival_s.min()
    order = np.lexsort((np.arange(len(arrival_s)), arrival_s))
    trace = Trace(
        request_id=rows["request_id"][order],
        arrival_s=(arrival_s - start_s)[order],
        prompt_tokens=rows["input_toks"][order].astype(np.int32),
        output_tokens=rows["output_toks"][order].astype(np.int32),
    )
    ahead = _setting(meta, "async_scheduling")
    replicas, size = _count(meta, "data_parallel_size", 1), _count(meta, "tensor_parallel_size", 1)
    return Recording(
        model=str(meta.get("model", "")),
        vllm_version=version,
        trace=trace,
        queued_s=(rows["queued_ts"] - start_s)[order],
        first_token_s=(rows["first_token_ts"] - start_s)[order],
        completion_s=(rows["last_token_ts"] - start_s)[order],
        limits=_limits(meta, place),
        async_scheduling=bool(ahead) if ahead is not None else _version(version) >= ASYNC_SINCE,
        replicas=replicas,
        tensor_parallel_size=size,
        expert_parallel_size=replicas * size if _setting(meta, "enable_expert_parallel") else 1,
        series=_series(place / "timeseries.csv"),
    )


def _limits(meta: dict[str, Any], place: Path) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        value = _setting(meta, name)
        if value is None:
            raise InputError(f"{place / 'meta.json'} tells no {name}, and vLLM's default depends on the GPU")
        limits[name] = int(value)
    for name in ("max_model_len", "block_size"):
        value = _setting(meta, name)
        if value is not None:
            limits[name] = int(value)
    blocks = _blocks(meta, limits.get("block_size", BLOCK_SIZE))
    if blocks is not None:
        limits["num_blocks"] = blocks
    caching = _setting(meta, "enable_prefix_caching")
    limits["enable_prefix_caching"] = True if caching is None else bool(caching)
    return limits


def _blocks(meta: dict[str, Any], block_size: int) -> int | None:
    """KV blocks of one replica; vLLM counts the blocks of all data-parallel replicas together, the tokens of one."""
    replicas = _count(meta, "data_parallel_size", 1)
    for name, share in (
        ("num_gpu_blocks", replicas),
        ("num_kv_tokens", replicas * block_size),
        ("kv_cache_size_tokens", block_size),
    ):
        value = _setting(meta, name)
        if value is not None:
            return int(value) // share
    return None


def _count(meta: dict[str, Any], name: str, default: int) -> int:
    return int(_setting(meta, name) or default)


def _setting(meta: dict[str, Any], name: str) -> Any:
    """The value that the engine was given, else what it says it resolved; None: neither is recorded."""
    for value in (meta.get("engine_kwargs", {}).get(name), meta.get("kv_cache", {}).get(name)):
        if value is not None:
            return value
    parts = meta.get("resolved_config", {}).values()
    return next((part[name] for part in parts if isinstance(part, dict) and part.get(name) is not None), None)


def _version(text: str) -> tuple[int, ...]:
    numbers = text.split(".")[:2]
    return tuple(int(number) for number in numbers) if all(map(str.isdigit, numbers)) else ()


def _meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"recorded run: {path} cannot be read: {error}") from error
    parts = ("engine_kwargs", "kv_cache", "resolved_config")
    if not isinstance(meta, dict) or not all(isinstance(meta.get(part, {}), dict) for part in parts):
        raise InputError(f"recorded run: {path} is not an object with {', '.join(parts)}")
    return meta


def _requests(path: Path) -> dict[str, NDArray[Any]]:
    columns: dict[str, list[Any]] = {name: [] for name in ("request_id", *COUNTS, *TIMES)}
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"recorded run: {path} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            found = {name: float(row[name]) for name in (*COUNTS, *TIMES)}
            columns["request_id"].append(str(row["request_id"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"recorded run: {path}:{number} is not a request with times: {error!r}"
            ) from error
        if not found["queued_ts"] < found["first_token_ts"] <= found["last_token_ts"]:
            raise InputError(f"recorded run: {path}:{number}: queue, first and last token are out of order")
        for name, value in found.items():
            columns[name].append(value)
    if not lines:
        raise InputError(f"recorded run: {path} holds no requests")
    return {
        name: np.array(values, object if name == "request_id" else np.float64)
        for name, values in columns.items()
    }


def _series(path: Path) -> dict[str, Floats]:
    if not path.is_file():
        return {}
    try:
        rows = pl.read_csv(path)
        return {name: rows[name].cast(pl.Float64).to_numpy() for name in ("t", "running", "waiting")}
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(f"recorded run: {path} cannot be read: {error}") from error
