"""What `vllm serve` ends with when its engine has died: our patch, on the real HTTP server with a fake engine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

launcher = pytest.importorskip("vllm.entrypoints.launchers.launcher")


class Engine:
    """An engine client that dies, or does not."""

    def __init__(self) -> None:
        self.errored, self.is_running = False, True
        self.vllm_config = SimpleNamespace(shutdown_timeout=0)

    def die(self) -> None:
        self.errored, self.is_running = True, False

    def shutdown(self, timeout: float) -> None:
        self.die()


def serve(engine: Engine | None, then) -> None:
    """Serve as vLLM does until ``then`` has ended it: the server first, what it returned after the engine is closed."""

    async def main() -> None:
        app = FastAPI()
        app.state.engine_client = engine
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
            asyncio.get_running_loop().call_later(0.3, then, app)
            shutdown = await launcher.serve_http(app, sock=sock, host="127.0.0.1", port=port, log_level="warning")
            if engine is not None:
                engine.shutdown(0)
            await shutdown

    asyncio.run(main())


def test_a_dead_engine_is_a_failure() -> None:
    engine = Engine()

    def notice(app: FastAPI) -> None:
        engine.die()
        launcher.terminate_if_errored(app.state.server, engine)

    with pytest.raises(SystemExit) as ended:
        serve(engine, notice)
    assert ended.value.code == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_none(number: signal.Signals) -> None:
    serve(Engine(), lambda app: os.kill(os.getpid(), number))


def test_an_end_that_the_server_was_told_is_none() -> None:
    for engine in (Engine(), None):
        serve(engine, lambda app: setattr(app.state.server, "should_exit", True))
