"""The key, asked for at every door: vLLM asks for it under a few prefixes and leaves others open.

``/invocations`` answers like ``/v1/chat/completions`` and ``/tokenize`` reads prompts, neither behind vLLM's own check
(vllm/entrypoints/serve/middleware/authenticate.py). The launcher adds this middleware wherever there is a key.
"""

from __future__ import annotations

import os

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from .api_key import VARIABLE
from .errors import ConfigError

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics", "/metrics/"})
"""What monitors ask, without a key: whether the server lives, and its counters."""


class Guard:
    """ASGI middleware: 401 for whatever comes without the key, but for :data:`OPEN_PATHS` and CORS preflights.

    Raises:
        ConfigError: there is no key that it could ask for.
    """

    def __init__(self, app: ASGIApp) -> None:
        key = os.environ.get(VARIABLE)
        if not key:
            raise ConfigError(f"--middleware {__name__}.Guard needs {VARIABLE}; set it or remove the option")
        self._app = app
        self._keys = AuthenticationMiddleware(app, [key])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] in ("http", "websocket") and scope.get("method") != "OPTIONS"
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if asked and path not in OPEN_PATHS and not self._keys.verify_token(Headers(scope=scope)):
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
