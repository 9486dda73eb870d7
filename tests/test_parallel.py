"""Any backend gives back what the plain loop gives, once a task, and a lost machine loses nothing.

Truth: the loop, and a sweep on one process. Ray and Dask are real: clusters of two nodes, one killed in the middle.
"""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from sweeps import ROOT, Shared, environment, files, place_in, wait_for, write_trace

from experiments import parallel
from experiments.cli import main
from traces import InputError

# Each cell leaves a file that says where it began.
WHERE = """
import os, time, uuid
from pathlib import Path

FOLDER = Path({folder!r})


def place():
    try:
        import ray
        if ray.is_initialized():
            return ray.get_runtime_context().get_node_id()
    except ImportError:
        pass
    return str(os.getpid())


class Slow:
    def __init__(self):
        (FOLDER / f"{{place()}}-{{uuid.uuid4().hex}}").touch()

    def __call__(self, request, now_s):
        time.sleep(0.05)
        return request.prompt_tokens
"""
YAML = """
trace: t.csv
arrivals: burst
num_prompts: 12
replications: 8
latency: affine,a=0.01,c=0.001
policy: slow.py:Slow
"""
CELLS = 8
# Nodes of one core each; prints what a driver needs, and takes the second node away on demand.
RAY = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
print(cluster.address, second.node_id, flush=True)
sys.stdin.readline()
cluster.remove_node(second, allow_graceful=False)
print("gone", flush=True)
sys.stdin.readline()
cluster.shutdown()
"""
DASK = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a sweep of slow cells, as the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "began").mkdir()
    (tmp_path / "slow.py").write_text(WHERE.format(folder=str(tmp_path / "began")))
    write_trace(tmp_path / "t.csv")
    (tmp_path / "s.yaml").write_text(YAML)
    return tmp_path


@contextmanager
def cluster(script: str) -> Iterator[tuple[list[str], IO[str], IO[str]]]:
    """The words that a cluster's process prints first, and its standard input and output."""
    own = environment() | {"RAY_USAGE_STATS_ENABLED": "0"}
    path = Path("cluster.py")
    path.write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(path)], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split(), process.stdin, process.stdout
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(60)
    finally:
        process.stdin.close()
        process.stdout.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start_sweep(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.cli", "sweep", "s.yaml", "--out", "out", *options]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def check(sweeping: subprocess.Popen[str], folder: Path, began: int) -> None:
    """The sweep ended well, some cell was begun twice, and the files are those of a plain sweep."""
    _, err = sweeping.communicate(timeout=200)
    assert (sweeping.returncode, err) == (0, "")
    assert began > CELLS
    assert main(["sweep", "s.yaml", "--out", "plain", "--workers", "1"]) == 0
    assert files(folder / "out") == files(folder / "plain")
    assert len(files(folder / "out")) == CELLS + 3


@pytest.mark.slow
def test_a_ray_node_is_lost_in_the_middle(folder: Path) -> None:
    pytest.importorskip("ray")
    with cluster(RAY) as ((address, second), stdin, stdout):
        sweeping = start_sweep("--backend", "ray", "--address", address)
        try:
            # A cell has ended, and one is running on the node that goes.
            wait_for(
                lambda: (
                    bool([*Path("out").glob("cells/*.json")]) and bool([*Path("began").glob(f"{second}-*")])
                )
            )
            stdin.write("\n")
            stdin.flush()
            assert stdout.readline() == "gone\n"
            assert len([*Path("out").glob("cells/*.json")]) < CELLS
            wait_for(lambda: sweeping.poll() is not None)
            check(sweeping, folder, len([*Path("began").iterdir()]))
        finally:
            sweeping.kill()


@pytest.mark.slow
def test_a_dask_worker_is_lost_in_the_middle(folder: Path) -> None:
    pytest.importorskip("distributed")
    with cluster(DASK) as ((address,), _, _):
        sweeping = start_sweep("--backend", "dask", "--address", address)
        try:
            wait_for(lambda: bool([*Path("out").glob("cells/*.json")]))
            latest = max(Path("began").iterdir(), key=lambda path: path.stat().st_mtime_ns)
            os.kill(int(latest.name.partition("-")[0]), signal.SIGKILL)
            wait_for(lambda: sweeping.poll() is not None)
            check(sweeping, folder, len([*Path("began").iterdir()]))
        finally:
            sweeping.kill()


@pytest.mark.parametrize("workers", [1, 2])
def test_loky_gives_what_the_loop_gives(workers: int) -> None:
    shared = {"letters": "abcdefgh", "numbers": list(range(100))}
    tasks = [("letters", i) for i in range(8)] + [("numbers", i) for i in range(0, 100, 7)]
    found = list(parallel.run(operator.getitem, shared, tasks, workers=workers))
    assert sorted(found) == [(n, shared[key][i]) for n, (key, i) in enumerate(tasks)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "package"), [("loky", "joblib"), ("ray", "ray"), ("dask", "distributed")]
)
def test_what_tasks_share_is_sent_once(
    backend: parallel.Backend, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    # Ray's workers know of this folder's modules by this alone.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    shared = Shared(bytes(range(256)) * 20_000, str(tmp_path / "log"))
    tasks = [("one", i) for i in range(30)]
    found = list(parallel.run(place_in, {"one": shared}, tasks, backend=backend, workers=2))
    assert sorted((i, value) for i, (value, _) in found) == [(i, i) for i in range(30)]
    workers = {pid for _, (_, pid) in found}
    assert os.getpid() not in workers
    senders = [int(pid) for pid in (tmp_path / "log").read_text().split()]
    # This process turns it into bytes once, however many tasks there are; Dask's workers may pass it on.
    assert senders.count(os.getpid()) == 1
    assert len(senders) <= 1 + 2 * len(workers)


def test_no_tasks() -> None:
    assert list(parallel.run(operator.getitem, {}, [], workers=2)) == []


@pytest.mark.parametrize(
    ("backend", "package"), [("ray", "ray>=2.40"), ("dask", "dask[distributed]>=2024.8")]
)
def test_a_missing_package_is_named(
    backend: parallel.Backend, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ray", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError) as error:
        list(parallel.run(operator.getitem, {}, [], backend=backend))
    assert f"pip install '{package}'" in str(error.value)
