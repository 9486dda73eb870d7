"""What tests of sweeps share: a trace, the files of a folder, and waiting for another process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent


def write_trace(path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [f"{0.3 * i},{rng.integers(5, 50)},{rng.integers(1, 60)}\n" for i in range(30)]
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(rows))


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def wait_for(true: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


class Shared:
    """Something large that notes, in a file, which process turns it into bytes to send it on."""

    def __init__(self, content: bytes, log: str) -> None:
        self.content, self.log = content, log

    def __reduce__(self) -> tuple[type, tuple[bytes, str]]:
        with open(self.log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return Shared, (self.content, self.log)


def place_in(shared: Shared, index: int) -> tuple[int, int]:
    """What stands there, and who looked."""
    return shared.content[index], os.getpid()
