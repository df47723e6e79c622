"""Writes one JSON object piece by piece: what has been given out is always a prefix of the final text."""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def dumps(value: Any) -> str:
    """JSON that can be sent as UTF-8: readable, except where only an escape can say it."""
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if _SURROGATE.search(text) else text


def _quote(text: str) -> str:
    quoted = encode_basestring(text)
    return json.dumps(text) if _SURROGATE.search(quoted) else quoted


class JsonWriter:
    """A stack of open containers. ``out`` gathers the pieces; the caller takes and empties it."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self._empty: list[bool] = []
        self._closers: list[str] = []

    @property
    def depth(self) -> int:
        """How many containers are open."""
        return len(self._closers)

    def open(self, opener: str) -> None:
        """Open ``{`` or ``[``."""
        self.out.append(opener)
        self._empty.append(True)
        self._closers.append("}" if opener == "{" else "]")

    def member(self, key: str | None) -> None:
        """Announce a member of an object (``key``) or an item of an array (None)."""
        separator = "" if self._empty[-1] else ", "
        self._empty[-1] = False
        self.out.append(separator if key is None else f"{separator}{_quote(key)}: ")

    def value(self, value: Any) -> None:
        """A whole value."""
        self.out.append(dumps(value))

    def begin_string(self) -> None:
        self.out.append('"')

    def string_piece(self, text: str) -> None:
        """Part of a string; characters are escaped one by one, so cuts do not matter."""
        self.out.append(_quote(text)[1:-1])

    def end_string(self) -> None:
        self.out.append('"')

    def close(self) -> None:
        """Close the innermost container."""
        self._empty.pop()
        self.out.append(self._closers.pop())
