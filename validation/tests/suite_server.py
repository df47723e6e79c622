"""A server for the suites, with a tokenizer of its own and an answer for each request that a test may replace."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from fake_server import listening

from validation.core import derived

PIECE = re.compile(r"\w+|\s|[^\w\s]")
PROMPT_TOKENS = 7
"""What rendering adds to a single user message."""


def pieces(text: str) -> list[str]:
    """The fake tokenizer: words, single spaces, single marks."""
    return PIECE.findall(text)


@dataclass
class Script:
    """What the server does.

    Attributes:
        answer: from a request to what its stream says (fields of an Answer), or None to cut the connection.
        requests: chat requests, in the order in which they came.
        model, max_model_len: what /v1/models tells.
        status, tokenize_status: of chat requests, and of /tokenize.
        up: False cuts every connection, as a server that has died does.
    """

    answer: Callable[[dict[str, Any]], dict[str, Any] | None]
    model: str = "moet-demo"
    max_model_len: int = 4096
    requests: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    tokenize_status: int = 200
    up: bool = True


def serving(script: Script) -> AbstractContextManager[str]:
    """Run it; gives its base URL."""
    return listening(type("Handler", (_Handler,), {"script": script}))


class _Handler(BaseHTTPRequestHandler):
    script: Script

    def log_message(self, *_: object) -> None:
        """Keep test output clean."""

    def do_GET(self) -> None:
        if not self.script.up:
            self.close_connection = True
            return
        card = {"id": self.script.model, "max_model_len": self.script.max_model_len}
        self._send(200, json.dumps({"data": [card]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize" and self.script.tokenize_status != 200:
            self._send(self.script.tokenize_status, '{"error": "no"}')
        elif self.path == "/tokenize":
            words = pieces(body["messages"][0]["content"])
            # Ids from the words themselves, so that equal texts have equal ids.
            tokens = [*range(PROMPT_TOKENS), *(int.from_bytes(word.encode()[:6], "big") for word in words)]
            self._send(200, json.dumps({"tokens": tokens, "count": len(tokens)}))
        elif self.path == "/detokenize":
            self._send(200, json.dumps({"prompt": "".join(chr(token) for token in body["tokens"])}))
        else:
            self._chat(body)

    def _chat(self, body: dict[str, Any]) -> None:
        self.script.requests.append(body)
        if self.script.status != 200:
            self._send(self.script.status, '{"error": "no"}')
            return
        fields = self.script.answer(body)
        if fields is None:
            self.close_connection = True
            return
        count = PROMPT_TOKENS + len(pieces(body["messages"][0]["content"]))
        usage = {"prompt_tokens": count, "completion_tokens": 1, "total_tokens": count + 1}
        lines = derived.spoken(**{"usage": usage} | fields)
        self._send(200, "".join(f"{line}\n\n" for line in lines), "text/event-stream")

    def _send(self, status: int, text: str, kind: str = "application/json") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
