"""The inside of one invoke: parameters, nested to any depth, become one JSON object, written as they arrive."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ..errors import MoetError
from .markup import Kind, Token
from .schema import Declared, Tools, decode, parse_json
from .writer import JsonWriter, dumps

MAX_DEPTH = 64
# Names that the model invents around its arguments.
WRAPPERS = ("arguments", "input")


class DsmlDepthError(MoetError, ValueError):
    """Parameters nest deeper than ``MAX_DEPTH``."""


@dataclass
class _Frame:
    """An open object or array. A muted one is parsed and not written: its key was there already."""

    schema: Declared
    array: bool = False
    muted: bool = False
    keys: set[str] = field(default_factory=set)


@dataclass
class _Leaf:
    """A parameter whose value is arriving. ``announced``: its key is written and its string is open."""

    key: str | None
    string: str | None
    schema: Declared
    types: frozenset[str] | None
    muted: bool
    parts: list[str] = field(default_factory=list)
    blank: bool = True  # only white space so far
    announced: bool = False
    newline: str = ""  # one held newline: it belongs to the markup if the closer is missing


class Arguments:
    """Feed it the tokens between an invoke's tags; take JSON text from :meth:`take`. Linear in the text."""

    def __init__(self, name: str, tools: Tools) -> None:
        self.name = name
        self._writer = JsonWriter()
        self._schema = tools.parameters(name)
        self._frames = [_Frame(self._schema)]
        self._leaf: _Leaf | None = None
        self._body: list[str] = []  # text before any parameter: some outputs are a bare JSON object
        self._wrapped: str | None = None  # the sole member's name while it may still be a wrapper

    def take(self) -> str:
        """The JSON text since the last call. Nothing while a sole wrapper is undecided."""
        if self._wrapped is not None or not self._writer.out:
            return ""
        text = "".join(self._writer.out)
        self._writer.out.clear()
        return text

    def token(self, token: Token) -> None:
        """A text run, a parameter tag, or anything else that an invoke does not end at."""
        kind = token.kind
        if kind is Kind.PARAM_OPEN:
            self._open(token)
        elif kind is Kind.PARAM_CLOSE:
            self._close_innermost()
        elif kind in (Kind.TEXT, Kind.THINK_OPEN, Kind.THINK_CLOSE, Kind.UNKNOWN):
            self.text(token.raw)

    def text(self, text: str) -> None:
        """Literal text: part of the open value, or of nothing."""
        leaf = self._leaf
        if leaf is None:
            if not self._writer.depth:
                self._body.append(text)
        elif leaf.announced:
            self._stream(leaf, text)
        else:
            self._undecided(leaf, text)

    def close(self) -> None:
        """The invoke ended: every open thing ends with it."""
        if self._leaf:
            self._end_leaf(explicit=False)
        if not self._writer.depth and (value := self._json_body()) is not None:
            self._writer.value(value)
        else:
            self._finish_containers()
        self._unwrap()

    def abandon(self) -> bool:
        """The output ended inside the invoke. Keeps what is certain and closes it; False if that is nothing.

        An unfinished string keeps its text so far; an unfinished value of another type is left out: half a number
        is another number.
        """
        leaf, self._leaf = self._leaf, None
        if leaf and leaf.announced:
            self._writer.end_string()
        self._wrapped = None
        if not self._writer.depth:
            return False
        self._finish_containers()
        return True

    # -- parameters ------------------------------------------------------------------------------------------------

    def _open(self, token: Token) -> None:
        if self._leaf:
            if self._nests(self._leaf):
                self._descend(self._leaf, token)
            else:
                self._end_leaf(explicit=False)
        self._body.clear()
        frame = self._frames[-1]
        key = token.name
        if frame.array:
            muted, schema = frame.muted, frame.schema.item()
        else:
            muted, schema = frame.muted or key is None or key in frame.keys, frame.schema.member(key or "")
            if len(self._frames) == 1 and not muted and not frame.keys:
                schema = self._maybe_wrapper(key, schema)
            elif self._wrapped is not None and len(self._frames) == 1 and not muted:
                self._wrapped = None
            if not muted and key is not None:
                frame.keys.add(key)
        self._leaf = _Leaf(None if frame.array else key, token.string, schema, schema.types(), muted)

    def _maybe_wrapper(self, key: str | None, schema: Declared) -> Declared:
        """A first parameter that the schema does not know may wrap all of the arguments: then it is transparent."""
        declared = self._schema.keys()
        if key in WRAPPERS and declared and key not in declared:
            self._wrapped = key
            return self._schema
        return schema

    @staticmethod
    def _nests(leaf: _Leaf) -> bool:
        """Whether an opener now starts a member of this value, rather than showing that its closer is missing."""
        if not leaf.blank:
            return False
        if leaf.string == "true":
            return leaf.types is not None and bool(leaf.types & {"object", "array"}) and "string" not in leaf.types
        return leaf.types is None or bool(leaf.types & {"object", "array"})

    def _descend(self, leaf: _Leaf, child: Token) -> None:
        if len(self._frames) >= MAX_DEPTH:
            raise DsmlDepthError(
                f"tool call {self.name}: the model nested parameters deeper than {MAX_DEPTH} levels; "
                f"ask again, or declare the tool's arguments flatter"
            )
        types = leaf.types or frozenset(("object", "array"))
        array = "array" in types and ("object" not in types or child.name is None)
        self._leaf = None
        if not leaf.muted:
            self._announce(leaf)
            self._writer.open("[" if array else "{")
        self._frames.append(_Frame(leaf.schema, array, leaf.muted))

    def _close_innermost(self) -> None:
        if self._leaf:
            self._end_leaf(explicit=True)
        elif len(self._frames) > 1:
            if not self._frames.pop().muted:
                self._writer.close()

    # -- values ----------------------------------------------------------------------------------------------------

    def _undecided(self, leaf: _Leaf, text: str) -> None:
        """Gather until the value's first visible character tells how it will be written."""
        leaf.parts.append(text)
        if leaf.blank:
            visible = text.lstrip()
            if not visible and (leaf.string != "true" or self._nests(leaf)):
                return
            leaf.blank = not visible
            if leaf.muted:
                leaf.parts.clear()
            elif leaf.string == "true" or (leaf.types == {"string"} and visible[0] != '"'):
                gathered, leaf.parts = "".join(leaf.parts), []
                self._announce(leaf)
                self._writer.begin_string()
                leaf.announced = True
                self._stream(leaf, gathered)
        elif leaf.muted:
            leaf.parts.clear()

    def _stream(self, leaf: _Leaf, text: str) -> None:
        if leaf.newline:
            text = leaf.newline + text
        leaf.newline = "\n" if text.endswith("\n") else ""
        if leaf.newline:
            text = text[:-1]
        if text:
            self._writer.string_piece(text)

    def _end_leaf(self, *, explicit: bool) -> None:
        leaf, self._leaf = self._leaf, None
        if leaf is None or leaf.muted:
            return
        if leaf.announced:
            if explicit and leaf.newline:
                self._writer.string_piece(leaf.newline)
            self._writer.end_string()
            return
        text = "".join(leaf.parts)
        if not explicit and text.endswith("\n"):
            text = text[:-1]
        self._announce(leaf)
        value = text if leaf.string == "true" else decode(text, leaf.types, leaf.string is not None)
        try:
            self._writer.value(value)
        except RecursionError:
            self._writer.value(text)

    def _announce(self, leaf: _Leaf) -> None:
        if not self._writer.depth:
            self._writer.open("{")
        self._writer.member(leaf.key)

    # -- the end ---------------------------------------------------------------------------------------------------

    def _finish_containers(self) -> None:
        if not self._writer.depth:
            self._writer.open("{")
        while self._writer.depth:
            self._writer.close()

    def _json_body(self) -> object | None:
        """A call without parameters whose body is a JSON object: its arguments."""
        text = "".join(self._body).strip()
        if not text.startswith("{"):
            return None
        try:
            value = parse_json(text)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def _unwrap(self) -> None:
        """Take a sole wrapper off if what it holds is arguments of this tool; otherwise leave it."""
        name, self._wrapped = self._wrapped, None
        if name is None:
            return
        inner = json.loads("".join(self._writer.out))[name]
        if isinstance(inner, str):
            try:
                inner = parse_json(inner)
            except ValueError:
                return
        if isinstance(inner, dict) and inner.keys() <= self._schema.keys():
            self._writer.out[:] = [dumps(inner)]
