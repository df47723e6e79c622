"""How a suite asks. Three kinds of answerer with one face, so that one code judges live runs and recordings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import digest
from .errors import ReplayError
from .wire import Exchange, Server, request_record


@dataclass
class Record:
    """What is kept of one invocation: its exchanges, its facts, and what happened in its loop."""

    exchanges: list[Exchange] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    loop: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"exchanges": [e.record() for e in self.exchanges], "facts": self.facts, "loop": self.loop}

    @classmethod
    def of(cls, document: dict[str, Any]) -> Record:
        """The inverse of :meth:`document`."""
        exchanges = [Exchange.of(record) for record in document["exchanges"]]
        return cls(exchanges, document["facts"], document["loop"])

    def gist(self) -> str:
        """Digest of what does not depend on the clock."""
        return digest.of_json([[e.answer.gist() for e in self.exchanges], self.facts, self.loop])


class Talk:
    """One invocation's way to ask.

    Args:
        model: served name, which every request carries.
        salt: the invocation's cache salt, unique to the run: nothing that another run left in the prefix cache helps.
    """

    def __init__(self, model: str, salt: str) -> None:
        self.model, self.salt = model, salt
        self.record = Record()

    def chat(self, messages: list[dict[str, Any]], salt: str = "", **options: Any) -> Exchange:
        """One streamed chat request. ``salt`` is added to the invocation's, where requests must not share a cache."""
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": self.salt + salt,
            **options,
        }
        exchange = self._exchange(body)
        self.record.exchanges.append(exchange)
        return exchange

    def fact(self, name: str, find: Callable[[Server], Any]) -> Any:
        """Something to find out from the server first; recorded, and taken from the recording in a replay."""
        value = self._fact(name, find)
        self.record.facts[name] = value
        return value

    def happened(self, event: str, **more: Any) -> None:
        """Note an event of the suite's own loop."""
        self.record.loop.append({"event": event, **more})

    def _exchange(self, body: dict[str, Any]) -> Exchange:
        raise NotImplementedError

    def _fact(self, name: str, find: Callable[[Server], Any]) -> Any:
        raise NotImplementedError


class Live(Talk):
    """Asks a server."""

    def __init__(self, model: str, salt: str, server: Server) -> None:
        super().__init__(model, salt)
        self.server = server

    def _exchange(self, body: dict[str, Any]) -> Exchange:
        return self.server.chat(body)

    def _fact(self, name: str, find: Callable[[Server], Any]) -> Any:
        return find(self.server)


class Replay(Talk):
    """Answers from a recording, and holds each request to the one that was recorded.

    Args:
        recorded: what was kept.
        strict: False where the recording was edited on purpose, so that later requests differ.
    """

    def __init__(self, model: str, salt: str, recorded: Record, strict: bool = True) -> None:
        super().__init__(model, salt)
        self.recorded, self.strict = recorded, strict

    def _exchange(self, body: dict[str, Any]) -> Exchange:
        number = len(self.record.exchanges)
        if number >= len(self.recorded.exchanges):
            if not self.strict:
                raise EndOfRecording
            raise ReplayError(f"the recording ends after {number} requests; it was made by other code or cases")
        exchange = self.recorded.exchanges[number]
        if self.strict and exchange.request["sha256"] != request_record(body)["sha256"]:
            raise ReplayError(f"request {number + 1} is not the one that was recorded; record it again")
        return exchange

    def _fact(self, name: str, find: Callable[[Server], Any]) -> Any:
        if name not in self.recorded.facts:
            raise ReplayError(f"the recording has no {name}; record it again")
        return self.recorded.facts[name]

    def close(self) -> None:
        """After the suite: nothing recorded may be left over, and its loop went as recorded.

        Raises:
            ReplayError: it did not.
        """
        if not self.strict:
            return
        if len(self.record.exchanges) != len(self.recorded.exchanges):
            raise ReplayError("the recording holds requests that the suite does not make; record it again")
        if self.record.loop != self.recorded.loop:
            raise ReplayError("the recorded loop events are not those of the recorded answers; record it again")


class EndOfRecording(Exception):
    """An edited recording has nothing more to say."""


class NotAsked(Exception):
    """A dry run stops where an answer would be needed."""


class Dry(Talk):
    """Asks nobody; keeps the first request, or the name of the fact that comes before it."""

    first: dict[str, Any] | None = None

    def chat(self, messages: list[dict[str, Any]], salt: str = "", **options: Any) -> Exchange:
        try:
            return super().chat(messages, salt, **options)
        except _Body as body:
            self.first = body.args[0]
        raise NotAsked

    def _exchange(self, body: dict[str, Any]) -> Exchange:
        raise _Body(body)

    def _fact(self, name: str, find: Callable[[Server], Any]) -> Any:
        self.first = {"needs from the server": name}
        raise NotAsked


class _Body(Exception):
    """Carries a request out of a dry run."""
