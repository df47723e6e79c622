"""A second start: right after the crash of the first, in the background, without AVX512, and stopped in order."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
import stop_session
from server_support import Server, background, unlocked

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with background(tmp_path_factory.mktemp("again"), VLLM_MOE_W2_CPU_ISA="avx2") as started:
        yield started


def test_validates_without_avx512(server):
    """The limit is imposed on torch, oneDNN, ATen and vLLM's choice of its compiled extension."""
    assert "Using V2 Model Runner" in server.log
    done = server.script("validate-api.sh", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] is True


def test_another_start_in_the_background_is_refused(server):
    done = server.script("serve-demo.sh", "--background")
    assert done.returncode == 1 and f"a server already runs here (process {server.pid})" in done.stderr
    assert server.pid in stop_session.members(server.pid)


def test_stop_leaves_nothing_behind(server):
    assert len(stop_session.members(server.pid)) >= 3  # API server, engine, worker
    start = time.monotonic()
    done = server.script("serve-demo.sh", "--stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 30
    assert stop_session.members(server.pid) == []
    assert unlocked(server)
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    assert not (server.run_dir / "server.pid").exists()
