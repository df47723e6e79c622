"""A second start: right after the crash of the first, in the background, without AVX512, and stopped in order."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
import stop_session
from server_support import Server, background, unlocked

pytestmark = pytest.mark.server
STOP_SECONDS = 10


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


def test_stop_while_it_answers_leaves_nothing_behind(server):
    """SIGTERM to the server alone, as a service manager sends it; the answer that is on its way is given up."""
    assert len(stop_session.members(server.pid)) >= 3  # API server, engine, worker
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
    messages = [{"role": "user", "content": "What is 12 + 30?"}]
    endless = client.chat.completions.create(
        model="moet-demo", messages=messages, stream=True, max_tokens=3500, extra_body={"ignore_eos": True}
    )
    next(endless)
    start = time.monotonic()
    done = server.script("serve-demo.sh", "--stop")
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < STOP_SECONDS
    # The connection breaks, or the engine still says that it gives up; either way no answer came to its end.
    reasons: list[str | None] = []
    with contextlib.suppress(openai.APIError, httpx.HTTPError):
        for chunk in endless:
            reasons += [choice.finish_reason for choice in chunk.choices]
    assert set(reasons) <= {None, "abort"}
    assert stop_session.members(server.pid) == []
    assert unlocked(server)
    with socket.create_server(("127.0.0.1", server.port)):
        pass
    assert not (server.run_dir / "server.pid").exists()
