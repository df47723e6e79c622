"""What a client has in hand after a chat stream, from the lines that were kept of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .plan import Fault

MARKUP = ("｜DSML｜", "<think>", "</think>", "<｜", "｜>")
"""Text of the model's own markup that must never reach a client."""
SHOWN = 100


@dataclass
class Call:
    """A tool call: ``arguments`` is the JSON text as it came."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass
class Answer:
    """An answer.

    Attributes:
        reasoning, reasoning_content: the two fields in which servers send thinking, kept apart.
        content: the answer's text.
        calls: tool calls, by index.
        finish_reason: stop, tool_calls, length, ... or None.
        usage: the last usage that was sent, or None.
        token_ids: ids of the answer's tokens, where the request asked for them.
        ended: whether the stream came to its [DONE].
        error: an error that the stream carried, or None.
        events: (seconds since the request was sent, what came first then), in order.
    """

    reasoning: str = ""
    reasoning_content: str = ""
    content: str = ""
    calls: list[Call] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    token_ids: list[int] = field(default_factory=list)
    ended: bool = False
    error: str | None = None
    events: list[tuple[float, str]] = field(default_factory=list)

    @property
    def thought(self) -> str:
        """The thinking, whichever field it came in."""
        return self.reasoning or self.reasoning_content

    def message(self) -> dict[str, Any]:
        """The assistant's turn for a history. Thinking goes along where there are calls, as the template wants it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.calls:
            message["reasoning"] = self.thought
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message

    def gist(self) -> dict[str, Any]:
        """What does not depend on the clock or on ids that a server makes up."""
        return {
            "reasoning": self.reasoning,
            "reasoning_content": self.reasoning_content,
            "content": self.content,
            "calls": [[call.name, call.arguments] for call in self.calls],
            "finish_reason": self.finish_reason,
            "tokens": [(self.usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens")],
            "token_ids": self.token_ids,
            "error": self.error,
        }

    def at(self, name: str) -> float | None:
        """Seconds from sending to an event, or None where it never came."""
        return next((seconds for seconds, event in self.events if event == name), None)


def assemble(lines: Sequence[tuple[float, str]]) -> Answer:
    """Put a stream together.

    Args:
        lines: (seconds since sending, line) of a server-sent event stream, without empty lines.
    """
    answer, seen = Answer(), set[str]()

    def mark(seconds: float, name: str) -> None:
        if name not in seen:
            seen.add(name)
            answer.events.append((seconds, name))

    for seconds, line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            answer.ended = True
            mark(seconds, "done")
            continue
        try:
            chunk = json.loads(data)
        except ValueError:
            answer.error = f"a line of the stream is no JSON: {shorten(data)}"
            continue
        if not isinstance(chunk, dict) or "error" in chunk:
            answer.error = f"the stream says {shorten(data)}"
            continue
        if chunk.get("usage"):
            answer.usage = chunk["usage"]
            mark(seconds, "usage")
        for choice in chunk.get("choices", ()):
            for name in _take(answer, choice):
                mark(seconds, name)
    return answer


def _take(answer: Answer, choice: dict[str, Any]) -> list[str]:
    """Add one choice of one chunk; what came with it."""
    delta, came = choice.get("delta") or {}, []
    for name in ("reasoning", "reasoning_content", "content"):
        if delta.get(name):
            setattr(answer, name, getattr(answer, name) + delta[name])
            came.append(f"first {name}")
    for part in delta.get("tool_calls") or ():
        while len(answer.calls) <= part["index"]:
            answer.calls.append(Call())
        call, function = answer.calls[part["index"]], part.get("function") or {}
        call.id = part.get("id") or call.id
        call.name += function.get("name") or ""
        call.arguments += function.get("arguments") or ""
        came.append("first call")
    answer.token_ids.extend(choice.get("token_ids") or ())
    if choice.get("finish_reason"):
        answer.finish_reason = choice["finish_reason"]
        came.append("finish")
    return came


def faults(answer: Answer, status: int, body: str | None, finish: tuple[str, ...] = ("stop",)) -> list[Fault]:
    """The shared gates, for one exchange.

    Args:
        status, body: HTTP status, and the body where it is no stream.
        finish: finish reasons that are right here.
    """
    if status != 200:
        return [Fault("answered", f"status {status}: {shorten(body or '')}")]
    found = []
    if answer.error:
        found.append(Fault("answered", answer.error))
    if not answer.ended:
        found.append(Fault("answered", "the stream broke off before [DONE]"))
    elif answer.finish_reason not in finish:
        wanted = " or ".join(finish)
        found.append(Fault("finished", f"finish_reason is {answer.finish_reason!r}, not {wanted}"))
    if not answer.usage or not answer.usage.get("completion_tokens"):
        found.append(Fault("counted", f"usage is {answer.usage}"))
    for text in (answer.content, answer.thought, *(call.arguments for call in answer.calls)):
        found += [Fault("clean", f"{mark!r} stands in {shorten(text)}") for mark in MARKUP if mark in text][:1]
    return found


def shorten(text: str, limit: int = SHOWN) -> str:
    """A text quoted on one line, cut in the middle of nothing."""
    return repr(text if len(text) <= limit else f"{text[: limit - 3]}...")
