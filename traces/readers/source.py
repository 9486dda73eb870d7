"""Where a trace's bytes come from, and how a place in them is named."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    """A file's (or standard input's) bytes, decompressed; gone through once, as ``data`` or in ``pieces``.

    Attributes:
        name: what errors call it: the path as given, or ``standard input``.
        head: the beginning, without a byte order mark; formats are told from it.
        read: the next so many bytes after it; all that are left for -1.
        path: the file whose bytes these are as they stand; None for gzip, pipes and standard input.
    """

    name: str
    head: bytes
    read: Callable[[int], bytes]
    path: Path | None = None

    @cached_property
    def data(self) -> bytes:
        """The whole content, gzip undone, without a byte order mark."""
        return self.head + self.read(-1)

    def pieces(self, size: int) -> Iterator[bytes]:
        """The content in pieces of some ``size`` bytes that end where a row of a CSV does.

        That is a line end outside quotes. A row that is longer makes its piece longer.
        """
        held = self.head
        while held:
            # Asking for ever more keeps a single long row from being searched again and again.
            more = self.read(max(size, len(held)))
            end = _last_row_end(held) if more else len(held)
            if end:
                yield held[:end]
            held = held[end:] + more

    def first_line(self) -> bytes:
        """The first line, without its end."""
        return self.head.split(b"\n", 1)[0].rstrip(b"\r")

    def first_row(self) -> bytes:
        """What goes before the first line end outside quotes, and that; the whole head where there is none."""
        end, inside, begun = 0, 0, False
        while end < len(self.head):
            begin, end = end, self.head.find(b"\n", end) + 1
            if not end:
                break
            inside ^= self.head.count(b'"', begin, end) % 2
            begun = begun or bool(self.head[begin:end].strip())
            if begun and not inside:
                return self.head[:end]
        return self.head

    @cached_property
    def header(self) -> list[str]:
        """The names of a comma-separated first line."""
        return [name.strip() for name in self.first_line().decode("utf-8", "replace").split(",")]

    @cached_property
    def first_object(self) -> dict[str, Any]:
        """The JSON object on the first line, or the first of a JSON list; empty if there is neither."""
        head = self.head.lstrip()
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
        return self.head.lstrip().startswith(b"[")

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


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Open a file; ``-`` is standard input; gzip is told by content, not by name.

    Raises:
        InputError: the file is missing, unreadable or empty; or later, while it is read: broken gzip.
    """
    name = "standard input" if str(path) == "-" else str(path)
    with _opened(path, name) as file:
        with _told(name):
            packed = file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
        content = gzip.GzipFile(fileobj=file) if packed else file

        def read(size: int) -> bytes:
            with _told(name):
                return content.read(size)

        head = read(SNIFFED_BYTES).removeprefix(BYTE_ORDER_MARK)
        while not head.strip():
            more = read(SNIFFED_BYTES)
            if not more:
                raise InputError(f"{name} is empty")
            head += more
        plain = not packed and str(path) != "-" and Path(path).is_file()
        yield Source(name, head, read, Path(path) if plain else None)


@contextmanager
def _opened(path: str | Path, name: str) -> Iterator[io.BufferedReader[Any]]:
    if str(path) != "-":
        with _told(name):
            opened = open(path, "rb")  # noqa: SIM115
        with opened:
            yield opened
        return
    # Buffered here, so that the first bytes can be looked at; the stream itself stays open.
    file = io.BufferedReader(sys.stdin.buffer)  # type: ignore[type-var]
    try:
        yield file
    finally:
        file.detach()


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Errors of reading in sentences; only of reading, as what is done with the bytes has its own."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{name} is broken gzip ({error}); fetch it again") from error
    except FileNotFoundError:
        raise InputError(f"there is no file {name}") from None
    except IsADirectoryError:
        raise InputError(f"{name} is a folder; give one file") from None
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from error


def _last_row_end(data: bytes) -> int:
    """Where the last line ends that does so outside quotes; 0 if none does."""
    end = data.rfind(b"\n") + 1
    inside = data.count(b'"', 0, end) % 2
    while inside:
        before = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
        inside ^= data.count(b'"', before, end) % 2
        end = before
    return end
