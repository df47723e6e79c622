"""`vllm serve` ends soon after SIGTERM though a client still reads: our patch, on the real HTTP server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

launcher = pytest.importorskip("vllm.entrypoints.launchers.launcher")

LIMIT_SECONDS = 10


async def never_ends() -> AsyncIterator[str]:
    """An answer whose engine has been taken away: it neither ends nor fails."""
    yield "first"
    await asyncio.Event().wait()


async def serve_until_stopped() -> tuple[float, str, Exception | None]:
    """Serve one such answer, stop, and return the seconds that took, what the client got and how that ended."""
    app = FastAPI()
    stopped = SimpleNamespace(errored=False, is_running=True, vllm_config=SimpleNamespace(shutdown_timeout=0))
    stopped.shutdown = lambda timeout: None
    app.state.engine_client = stopped
    app.get("/")(lambda: StreamingResponse(never_ends()))
    got: list[str] = []
    started = 0.0

    async def read(port: int) -> None:
        nonlocal started
        async with httpx.AsyncClient(timeout=60) as client, client.stream("GET", f"http://127.0.0.1:{port}/") as answer:
            async for text in answer.aiter_text():
                got.append(text)
                started = time.monotonic()
                os.kill(os.getpid(), signal.SIGTERM)

    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        reader = asyncio.ensure_future(read(port))
        await (await launcher.serve_http(app, sock=sock, host="127.0.0.1", port=port, log_level="critical"))
        seconds = time.monotonic() - started
        ended = (await asyncio.gather(reader, return_exceptions=True))[0]
    return seconds, "".join(got), ended


def test_ends_while_a_client_reads() -> None:
    seconds, got, ended = asyncio.run(asyncio.wait_for(serve_until_stopped(), 30))
    assert got == "first"
    assert seconds < LIMIT_SECONDS
    assert isinstance(ended, httpx.RemoteProtocolError)  # the client learns that the answer is not whole
