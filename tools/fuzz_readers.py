"""Feed a reader damaged files and see that it ends in a trace or in one sentence.

    python tools/fuzz_readers.py NAME [SECONDS] [SEED]

NAME is a file of `tests/data/traces` (mooncake.jsonl), or ``parquet``, or ``all``: then SECONDS (of CPU time,
300 if not given) for each. Files are damaged, sometimes repeated to some megabytes, and read with both ways of
treating faults. Anything but a trace or an InputError, a warning, more than 10 s of CPU for one file, or more
memory than 4 times the file and 200 MB is a finding; its input is kept in the folder `fuzz_findings`, as is
the one that a crash of the whole process was busy with (`current`). The exit code is 1 if there is a finding.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from traces import InputError, Trace, read_trace, write_trace
from traces.schema import object_array

DATA = Path(__file__).parent.parent / "tests" / "data" / "traces"
FINDINGS = Path("fuzz_findings")
MOST_S = 10
FREE_MB = 200
MOST_BYTES = 4_000_000
# What a format's author did not think of, and what parsers trip over.
TOKENS = [
    *(
        b"",
        b"\0",
        b"\n",
        b"\r\n",
        b"\r",
        b'"',
        b'""',
        b"'",
        b",",
        b";",
        b"\t",
        b":",
        b"{",
        b"}",
        b"[",
        b"]",
        b"\\",
    ),
    *(
        b"NaN",
        b"nan",
        b"Infinity",
        b"-inf",
        b"null",
        b"true",
        b"{}",
        b"[]",
        b"[[]]",
        b"-1",
        b"0",
        b"1.5",
        b"1e999",
    ),
    *(b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"9" * 400, b"2147483648"),
    *(
        b"\\ud800",
        b"\\u0000",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        "\u2028".encode(),
        "😀".encode(),
        b"\xed\xa0\x80",
    ),
    *(
        b"[" * 2000,
        b'{"a":' * 2000,
        b'"' + b"x" * 5000 + b'"',
        b"prompt_tokens=",
        b"2023-13-45 99:99:99",
        b"\x1f\x8b",
    ),
]


class TooLongError(Exception):
    """A read took more than its time."""


def main(name: str, seconds: float, seed: int) -> int:
    """Fuzz one reader, or all; the number of findings, at most 1."""
    warnings.simplefilter("error")
    signal.signal(signal.SIGPROF, _too_long)
    names = [*sorted(file.name for file in DATA.iterdir()), "parquet"] if name == "all" else [name]
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _word_tokenizer(Path(folder))
        for each in names:
            found += _fuzz(each, _seeds(each, Path(folder)), seconds, random.Random(seed), tokenizer)
    return int(found > 0)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """The file with one to eight damages, and now and then repeated to megabytes."""
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        begin = rng.randrange(len(data) + 1)
        end = min(begin + rng.choice((0, 1, 1, 2, 8, 40)), len(data))
        kind = rng.randrange(6)
        if kind == 0:
            piece = rng.choice(TOKENS)
        elif kind == 1:
            piece = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 6)))
        elif kind == 2:
            piece = data[begin:end] * rng.randrange(2, 5)
        elif kind == 3:
            piece = b""
        elif kind == 4:
            other = rng.randrange(len(data) + 1)
            piece = data[other : other + rng.randrange(60)]
        else:
            piece = str(rng.choice((rng.randrange(-9, 9), rng.randrange(2**70), rng.random() * 1e9))).encode()
        data = data[:begin] + piece + data[end:]
    if rng.random() < 0.01:
        rows = data.split(b"\n", 1)
        data = rows[0] + b"\n" + rows[-1] * rng.randrange(1, max(2, MOST_BYTES // max(len(data), 1)))
    return data


def _fuzz(name: str, seeds: list[bytes], seconds: float, rng: random.Random, tokenizer: str) -> int:
    FINDINGS.mkdir(exist_ok=True)
    path = FINDINGS / "current"
    outcomes = {"read": 0, "refused": 0}
    found: dict[str, int] = {}
    peak_mb = _peak_mb()
    ends = time.process_time() + seconds
    while time.process_time() < ends:
        data = mutated(rng.choice(seeds), rng)
        path.write_bytes(data)
        for on_error in ("fail", "skip"):
            before_mb = _peak_mb()
            finding = _read(
                path, None if rng.random() < 0.7 else _format(name), on_error, tokenizer, outcomes
            )
            grown_mb = _peak_mb() - peak_mb
            if _peak_mb() > before_mb and grown_mb > 4 * len(data) / 1e6 + FREE_MB:
                finding = f"memory grew by {grown_mb:.0f} MB for a file of {len(data) / 1e6:.2f} MB"
            if finding and finding not in found:
                kept = FINDINGS / f"{name}-{len(found)}-{on_error}"
                kept.write_bytes(data)
                print(f"{name}: {finding}\n  input: {kept}", flush=True)
            if finding:
                found[finding] = found.get(finding, 0) + 1
    total = sum(outcomes.values()) + sum(found.values())
    print(
        f"{name}: {total} reads, {outcomes['read']} traces, {outcomes['refused']} refusals, "
        f"{len(found)} findings; peak memory {_peak_mb():.0f} MB ({_peak_mb() - peak_mb:.0f} MB more than before)",
        flush=True,
    )
    path.unlink()
    return len(found)


def _read(
    path: Path, format: str | None, on_error: str, tokenizer: str, outcomes: dict[str, int]
) -> str | None:
    signal.setitimer(signal.ITIMER_PROF, MOST_S)
    try:
        read_trace(path, format, on_error=on_error, tokenizer=tokenizer)  # type: ignore[arg-type]
        outcomes["read"] += 1
    except InputError:
        outcomes["refused"] += 1
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)
        own = [
            frame for frame in where if "/traces/" in frame.filename and "tools" not in frame.filename
        ] or where
        return f"{type(error).__name__}: {str(error)[:200]} at {Path(own[-1].filename).name}:{own[-1].lineno}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def _format(name: str) -> str:
    return name.split(".")[0]


def _seeds(name: str, folder: Path) -> list[bytes]:
    if name != "parquet":
        return [(DATA / name).read_bytes()]
    trace = Trace(
        np.arange(3),
        np.arange(3.0),
        np.full(3, 20),
        np.full(3, 4),
        prompt=object_array(["a", None, "c"]),
        hash_ids=object_array([np.array([1])] * 3),
        metadata={"hash_block_tokens": 16},
    )
    write_trace(trace, folder / "own.parquet")
    foreign = trace.replace(hash_ids=None)
    from traces.parquet import table_of

    table_of(foreign).write_parquet(folder / "foreign.parquet", compression="uncompressed")
    return [(folder / "own.parquet").read_bytes(), (folder / "foreign.parquet").read_bytes()]


def _word_tokenizer(folder: Path) -> str:
    path = folder / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    path.write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})
    )
    return str(path)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _too_long(*_: object) -> None:
    raise TooLongError(f"more than {MOST_S} s of CPU time")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    given = [*sys.argv[1:], "300", "0"][:3] if len(sys.argv) == 2 else [*sys.argv[1:], "0"][:3]
    sys.exit(main(given[0], float(given[1]), int(given[2])))
