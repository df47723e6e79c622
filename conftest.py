"""How tests are shared out where several processes run them (``make test``)."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent
SERVER_GROUP = "server"
NICE = 10
_AT_START = os.getpriority(os.PRIO_PROCESS, 0)
_MARK = "pytestmark = pytest.mark.server"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay together, for its fixtures; all that start a vLLM server do, for there is one at a time."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid.partition("::")[0])

    return ByGroup(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Servers come first: they take longest, on two cores, and what the other process tests can wait for them."""
    if hasattr(item.config, "workerinput"):
        waits = _AT_START + (0 if item.get_closest_marker(SERVER_GROUP) else NICE)
        with suppress(PermissionError):  # only root may take back that it waits
            os.setpriority(os.PRIO_PROCESS, 0, waits)


@cache
def group(file: str) -> str:
    """What the tests of a file run with: the file's own tests, or all that start a server.

    Args:
        file: path from the root of the tree.
    """
    return SERVER_GROUP if _MARK in (ROOT / file).read_text().splitlines() else file
