"""With a key, nothing but what monitors ask is answered without it."""

from __future__ import annotations

import asyncio
import importlib

import httpx
import pytest

from moet_w2 import api_key
from moet_w2.api_guard import OPEN_PATHS, Guard
from moet_w2.errors import ConfigError

KEY = "secret-word"


async def answers(scope, receive, send):
    """An application that answers everything."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"answered"})


@pytest.fixture
def ask(monkeypatch):
    monkeypatch.setenv(api_key.VARIABLE, KEY)
    transport = httpx.ASGITransport(Guard(answers))

    def run(path: str, method: str = "POST", **headers: str) -> int:
        async def main() -> int:
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                return (await client.request(method, path, headers=headers)).status_code

        return asyncio.run(main())

    return run


PATHS = ("/v1/models", "/invocations", "/tokenize", "/version", "/", "/healthy", "/health/../load", "//invocations")


@pytest.mark.parametrize("path", PATHS)
def test_asks_for_the_key(ask, path):
    assert ask(path) == 401
    assert ask(path, Authorization="Bearer other") == 401
    assert ask(path, Authorization=f"Basic {KEY}") == 401
    assert ask(path, Authorization=f"Bearer {KEY}") == 200


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
def test_monitors_need_none(ask, path):
    assert ask(path, "GET") == 200


def test_preflight_needs_none(ask):
    assert ask("/v1/models", "OPTIONS") == 200


def test_without_a_key_there_is_nothing_to_ask_for(monkeypatch):
    monkeypatch.delenv(api_key.VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="needs VLLM_API_KEY"):
        Guard(answers)


def test_vllm_finds_it_by_its_name():
    module, name = api_key.GUARD.rsplit(".", 1)
    assert getattr(importlib.import_module(module), name) is Guard


def test_a_path_that_vllm_leaves_open_is_still_there():
    """Why there is a guard: were these behind vLLM's own check, it could go."""
    from vllm.entrypoints.serve.middleware.authenticate import GUARDED_PREFIX

    assert not any(path.startswith(GUARDED_PREFIX) for path in ("/invocations", "/tokenize"))
