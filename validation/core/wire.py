"""One request to a server: every line of its stream is kept with the moment it came."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import httpx2

from . import digest
from .answer import Answer, assemble
from .errors import Refusal, ServerError

CHAT = "/v1/chat/completions"
KEPT_CHARACTERS = 65536
PASSING = (408, 429)
"""Statuses of a client's fault that may be gone a moment later."""


@dataclass(frozen=True)
class Exchange:
    """A chat request and what came of it.

    Attributes:
        request: ``{"sha256": of the body, "body": the body}``; a long message of the body is kept by its digest alone.
        status: HTTP status.
        headers_seconds: from sending to the status.
        seconds: from sending to the end.
        lines: (seconds since sending, line) of the stream; empty lines are not kept.
        body: the body where the status is not 200, else None.
    """

    request: dict[str, Any]
    status: int
    headers_seconds: float
    seconds: float
    lines: list[tuple[float, str]] = field(default_factory=list)
    body: str | None = None

    @cached_property
    def answer(self) -> Answer:
        """What a client has in hand."""
        return assemble(self.lines)

    def record(self) -> dict[str, Any]:
        """As JSON; ``events`` is there for the reader and made again from the lines when it is read."""
        return asdict(self) | {"events": self.answer.events}

    @classmethod
    def of(cls, record: dict[str, Any]) -> Exchange:
        """The inverse of :meth:`record`."""
        kept = {name: value for name, value in record.items() if name != "events"}
        return cls(**kept | {"lines": [(seconds, line) for seconds, line in kept["lines"]]})


def request_record(body: dict[str, Any]) -> dict[str, Any]:
    """How a request is kept: whole, but for texts too long to keep, which stand there as their digest."""
    return {"sha256": digest.of_json(body), "body": _short(body)}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_short(inner) for inner in value]
    if isinstance(value, str) and len(value) > KEPT_CHARACTERS:
        return {"sha256": digest.of_text(value), "characters": len(value)}
    return value


class Server:
    """A vLLM API server.

    Args:
        base_url: without /v1.
        api_key: to send, or None.
        timeout: seconds without a byte after which a request is given up.
    """

    def __init__(self, base_url: str, api_key: str | None, timeout: float) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=16)
        self.base_url = base_url
        secure = base_url.startswith("https:")  # reading the certificates takes longer than most requests
        self._client = httpx2.Client(
            base_url=base_url, headers=headers, timeout=timeout, limits=limits, verify=secure
        )

    def chat(self, body: dict[str, Any]) -> Exchange:
        """Stream one chat request to its end.

        Raises:
            ServerError: the server cannot be reached, or the connection broke.
        """
        request, start = request_record(body), time.monotonic()
        try:
            with self._client.stream("POST", CHAT, json=body) as response:
                headers = _since(start)
                if response.status_code != 200:
                    text = response.read().decode(errors="replace")[:KEPT_CHARACTERS]
                    return Exchange(request, response.status_code, headers, _since(start), body=text)
                lines = [(_since(start), line) for line in _lines(response.iter_bytes()) if line]
        except httpx2.HTTPError as error:
            raise ServerError(self._lost(error)) from None
        return Exchange(request, 200, headers, _since(start), lines)

    def get(self, path: str) -> str:
        """Text at a path. Raises ServerError for anything but status 200, Refusal where the request is at fault."""
        return self._whole("GET", path).text

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """JSON answer to a JSON request that is no chat. Raises as :meth:`get` does."""
        return self._whole("POST", path, body).json()

    def _whole(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        try:
            response = self._client.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise ServerError(self._lost(error)) from None
        if response.status_code != 200:
            kind = Refusal if 400 <= response.status_code < 500 and response.status_code not in PASSING else ServerError
            raise kind(f"{self.base_url}{path} answered {response.status_code}: {response.text[:200]}")
        return response

    def _lost(self, error: Exception) -> str:
        hint = "; --timeout gives it longer" if isinstance(error, httpx2.TimeoutException) else ""
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{self.base_url} cannot be asked ({reason}{hint})"


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines that end in LF or CRLF.

    Other ends of a line (U+0085, U+2028, U+2029, ...) are text: they may stand as they are within a JSON string.
    """
    left = b""
    for chunk in chunks:
        *whole, left = (left + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
    yield left.decode(errors="replace")


def _since(start: float) -> float:
    return round(time.monotonic() - start, 6)
