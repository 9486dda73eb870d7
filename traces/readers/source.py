"""Where a trace's bytes come from, and how a place in them is named."""

from __future__ import annotations

import gzip
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

from traces.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, eq=False)
class Source:
    """A file's (or standard input's) bytes, decompressed.

    Attributes:
        name: what errors call it: the path as given, or ``standard input``.
        data: the whole content, gzip undone, without a byte order mark.
    """

    name: str
    data: bytes

    def first_line(self) -> bytes:
        """The first line, without its end."""
        end = self.data.find(b"\n")
        return (self.data if end < 0 else self.data[:end]).rstrip(b"\r")


def open_source(path: str | Path) -> Source:
    """Read a file; ``-`` is standard input; gzip is told by content, not by name.

    Raises:
        InputError: the file is missing, unreadable, empty, or broken gzip.
    """
    name = "standard input" if str(path) == "-" else str(path)
    data = sys.stdin.buffer.read() if str(path) == "-" else _read(Path(path))
    if data.startswith(GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{name} is broken gzip ({error}); fetch it again") from error
    data = data.removeprefix(BYTE_ORDER_MARK)
    if not data.strip():
        raise InputError(f"{name} is empty")
    return Source(name, data)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give one file") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
