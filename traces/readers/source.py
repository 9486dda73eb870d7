"""Where a trace's bytes come from, and how a place in them is named."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from traces.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
# A format is told from the first request, if it ends within so many bytes.
SNIFFED_BYTES = 1 << 20
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

    @cached_property
    def header(self) -> list[str]:
        """The names of a comma-separated first line."""
        return [name.strip() for name in self.first_line().decode("utf-8", "replace").split(",")]

    @cached_property
    def first_object(self) -> dict[str, Any]:
        """The JSON object on the first line, or the first of a JSON list; empty if there is neither."""
        head = self.data[:SNIFFED_BYTES].lstrip()
        listed = head.startswith(b"[")
        text = (head[1:].lstrip() if listed else head.split(b"\n", 1)[0]).decode("utf-8", "ignore")
        try:
            found, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return {}
        whole = isinstance(found, dict) and (listed or not text[end:].strip())
        return found if whole else {}

    @property
    def is_list(self) -> bool:
        """Whether the content begins as a JSON list does."""
        return self.data[:SNIFFED_BYTES].lstrip().startswith(b"[")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """(number from 1, line) of the lines that are not blank.

        Only a line feed ends one: ``str.splitlines`` would also cut at U+2028, which JSON allows in strings.
        """
        start, number = 0, 1
        while start < len(self.data):
            end = self.data.find(b"\n", start)
            end = len(self.data) if end < 0 else end
            line = self.data[start:end].strip()
            if line:
                yield number, line
            start, number = end + 1, number + 1


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
