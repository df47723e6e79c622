"""What a stream is asked for and what it gives: the request's policy, where to stop, and the news of a piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from .schema import Tools


class Until(Enum):
    """Where a stream hands the rest of the text over instead of parsing on."""

    END = auto()  # never: parse everything
    THOUGHT = auto()  # at the first end of thinking: the rest is for a second stream
    ANSWER = auto()  # where the answer begins: further thinking before it is still taken


@dataclass(slots=True)
class CallDelta:
    """News of one call: its name (once, first) and more of its arguments."""

    index: int
    name: str | None = None
    arguments: str = ""


@dataclass(slots=True)
class Output:
    """What a piece of text brought."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[CallDelta] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the request allows.

    tools: the declared functions; ``enabled`` False means that DSML is ordinary text.
    known: False where only the text is at hand, not the request (reasoning parser, streaming).
    think: whether think tags are markup (False: ordinary text).
    forced: a call is demanded (then vLLM's server drops an answer of white space alone; so does a stream).
    """

    tools: Tools
    enabled: bool
    known: bool = True
    think: bool = True
    forced: bool = False
