"""How long a CSV of a million requests takes to read, every row checked: `python benchmarks/read_csv.py [ROWS]`.

Prints CPU seconds (best of three) and the peak memory of the process. The bound is 3 s of CPU.
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


def main(rows: int) -> int:
    """Write the file, read it three times; 1 if a million rows take longer than the bound."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "arrived_at": np.round(np.cumsum(rng.exponential(0.1, rows)), 6),
            "num_prefill_tokens": rng.integers(1, 4000, rows),
            "num_decode_tokens": rng.integers(1, 1000, rows),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        frame.write_csv(path)
        seconds = []
        for _ in range(3):
            begin = time.process_time()
            read_trace(path)
            seconds.append(time.process_time() - begin)
        size = path.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"{rows:,} rows ({size / 1e6:.1f} MB): {min(seconds):.2f} s CPU, peak memory {peak:.0f} MB")
    return int(min(seconds) * 1e6 / rows > BOUND_S)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
