"""The DSML vocabulary and a lexer over it: text in pieces becomes text runs and tags, whatever the cuts.

Every DSML tag ends at its first ``>`` and holds no ``<`` and no newline, so a tag is decided by the characters up to
that point alone. That is what makes the lexer independent of how the text arrives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from functools import lru_cache
from os.path import commonprefix
from typing import NamedTuple

SIGIL = "｜DSML｜"
OPEN, CLOSE = f"<{SIGIL}", f"</{SIGIL}"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
# The one spelling that the model was trained on, and the others it is known to slip into. Never produced here.
BLOCK_SPELLINGS = (
    "tool_calls",
    "toolcalls",
    "tool_call",
    "toolcall",
    "tool",
    "function_calls",
    "functioncalls",
    "calls",
)
# A tag longer than this is no tag. Bounds what is held back, in characters after the sigil.
MAX_TAG = 512
# Turn markers of the model family; the tokenizer's own special tokens are added to these.
TURN_MARKERS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜System｜>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
)


class Kind(Enum):
    """What a piece of the output is."""

    TEXT = auto()
    SPECIAL = auto()  # a special token's text: never shown
    THINK_OPEN = auto()
    THINK_CLOSE = auto()
    BLOCK_OPEN = auto()
    BLOCK_CLOSE = auto()
    INVOKE_OPEN = auto()  # name: the function
    INVOKE_CLOSE = auto()
    PARAM_OPEN = auto()  # name: the key or None; string: the attribute or None
    PARAM_CLOSE = auto()
    BROKEN_INVOKE = auto()  # an invoke opener without a usable name
    BROKEN = auto()  # any other malformed or cut piece of known markup
    UNKNOWN = auto()  # the sigil with a word that this format does not have
    FRAGMENT = auto()  # only at the end of the output: the start of something that never came


class Token(NamedTuple):
    """A text run or a tag. ``raw`` is its exact text."""

    kind: Kind
    raw: str
    name: str | None = None
    string: str | None = None


_BLANK = r"[ \t]"
_BLOCK = re.compile(rf"</?{SIGIL} ?(?:{'|'.join(BLOCK_SPELLINGS)}){_BLANK}*>")
_INVOKE = re.compile(rf'<{SIGIL} ?invoke{_BLANK}+name{_BLANK}*={_BLANK}*"([^"]*[^"\s][^"]*)"{_BLANK}*>')
_PARAM = re.compile(rf'<{SIGIL} ?parameter((?:{_BLANK}+(?:name|string){_BLANK}*={_BLANK}*"[^"]*")*){_BLANK}*/?>')
_ATTRIBUTE = re.compile(rf'(name|string){_BLANK}*={_BLANK}*"([^"]*)"')
_WORD = re.compile(rf"</?{SIGIL} ?([A-Za-z_]*)")
_TAG_END = re.compile(r"[<>\n]")
_TELLING = 3  # so many letters of a known word show that it was meant
_WORDS = (*BLOCK_SPELLINGS, "invoke", "parameter")


@lru_cache(maxsize=4096)
def classify(raw: str) -> Token:
    """The token at the start of a piece that starts with the sigil: a whole tag, or what is left of one.

    Its ``raw`` is shorter than the piece where other text has run into a damaged tag.
    """
    closing = raw.startswith(CLOSE)
    if raw.endswith(">"):
        if _BLOCK.fullmatch(raw):
            return Token(Kind.BLOCK_CLOSE if closing else Kind.BLOCK_OPEN, raw)
        if match := _INVOKE.fullmatch(raw):
            return Token(Kind.INVOKE_OPEN, raw, match.group(1).strip())
        if match := _PARAM.fullmatch(raw):
            attributes = dict(_ATTRIBUTE.findall(match.group(1)))
            return Token(Kind.PARAM_OPEN, raw, attributes.get("name"), attributes.get("string"))
    match = _WORD.match(raw)
    start, word = match.start(1), match.group(1)  # type: ignore[union-attr]  # raw starts with the sigil
    if not any(known.startswith(word) for known in _WORDS):
        # Letters may have run into a word that was cut short: then only its part is markup.
        common = max(len(commonprefix((word, known))) for known in _WORDS)
        if common < _TELLING:
            return Token(Kind.UNKNOWN, raw)
        word = word[:common]
        raw = raw[: start + common]
    if closing:
        # A damaged closer still closes what its letters can mean; without letters, the innermost thing.
        if "parameter".startswith(word):
            return Token(Kind.PARAM_CLOSE, raw)
        return Token(Kind.INVOKE_CLOSE if "invoke".startswith(word) else Kind.BLOCK_CLOSE, raw)
    return Token(Kind.BROKEN_INVOKE if word == "invoke" else Kind.BROKEN, raw)


class Vocabulary:
    """The literals that start with a trigger character: special tokens, think tags and the two sigils."""

    def __init__(self, specials: frozenset[str]) -> None:
        literals = {text: Kind.SPECIAL for text in (*TURN_MARKERS, *specials) if text and SIGIL not in text}
        literals |= {THINK_OPEN: Kind.THINK_OPEN, THINK_CLOSE: Kind.THINK_CLOSE}
        literals |= {OPEN: Kind.BROKEN, CLOSE: Kind.BROKEN}
        # One literal that begins another would be decided by how the text is cut: the longer one gives way.
        self.literals = {
            text: kind for text, kind in literals.items() if not any(text != o and text.startswith(o) for o in literals)
        }
        self.prefixes = frozenset(text[:n] for text in self.literals for n in range(1, len(text)))
        self.longest = max(map(len, self.literals))
        self.trigger = re.compile("[" + "".join(re.escape(c) for c in sorted({t[0] for t in self.literals})) + "]")
        self.match = re.compile("|".join(re.escape(t) for t in sorted(self.literals, key=len, reverse=True))).match


@lru_cache(maxsize=16)
def vocabulary(specials: frozenset[str]) -> Vocabulary:
    """The vocabulary for a tokenizer's special tokens; built once for each set."""
    return Vocabulary(specials)


def special_tokens(tokenizer: object) -> frozenset[str]:
    """The texts a tokenizer calls special, less those that this format gives a meaning."""
    texts: Iterable[str] = getattr(tokenizer, "all_special_tokens", None) or ()
    return frozenset(texts) - {THINK_OPEN, THINK_CLOSE, SIGIL}


class Lexer:
    """Cuts a stream into tokens. Holds back at most one undecided tag (``MAX_TAG`` characters and its sigil)."""

    def __init__(self, words: Vocabulary) -> None:
        self._words = words
        self._search = words.trigger.search
        self._buffer = ""
        self._at = 0

    def passes(self, text: str) -> bool:
        """Whether ``text`` is plain and nothing is held before it: then it needs no lexing."""
        return not self._buffer and self._search(text) is None

    def feed(self, text: str) -> Iterator[Token]:
        """Tokens that ``text`` completes. The consumer may stop early and take :meth:`rest`."""
        self._buffer = self._buffer[self._at :] + text
        self._at = 0
        yield from self._scan()
        self._buffer = self._buffer[self._at :]
        self._at = 0

    def rest(self) -> str:
        """What was fed but not yet given out as a token. Empties the lexer."""
        rest, self._buffer, self._at = self._buffer[self._at :], "", 0
        return rest

    def finish(self) -> Token | None:
        """The undecided piece at the end of the output, if any."""
        rest = self.rest()
        return Token(Kind.FRAGMENT, rest) if rest else None

    def _scan(self) -> Iterator[Token]:
        buffer, words = self._buffer, self._words
        search = 0
        while True:
            found = words.trigger.search(buffer, search)
            start = found.start() if found else len(buffer)
            literal = words.match(buffer, start) if found else None
            if found and literal is None:
                tail = buffer[start : start + words.longest]
                if start + len(tail) < len(buffer) or tail not in words.prefixes:
                    search = start + 1
                    continue
            if start > self._at:
                text, self._at = buffer[self._at : start], start
                yield Token(Kind.TEXT, text)
            if literal is None:
                return
            kind = words.literals[literal.group()]
            end = literal.end()
            if kind is Kind.BROKEN:
                stop = _TAG_END.search(buffer, end, end + MAX_TAG)
                if stop is None and len(buffer) - end < MAX_TAG:
                    return
                if stop and stop.group() == ">":
                    end = stop.end()
                else:
                    end = _WORD.match(buffer, start, end + MAX_TAG).end()  # type: ignore[union-attr]
                token = classify(buffer[start:end])
                self._at = end = start + len(token.raw)
                yield token
            else:
                self._at = end
                yield Token(kind, literal.group())
            search = end
