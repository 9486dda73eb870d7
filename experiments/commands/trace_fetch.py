"""``estp trace fetch``: a public trace by its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Fetch:
    """Download a public trace, check its SHA-256, show its licence; without a name, list them all."""

    name: Annotated[Positional[str], arg(metavar="[NAME]", help_behavior_hint="")] = ""
    """Which trace; without a name all are listed."""
    folder: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: the user's cache)")] = (
        None
    )
    """Where to keep it."""
    mirror: Annotated[str | None, arg(metavar="URL", help_behavior_hint="")] = None
    """A URL that has the file under its own name, in place of its publisher."""

    def run(self) -> int:
        """Print the licence and the path; exit code 0."""
        import sys

        from traces.download import CATALOGUE, fetch

        if not self.name:
            width = max(map(len, CATALOGUE))
            for name, public in CATALOGUE.items():
                print(f"{name:{width}}  {public.size / 1e6:5.2f} MB  {public.licence:10}  {public.about}")
            return 0
        path = fetch(self.name, self.folder, self.mirror)
        public = CATALOGUE[self.name]
        print(f"{public.about}\nlicence {public.licence}, from {public.url}", file=sys.stderr)
        # The path alone on standard output: estp compare "$(estp trace fetch NAME)".
        print(path)
        return 0
