"""``estp conformance``: are our scheduler's decisions those of vLLM?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional


@dataclass(frozen=True)
class Conformance:
    """Replay scheduling steps recorded from vLLM and report the first that differs."""

    files: Positional[tuple[Path, ...]]
    """Recorded cases, JSON, gzipped or not."""
    leap: bool = True
    """Leap over steps in which nothing is decided, as simulations do."""

    def run(self) -> int:
        """Exit code 0 if every step of every case is identical, else 1."""
        from sim import conformance
        from traces.errors import InputError

        if not self.files:
            raise InputError("give one file of recorded steps at least")
        report = conformance.run(self.files, leap=self.leap)
        print("\n".join(report.lines))
        return report.exit_code
