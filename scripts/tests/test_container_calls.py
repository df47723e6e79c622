"""What a container engine's seccomp filter does to mapped layers, with real filters of the kernel."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pins
import pytest
import seccomp_profile

PROBE = """
import ctypes, json, os, struct, sys
from moet_w2.errors import HostMemoryError
from moet_w2.host_memory import HostAllocation
from moet_w2.linux import PAGE, _SYS_MBIND, _SYS_MOVE_PAGES
from moet_w2.topology import Locality

NUMBERS = {"mbind": _SYS_MBIND, "move_pages": _SYS_MOVE_PAGES}

def refuse(name):
    # Four instructions: load the call's number; the one that is refused gets EPERM, every other one is allowed.
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, NUMBERS[name]), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):  # no new privileges; filter system calls
        raise OSError(ctypes.get_errno(), "no seccomp filter")

def attempt(refused, nodes):
    reader, writer = os.pipe()
    if os.fork() == 0:  # a filter cannot be taken off again
        try:
            for name in refused:
                refuse(name)
            allocation = HostAllocation("layer 42", PAGE, Locality(0, nodes, "made up"))
            said = allocation.pages.note or "pages proven"
        except HostMemoryError as error:
            said = f"error: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        said = file.read()
    os.wait()
    return said

cases = json.loads(sys.argv[1])
json.dump([attempt(refused, tuple(nodes)) for refused, nodes in cases], sys.stdout)
"""
BOTH = list(seccomp_profile.CALLS)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter names the calls of x86-64")
def test_a_filter_ends_a_start_only_where_there_are_several_nodes() -> None:
    """A machine with one node needs neither call: nothing is bound there, and that pages were not asked is noted."""
    cases = [([], [0]), (BOTH, [0]), ([], [0, 1]), (["mbind"], [0, 1]), (["move_pages"], [0, 1])]
    environment = {**os.environ, "PYTHONPATH": str(pins.ROOT / "runtime_ext" / "src")}
    command = [sys.executable, "-c", PROBE, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    free, one, several, no_mbind, no_move_pages = json.loads(done.stdout)
    if free != "pages proven":
        pytest.skip(f"this machine refuses the calls to everybody: {free}")
    assert several == "pages proven"
    assert one == "move_pages: Operation not permitted; the machine has one node"
    assert no_mbind.startswith("error: layer 42:") and "could not be bound to its node" in no_mbind
    assert no_move_pages.startswith("error: layer 42:") and "pages could not be verified" in no_move_pages
