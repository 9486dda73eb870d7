"""Writing files so that a reader never meets half of one, and where what is kept for later stands."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traces.errors import InputError


def cache_folder() -> Path:
    """Where downloads and converted models are kept: ``ESTP_CACHE``, else ``estp`` in the user's cache."""
    if os.environ.get("ESTP_CACHE"):
        return Path(os.environ["ESTP_CACHE"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "estp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "estp"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "estp"


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; it takes the name ``path`` when the block ends well.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    target = Path(path)
    try:
        # The same folder, so that the final rename never crosses file systems.
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; a result is an ordinary one.
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
