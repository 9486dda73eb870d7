"""A public trace is fetched once, checked, and refused if it is not the file that was meant.

Truth: a local HTTP server that gives the right bytes, other bytes, or nothing.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from experiments.cli import main
from traces import InputError
from traces.download import CATALOGUE, Public, fetch

BODY = b"input_length,output_length\n1,2\n"
FILES = {"/good.csv": BODY, "/bad.csv": BODY[:-1] + b"3"}
NAMES = {
    name: Public(
        f"http://none.invalid/{name}.csv", hashlib.sha256(BODY).hexdigest(), len(BODY), "CC0-1.0", "tiny"
    )
    for name in ("good", "bad", "gone")
}


class Handler(BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 - one server a test run

    def do_GET(self) -> None:
        Handler.asked.append(self.path)
        body = FILES.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def mirror() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetched_once_and_kept(tmp_path: Path, mirror: str) -> None:
    path = fetch("good", tmp_path / "new", mirror, NAMES)
    assert path.read_bytes() == BODY
    before = len(Handler.asked)
    assert fetch("good", tmp_path / "new", mirror, NAMES) == path
    assert len(Handler.asked) == before
    # A file that was damaged since is fetched anew.
    path.write_bytes(b"damaged")
    assert fetch("good", tmp_path / "new", mirror, NAMES).read_bytes() == BODY
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_other_bytes_are_refused_and_not_kept(tmp_path: Path, mirror: str) -> None:
    meant, got = (hashlib.sha256(FILES[path]).hexdigest() for path in ("/good.csv", "/bad.csv"))
    said = f"is not bad: its SHA-256 is {got}, and should be {meant}; nothing was kept"
    with pytest.raises(InputError, match=said):
        fetch("bad", tmp_path, mirror, NAMES)
    assert list(tmp_path.iterdir()) == []


def test_no_answer_and_no_name(tmp_path: Path, mirror: str) -> None:
    with pytest.raises(InputError, match=r"cannot fetch gone .*\(the server answers 404 Not Found\)"):
        fetch("gone", tmp_path, mirror, NAMES)
    # Nobody listens on port 1: what an offline machine sees.
    said = r"cannot fetch good .*\(no connection to 127.0.0.1:1\); if this machine is offline, .* put it to .*good\.csv"
    with pytest.raises(InputError, match=said):
        fetch("good", tmp_path, "http://127.0.0.1:1", NAMES)
    with pytest.raises(InputError, match="did you mean 'azure-2023-conv'"):
        fetch("azure-2023-con", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot fetch good"):
        fetch("good", tmp_path / "file", mirror, NAMES)


def test_kept_in_the_users_cache(tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESTP_CACHE", str(tmp_path))
    assert fetch("good", mirror=mirror, catalogue=NAMES).parent == tmp_path / "traces"


def test_command(
    tmp_path: Path, mirror: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "fetch"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed and public.licence in listed for name, public in CATALOGUE.items())
    monkeypatch.setattr("traces.download.CATALOGUE", NAMES)
    monkeypatch.setattr("traces.download.fetch.__defaults__", (None, None, NAMES))
    assert main(["trace", "fetch", "good", "--folder", str(tmp_path), "--mirror", mirror]) == 0
    out, err = capsys.readouterr()
    assert Path(out.strip()).read_bytes() == BODY
    assert "licence CC0-1.0" in err
    assert main(["trace", "fetch", "bad", "--folder", str(tmp_path), "--mirror", mirror]) == 2


def test_hashes_are_those_of_the_published_files(reference: Path) -> None:
    own = {hashlib.sha256(f.read_bytes()).hexdigest(): f for f in (reference / "data/1_traces").rglob("*.*")}
    for name, public in CATALOGUE.items():
        assert public.sha256 in own, name
        assert own[public.sha256].stat().st_size == public.size
