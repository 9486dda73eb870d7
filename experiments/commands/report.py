"""``estp report``: one HTML page about a folder of results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page: what was found, how sure it is, settings, tables and plots.

    The page needs no network, follows the reader's light or dark setting, and can be printed.
    """

    folder: Annotated[Positional[Path], arg(metavar="DIR")]
    """What estp compare --out, estp sweep or estp stress --out wrote."""
    out: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: DIR/report.html)")] = None
    """The page."""

    def run(self) -> int:
        """Write the page; exit code 0."""
        from experiments.report import write_report

        path = write_report(self.folder, self.out)
        print(f"wrote {path} ({path.stat().st_size / 1000:.0f} kB)")
        return 0
