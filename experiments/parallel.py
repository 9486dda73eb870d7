"""Many independent tasks on processes here or on a cluster: loky (joblib), Ray or Dask behind one function.

What tasks share (a trace) reaches a worker once. A task whose worker dies is tried again elsewhere, so
losing a machine loses no work; one that keeps killing its workers comes back as `Lost`, and the rest go on.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import joblib

from traces.errors import InputError

Backend = Literal["loky", "ray", "dask"]
# How often a task is tried again after its worker died; one that eats all memory dies each time.
RETRIES = 3
# Tasks handed to a cluster at once, per core: enough to keep it busy, few enough to count as not begun.
AHEAD = 2
Function = Callable[[Any, Any], Any]
Task = tuple[str, Any]


@dataclass(frozen=True)
class Lost:
    """What comes back for a task that ended without a result.

    Attributes:
        reason: one sentence.
    """

    reason: str


def run(
    function: Function,
    shared: Mapping[str, Any],
    tasks: Sequence[Task],
    *,
    backend: Backend = "loky",
    workers: int | None = None,
    address: str | None = None,
) -> Iterator[tuple[int, Any]]:
    """Call ``function(shared[key], argument)`` for each task ``(key, argument)``.

    Args:
        function: importable on the workers; what it raises ends everything.
        shared: key -> what tasks have in common; a key never stands for two things in one process's life
            (a digest of the content is a good one).
        tasks: key and argument.
        backend: where it runs.
        workers: most tasks at once; None: every core there is.
        address: of a Ray or Dask cluster; None: a local one is started, and stopped at the end.

    Yields:
        (index of the task, its result or `Lost`), as they end, in any order.

    Raises:
        InputError: the backend's package is missing, or there is no cluster at the address.
    """
    if backend not in get_args(Backend):
        raise InputError(f"there is no backend {backend!r}; there are {', '.join(get_args(Backend))}")
    if workers is not None and workers < 1:
        raise InputError(f"{workers} workers cannot work; ask for 1 at least")
    if backend == "loky":
        if address is not None:
            raise InputError("an address is for --backend ray or dask; loky uses this machine")
        return _loky(function, shared, tasks, workers or joblib.cpu_count())
    return (_ray if backend == "ray" else _dask)(function, shared, tasks, workers, address)


def _loky(
    function: Function, shared: Mapping[str, Any], tasks: Sequence[Task], workers: int
) -> Iterator[Any]:
    if workers == 1:
        for i, (key, argument) in enumerate(tasks):
            yield i, function(shared[key], argument)
        return
    with tempfile.TemporaryDirectory(prefix="estp-") as folder:
        files = {key: str(Path(folder, f"{i}.joblib")) for i, key in enumerate(shared)}
        for key, file in files.items():
            joblib.dump(shared[key], file)
        call = functools.partial(_call_with_file, function, files)
        yield from _survive(lambda indices, n: _parallel(call, tasks, indices, n), len(tasks), workers)


def _parallel(
    call: Callable[[int, Task], Any], tasks: Sequence[Task], indices: Iterator[int], workers: int
) -> Iterator[tuple[int, Any]]:
    parallel = joblib.Parallel(workers, backend="loky", return_as="generator_unordered", batch_size=1)
    done: Iterator[tuple[int, Any]] = parallel(joblib.delayed(call)(i, tasks[i]) for i in indices)
    return done


def _survive(
    start: Callable[[Iterator[int], int], Iterator[tuple[int, Any]]], count: int, workers: int
) -> Iterator[tuple[int, Any]]:
    """Run all tasks though worker processes die.

    A process that dies takes the whole pool along. Whatever had been handed out by then is suspect and
    runs alone, so that only the task that kills its process is lost.
    """
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left, suspects = list(range(count)), list[int]()
    while left or suspects:
        alone = bool(suspects)
        queue = suspects[:1] if alone else left
        handed_out: set[int] = set()
        done: set[int] = set()
        try:
            # Two workers even for one task: with one, joblib would run it in this process.
            for i, result in start(_noting(queue, handed_out), max(2, workers)):
                done.add(i)
                yield i, result
        except TerminatedWorkerError:
            if alone:
                yield queue[0], Lost("its worker process was killed (out of memory?); use fewer --workers")
                done.add(queue[0])
        suspects = [i for i in suspects if i not in done]
        if not alone:
            suspects = sorted(handed_out - done)
            left = [i for i in left if i not in handed_out]


def _noting(indices: Sequence[int], handed_out: set[int]) -> Iterator[int]:
    for i in indices:
        handed_out.add(i)
        yield i


def _call_with_file(function: Function, files: Mapping[str, str], i: int, task: Task) -> tuple[int, Any]:
    key, argument = task
    return i, function(_from_file(key, files[key]), argument)


@functools.lru_cache(maxsize=8)
def _from_file(key: str, file: str) -> Any:
    # Memory-mapped: the processes of a machine share one copy of the arrays.
    return joblib.load(file, mmap_mode="r")


def _ray(
    function: Function,
    shared: Mapping[str, Any],
    tasks: Sequence[Task],
    workers: int | None,
    address: str | None,
) -> Iterator[tuple[int, Any]]:
    # joblib's own Ray backend keeps a pool of actors and does not survive the loss of their node; tasks do.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise InputError("--backend ray needs Ray: pip install 'ray>=2.40'") from error
    local = {"num_cpus": workers, "include_dashboard": False} if address is None else {"address": address}
    try:
        ray.init(log_to_driver=False, logging_level="error", **local)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"no Ray cluster answers at {address}: {_first_line(error)}") from error
    try:
        handles = {key: ray.put(value) for key, value in shared.items()}
        remote = ray.remote(max_retries=RETRIES)(_call_with_handle)

        def submit(i: int) -> Any:
            key, argument = tasks[i]
            return remote.remote(function, key, [handles[key]], argument)

        def first(running: dict[Any, int]) -> Any:
            return ray.wait(list(running), num_returns=1)[0][0]

        def result(future: Any) -> Any:
            try:
                return ray.get(future)
            except (
                ray.exceptions.WorkerCrashedError,
                ray.exceptions.NodeDiedError,
                ray.exceptions.OutOfMemoryError,
            ) as error:
                return Lost(f"its workers died {RETRIES + 1} times: {_first_line(error)}")

        most = workers or AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield from _windowed(len(tasks), most, submit, first, result)
    finally:
        ray.shutdown()


def _call_with_handle(function: Function, key: str, handle: list[Any], argument: Any) -> Any:
    if key not in _kept:
        import ray

        while len(_kept) >= 8:
            del _kept[next(iter(_kept))]
        _kept[key] = ray.get(handle[0])
    return function(_kept[key], argument)


# What this worker process has been sent: Ray would unpickle it for every task.
_kept: dict[str, Any] = {}


def _dask(
    function: Function,
    shared: Mapping[str, Any],
    tasks: Sequence[Task],
    workers: int | None,
    address: str | None,
) -> Iterator[tuple[int, Any]]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise InputError("--backend dask needs Dask: pip install 'dask[distributed]>=2024.8'") from error
    with _dask_client(distributed, workers, address) as client:
        handles = {key: client.scatter(value, broadcast=True, hash=False) for key, value in shared.items()}

        def submit(i: int) -> Any:
            key, argument = tasks[i]
            return client.submit(function, handles[key], argument, pure=False)

        def first(running: dict[Any, int]) -> Any:
            return next(iter(distributed.wait(list(running), return_when="FIRST_COMPLETED").done))

        def result(future: Any) -> Any:
            try:
                return future.result()
            except distributed.KilledWorker as error:
                return Lost(f"its workers died again and again: {_first_line(error)}")

        most = workers or AHEAD * max(1, sum(client.ncores().values()))
        yield from _windowed(len(tasks), most, submit, first, result)


def _dask_client(distributed: Any, workers: int | None, address: str | None) -> Any:
    if address is None:
        count = workers or joblib.cpu_count()
        return distributed.Client(n_workers=count, threads_per_worker=1, dashboard_address=None)
    try:
        return distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask cluster answers at {address}: {_first_line(error)}") from error


def _windowed(
    count: int,
    most: int,
    submit: Callable[[int], Any],
    first: Callable[[dict[Any, int]], Any],
    result: Callable[[Any], Any],
) -> Iterator[tuple[int, Any]]:
    """Keep ``most`` tasks running until all are done."""
    waiting = iter(range(count))
    running = {submit(i): i for i in itertools.islice(waiting, most)}
    while running:
        future = first(running)
        yield running.pop(future), result(future)
        for i in itertools.islice(waiting, 1):
            running[submit(i)] = i


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
