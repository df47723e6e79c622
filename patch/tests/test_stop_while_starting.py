"""`vllm serve` obeys a signal that comes while its engine is being made: our patch, on the real wait for the engine."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("vllm")

WAIT_SECONDS = 30
LIMIT_SECONDS = 10
SERVER = f"""
import uvloop, zmq
from vllm.entrypoints.launchers.api_server import entry
from vllm.utils.network_utils import zmq_socket_ctx

async def start(*_, **__):
    with zmq_socket_ctx("inproc://engine", zmq.PULL, bind=True) as engine:
        print("waiting", flush=True)
        engine.poll({WAIT_SECONDS * 1000})
    print("serving", flush=True)

entry.setup_server = lambda *_, **__: ("", None)
entry.run_server_worker = start
uvloop.run(entry.run_server(None))
"""


def stop(*signals: signal.Signals) -> tuple[int, str, str]:
    """Send signals to a server that waits for its engine; its exit status, and what it wrote."""
    # A child of a shell's background job would have SIGINT ignored.
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stdout.readline() == "waiting\n", process.communicate()[1]
        began = time.monotonic()
        for number in signals:
            time.sleep(0.3)  # two at once are one
            process.send_signal(number)
        out, err = process.communicate(timeout=2 * WAIT_SECONDS)
    assert time.monotonic() - began < LIMIT_SECONDS
    return process.returncode, out, err


def test_sigterm_ends_it_without_a_traceback() -> None:
    status, out, err = stop(signal.SIGTERM)
    assert (status, out) == (128 + signal.SIGTERM, "")
    assert "Traceback" not in err


def test_a_second_ctrl_c_ends_it() -> None:
    # asyncio takes the first as a wish to cancel, which waits until the engine is there.
    status, out, err = stop(signal.SIGINT, signal.SIGINT)
    assert out == "" and "KeyboardInterrupt" in err
    assert status in (130, -signal.SIGINT)
