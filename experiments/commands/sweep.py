"""``estp sweep``: a grid of simulations from a YAML file, here or on a cluster."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Sweep:
    """Simulate every point of a grid: policies, batching, load, devices, seeds.

    The YAML file has the options of estp compare as settings, and those that vary under grid. All
    policies of a point meet the same requests. Each cell is written as it ends: the same command
    again goes on where a killed sweep stopped.
    """

    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """The sweep, as YAML."""
    out: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: out/NAME-OF-FILE)")] = None
    """Folder for the cells and the results (Parquet and CSV)."""
    backend: Literal["loky", "ray", "dask"] = "loky"
    """Where cells run: processes of this machine, a Ray or a Dask cluster. The results are the same."""
    workers: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: all cores)")] = None
    """Cells that run at once."""
    address: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """A Ray or Dask cluster that is up; without one, a local one is started."""
    shard: Annotated[str, arg(metavar="I/N")] = "1/1"
    """Run only the I-th of N parts, for batch queues; all parts share --out."""

    def run(self) -> int:
        """Run what is missing, print the table; exit code 1 if a cell failed."""
        from experiments.sweep import read_plan, render, sweep
        from experiments.sweep.run import parse_shard

        out = self.out or Path("out") / self.file.stem
        shard = parse_shard(self.shard)
        try:
            done = sweep(
                read_plan(self.file),
                out,
                backend=self.backend,
                workers=self.workers,
                address=self.address,
                shard=shard,
                progress=sys.stderr.isatty(),
                say=lambda sentence: print(sentence, file=sys.stderr, flush=True),
            )
        except KeyboardInterrupt:
            print(f"the cells that ended are in {out}; the same command goes on from there", file=sys.stderr)
            raise
        if done.table is None:
            print(
                f"{done.missing} cells of other shards are not in {out} yet; the last shard writes the table"
            )
        else:
            print(render(done.table))
            print(f"\nwrote {out}")
        if done.failed:
            print(f"{len(done.failed)} cells failed; the same command tries them again", file=sys.stderr)
        return 1 if done.failed else 0
