"""The output of one request, in pieces of any size, parted into reasoning, content and tool calls.

What comes out depends on the text alone, never on how it was cut; a whole answer is just one big piece.

    REASONING --</think>--> CONTENT <--> BLOCK <--> CALL      the usual way
        |                      |  |
        +-- DOUBT              |  +-- BARE       an invoke without a block, until it is complete
     a block opener inside     +-- VERBATIM      an invoke that is no call, until its closer
     thinking, until the next tag
"""

from __future__ import annotations

from enum import Enum, auto

from .answer import CallDelta, Output, Policy, Until
from .arguments import Arguments
from .markup import SIGIL, THINK_OPEN, Kind, Lexer, Token, Vocabulary, classify


class State(Enum):
    REASONING = auto()
    DOUBT = auto()
    CONTENT = auto()
    BLOCK = auto()
    CALL = auto()
    BARE = auto()
    VERBATIM = auto()


_STRAY = {Kind.BLOCK_CLOSE, Kind.INVOKE_CLOSE, Kind.PARAM_OPEN, Kind.PARAM_CLOSE, Kind.BROKEN}
_THINK = {Kind.THINK_OPEN, Kind.THINK_CLOSE}


class Stream:
    """One request's parser. ``rest`` is the text handed over once ``done`` (see :class:`Until`)."""

    def __init__(self, words: Vocabulary, policy: Policy, *, thinking: bool = False, until: Until = Until.END) -> None:
        self.state = State.REASONING if thinking else State.CONTENT
        self.done = False
        self.rest = ""
        self._policy, self._until = policy, until
        self._lexer = Lexer(words)
        self._out = Output()
        self._gap: list[str] = []  # white space that shows only if text follows
        self._fresh = True  # nothing visible since the start or the last markup
        self._answered = False  # something visible, or a call, came
        self._held: list[Token] = []  # DOUBT and BARE: what is not decided yet
        self._call: Arguments | None = None
        self._calls = 0  # calls begun
        self._named = False
        if until is Until.THOUGHT and not thinking:
            self.done = True

    def feed(self, text: str) -> Output:
        """Parse a piece. After ``done``, text only gathers in ``rest``."""
        self._out = out = Output()
        if self.done:
            self.rest += text
            return out
        if not text:
            return out
        if self._lexer.passes(text):
            # Most pieces: no tag begins, ends or goes on in them.
            if self._call:
                self._call.text(text)
            else:
                self._token(Token(Kind.TEXT, text))
        else:
            for token in self._lexer.feed(text):
                self._token(token)
                if self.done:
                    self.rest += self._lexer.rest()
                    break
        if self._call:
            self._report()
        return out

    def finish(self) -> Output:
        """The output ended: settle everything that was held."""
        self._out = out = Output()
        if self.done:
            return out
        fragment = self._lexer.finish()
        if fragment:
            self._fragment(fragment.raw)
        if self.state is State.DOUBT:
            self._think_on()
        elif self.state is State.BARE:
            self._not_a_call()
        elif self.state is State.CALL and self._call:
            if self._call.abandon():
                self._report()
            self._call = None
        if self._until is Until.ANSWER:
            if not self.done:
                self.rest = "".join(self._gap)
        elif self.state in (State.CONTENT, State.VERBATIM) and not (
            self._fresh and (self._answered or self._policy.forced)
        ):
            self._out.content += self._gap
        self._gap.clear()
        return out

    # -- dispatch --------------------------------------------------------------------------------------------------

    def _token(self, token: Token) -> None:
        if token.kind is Kind.SPECIAL:
            return
        if self.state is State.CALL:
            self._in_call(token)
        elif self.state is State.CONTENT:
            self._in_content(token)
        elif self.state is State.REASONING:
            self._in_reasoning(token)
        elif self.state is State.BLOCK:
            self._in_block(token)
        elif self.state is State.BARE:
            self._in_bare(token)
        elif self.state is State.VERBATIM:
            self._in_verbatim(token)
        else:
            self._in_doubt(token)

    def _in_reasoning(self, token: Token) -> None:
        kind = token.kind
        if kind is Kind.THINK_CLOSE:
            self.state, self._fresh = State.CONTENT, True
            self.done = self._until is Until.THOUGHT
        elif kind is Kind.BLOCK_OPEN and self._policy.enabled:
            self.state, self._held = State.DOUBT, [token]
        elif kind is not Kind.THINK_OPEN:
            self._out.reasoning.append(token.raw)

    def _in_doubt(self, token: Token) -> None:
        """Inside thinking, a block opener counts only if an invoke of a declared tool follows it at once."""
        if token.kind is Kind.TEXT and token.raw.isspace():
            self._held.append(token)
        elif token.kind is Kind.INVOKE_OPEN and self._callable(token):
            text = "".join(t.raw for t in self._held) + token.raw
            if self._until is Until.THOUGHT:
                # Only the second stream knows the request; to it, this is still thinking.
                self._hand_over(THINK_OPEN + text)
            elif self._until is Until.ANSWER:
                self._hand_over(text)
            else:
                self._begin(token)
            self._held = []
        else:
            self._think_on()
            self._in_reasoning(token)

    def _callable(self, token: Token) -> bool:
        return not self._policy.known or self._policy.tools.declares(token.name or "")

    def _think_on(self) -> None:
        self._out.reasoning += [t.raw for t in self._held]
        self.state, self._held = State.REASONING, []

    def _in_content(self, token: Token) -> None:
        kind = token.kind
        if kind is Kind.TEXT or (kind in _THINK and not self._policy.think):
            self._text(token.raw)
        elif kind is Kind.THINK_OPEN:
            if not self._answered:
                self.state = State.REASONING
                self._gap.clear()
        elif kind is Kind.THINK_CLOSE:
            pass
        elif not self._policy.enabled or self._until is Until.ANSWER:
            self._text(token.raw)
        elif kind is Kind.BLOCK_OPEN:
            self._markup()
            self.state = State.BLOCK
        elif kind is Kind.INVOKE_OPEN and self._policy.tools.declares(token.name or ""):
            self.state, self._held = State.BARE, [token]
        elif kind in (Kind.INVOKE_OPEN, Kind.BROKEN_INVOKE):
            self._text(token.raw)
            self.state = State.VERBATIM
        elif kind in _STRAY:
            self._answered = True
        else:
            self._text(token.raw)

    def _in_block(self, token: Token) -> None:
        kind = token.kind
        if kind is Kind.INVOKE_OPEN:
            self._begin(token)
        elif kind is Kind.BLOCK_CLOSE:
            self.state = State.CONTENT
        elif kind is Kind.TEXT and token.raw.isspace():
            self._gap.append(token.raw)
        elif kind in (Kind.TEXT, Kind.UNKNOWN):
            # Prose in a block: the block was narrated. What follows is judged as in content.
            self.state = State.CONTENT
            self._text(token.raw)

    def _in_call(self, token: Token) -> None:
        kind = token.kind
        if kind in (Kind.INVOKE_CLOSE, Kind.BLOCK_CLOSE, Kind.INVOKE_OPEN, Kind.BLOCK_OPEN):
            self._end()
            self.state = State.CONTENT if kind is Kind.BLOCK_CLOSE else State.BLOCK
            if kind is Kind.INVOKE_OPEN:
                self._begin(token)
        elif self._call:
            self._call.token(token)

    def _in_bare(self, token: Token) -> None:
        kind = token.kind
        if kind is Kind.INVOKE_CLOSE:
            opener, *inside = self._held
            self._held = []
            self._begin(opener)
            for held in inside:
                self._in_call(held)
            self._end()
            self.state = State.CONTENT
        elif kind in (Kind.BLOCK_OPEN, Kind.BLOCK_CLOSE, Kind.INVOKE_OPEN):
            self._not_a_call()
            self._in_content(token)
        else:
            self._held.append(token)

    def _not_a_call(self) -> None:
        """An invoke that never closed is text, unchanged."""
        text = "".join(t.raw for t in self._held)
        self.state, self._held = State.CONTENT, []
        self._text(text)

    def _in_verbatim(self, token: Token) -> None:
        if token.kind in (Kind.BLOCK_OPEN, Kind.INVOKE_OPEN):
            self.state = State.CONTENT
            self._in_content(token)
            return
        self._text(token.raw)
        if token.kind is Kind.INVOKE_CLOSE:
            self.state = State.CONTENT

    # -- content ---------------------------------------------------------------------------------------------------

    def _text(self, text: str) -> None:
        """Visible text. White space next to markup waits: it shows only if text follows it."""
        if self._until is Until.ANSWER:
            if text.isspace() and not self._answered:
                self._gap.append(text)
            else:
                self._hand_over(text)
            return
        if not self._policy.enabled:
            if self._answered or not text.isspace():
                self._answered = True
                self._out.content += [*self._gap, text]
                self._gap.clear()
            else:
                self._gap.append(text)
            return
        if self._fresh and text.isspace():
            self._gap.append(text)
            return
        self._fresh, self._answered = False, True
        if self._gap:
            text = "".join(self._gap) + text
            self._gap.clear()
        held = 2 if text.endswith("\n\n") else 1 if text.endswith("\n") else 0
        if held:
            self._gap.append(text[-held:])
            text = text[:-held]
        if text:
            self._out.content.append(text)

    def _markup(self) -> None:
        """A block or a call: the white space around it was its own."""
        self._gap.clear()
        self._fresh = self._answered = True

    def _hand_over(self, text: str) -> None:
        self.rest = "".join(self._gap) + text
        self._gap.clear()
        self.done = True

    def _fragment(self, raw: str) -> None:
        """A tag that the end of the output cut off. Text that only looked like one is shown."""
        if self._until is Until.ANSWER and self.state is State.CONTENT:
            self._text(raw)
            return
        if SIGIL in raw and (ran_into := raw[len(classify(raw).raw) :]):
            self._token(classify(raw))
            self._token(Token(Kind.TEXT, ran_into))
            return
        markup = SIGIL in raw and (self.state is State.BLOCK or classify(raw).kind is not Kind.BROKEN_INVOKE)
        if self.state is State.REASONING or self.state is State.DOUBT:
            self._think_on()
            self._out.reasoning.append(raw)
        elif self.state is State.CALL:
            if self._call and raw == "<":
                self._call.text(raw)
        elif self.state is State.BARE:
            self._held.append(Token(Kind.TEXT, raw))
        elif self.state is State.VERBATIM or not self._policy.enabled or not markup:
            self._text(raw)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _begin(self, token: Token) -> None:
        self._markup()
        self._call = Arguments(token.name or "", self._policy.tools)
        self._named = False
        self.state = State.CALL

    def _end(self) -> None:
        if self._call:
            self._call.close()
            self._report()
            self._call = None
        self._markup()

    def _report(self) -> None:
        """Hand on what the open call wrote. Its name goes first, with the first of its arguments."""
        if self._call is None or not (text := self._call.take()):
            return
        if not self._named:
            self._named = True
            self._calls += 1
            self._out.calls.append(CallDelta(self._calls - 1, self._call.name, text))
        elif self._out.calls and self._out.calls[-1].index == self._calls - 1:
            self._out.calls[-1].arguments += text
        else:
            self._out.calls.append(CallDelta(self._calls - 1, None, text))
