"""A local HTTP server that can misbehave, for the tests of downloads."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pins import Artifact


@dataclass
class FileServer:
    """Serves one body. `cut_after` bytes of a response are sent before the connection drops, as often as
    `cuts` says; `ranges` false ignores Range headers, as some mirrors do."""

    body: bytes
    cut_after: int = 0
    cuts: int = 0
    ranges: bool = True
    status: int = 200
    seen: list[str | None] = field(default_factory=list)  # the Range header of each request
    url: str = ""

    def artifact(self, sha256: str | None = None) -> Artifact:
        return Artifact("file.whl", self.url, sha256 or hashlib.sha256(self.body).hexdigest())


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    state = FileServer(body=bytes(range(256)) * 4096)  # 1 MiB

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.seen.append(wanted)
            if state.status != 200:
                self.send_error(state.status)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and state.ranges else 0
            if start >= len(state.body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(state.body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            rest = state.body[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if state.cuts:
                state.cuts -= 1
                rest = rest[: state.cut_after]
                self.close_connection = True
            self.wfile.write(rest)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}/file.whl"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()
