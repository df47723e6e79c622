"""An OpenAI-compatible server of a few lines, whose every answer a test can spoil."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """What the server says. The defaults are those of a server that is right."""

    model: str = "moet-demo"
    max_model_len: int = 4096
    health_status: int = 200
    healthy_after: int = 0
    answer: str = "28"
    answer_finish: str = "stop"
    call_name: str = "get_weather"
    call_arguments: str = '{"city": "Paris"}'
    call_content: str | None = None
    call_count: int = 1
    call_finish: str = "tool_calls"
    stream_arguments: str | None = None
    stream_finish: str | None = None
    api_key: str | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    health_calls: int = 0


def serve(behaviour: Behaviour, port: int = 0) -> AbstractContextManager[str]:
    """Run the server on this machine, on a free port unless one is given; gives its base URL."""
    return listening(type("Handler", (_Handler,), {"behaviour": behaviour}), port)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """Answer on this machine, on a free port unless one is given; yields the base URL."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    behaviour: Behaviour

    def log_message(self, *_: object) -> None:
        """Keep test output clean."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.behaviour.health_calls += 1
            early = self.behaviour.health_calls <= self.behaviour.healthy_after
            self._send(503 if early else self.behaviour.health_status, b"")
        elif not self._authorized():
            self._json(401, {"error": {"message": "no key"}})
        elif self.path == "/v1/models":
            card = {"id": self.behaviour.model, "object": "model", "created": 0, "owned_by": "test"}
            card["max_model_len"] = self.behaviour.max_model_len
            self._json(200, {"object": "list", "data": [card]})
        else:
            self._json(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.behaviour.requests.append(request)
        if not self._authorized():
            self._json(401, {"error": {"message": "no key"}})
        elif request.get("stream"):
            self._send(200, b"".join(self._events(request)), "text/event-stream")
        else:
            self._json(200, self._completion(request))

    def _authorized(self) -> bool:
        key = self.behaviour.api_key
        return key is None or self.headers["Authorization"] == f"Bearer {key}"

    def _completion(self, request: dict[str, Any]) -> dict[str, Any]:
        behaviour = self.behaviour
        message: dict[str, Any] = {"role": "assistant", "content": behaviour.answer}
        finish = behaviour.answer_finish
        if request.get("tools"):
            calls = [self._call(behaviour.call_arguments, number) for number in range(behaviour.call_count)]
            message = {"role": "assistant", "content": behaviour.call_content, "tool_calls": calls}
            finish = behaviour.call_finish
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return self._body("chat.completion") | {"choices": [choice]}

    def _events(self, request: dict[str, Any]) -> Iterator[bytes]:
        behaviour = self.behaviour
        text = behaviour.stream_arguments or behaviour.call_arguments
        half = len(text) // 2
        first = self._call(text[:half], 0) | {"index": 0}
        second = {"index": 0, "function": {"arguments": text[half:]}}
        deltas: list[dict[str, Any]] = [
            {"role": "assistant"},
            {"tool_calls": [first]},
            {"tool_calls": [second]},
            {},
        ]
        for number, delta in enumerate(deltas):
            last = number == len(deltas) - 1
            finish = (behaviour.stream_finish or behaviour.call_finish) if last else None
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            body = self._body("chat.completion.chunk") | {"choices": [choice]}
            yield f"data: {json.dumps(body)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def _call(self, arguments: str, number: int) -> dict[str, Any]:
        function = {"name": self.behaviour.call_name, "arguments": arguments}
        return {"id": f"call-{number}", "type": "function", "function": function}

    def _body(self, kind: str) -> dict[str, Any]:
        return {"id": "1", "object": kind, "created": 0, "model": self.behaviour.model}

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
