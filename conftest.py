"""How tests are shared out where several processes run them (``make test``)."""

from __future__ import annotations

import pytest

SERVER_GROUP = "server"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay together, for its fixtures; all that start a vLLM server do, for there is one at a time."""
    for item in items:
        group = SERVER_GROUP if item.get_closest_marker("server") else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
