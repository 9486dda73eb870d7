"""How long a CSV of a million requests takes to read, every row checked: `python benchmarks/read_csv.py [ROWS]`.

Prints the CPU seconds and how much more memory the process had at most than before, the trace's own arrays (24
bytes a request) taken off. Rows are checked piece by piece, so that this hardly grows with the file. The bounds
are 3 s a million rows and 80 MB.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from traces import read_trace

BOUND_S = 3.0
BOUND_MB = 80.0
PART_ROWS = 100_000


def main(rows: int) -> int:
    """Write the file, read it; 1 if that takes more time or memory than the bounds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        _write(path, min(rows, 1000))
        read_trace(path)  # what is imported on the way
        _write(path, rows)
        before_mb = _peak_mb()
        begin = time.process_time()
        trace = read_trace(path)
        seconds = time.process_time() - begin
        size = path.stat().st_size
    own_mb = sum(column.nbytes for column in trace.columns().values()) / 1e6
    more_mb = _peak_mb() - before_mb - own_mb
    print(
        f"{rows:,} rows ({size / 1e6:.1f} MB): {seconds:.2f} s CPU, "
        f"{more_mb:.0f} MB beyond the trace's own {own_mb:.0f} MB"
    )
    return int(seconds * 1e6 / rows > BOUND_S or more_mb > BOUND_MB)


def _write(path: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    # In parts, as the peak so far must not cover that of the reading.
    last = 0.0
    with path.open("wb") as file:
        for start in range(0, rows, PART_ROWS):
            count = min(PART_ROWS, rows - start)
            arrivals = last + np.cumsum(rng.exponential(0.1, count))
            last = arrivals[-1]
            part = pl.DataFrame(
                {
                    "arrived_at": np.round(arrivals, 6),
                    "num_prefill_tokens": rng.integers(1, 4000, count),
                    "num_decode_tokens": rng.integers(1, 1000, count),
                }
            )
            part.write_csv(file, include_header=start == 0)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
