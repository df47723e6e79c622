"""One chat request, answered whole or as a stream, in one form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import openai

from .target import Target

MAX_TOKENS = 2048
"""Upper bound of an answer, reasoning included; half the server's limit where that is less."""


@dataclass(frozen=True)
class Answer:
    """What a client sees.

    Attributes:
        content: visible text, '' where there is none.
        calls: name and raw argument text of each tool call, in order.
        finish_reason: why generation ended, as the server says.
    """

    content: str
    calls: tuple[tuple[str, str], ...]
    finish_reason: str | None


def whole(client: openai.OpenAI, target: Target, question: str, tools: list[dict[str, Any]] | None = None) -> Answer:
    """Ask, and take the answer in one piece."""
    choice = client.chat.completions.create(**_request(target, question, tools)).choices[0]
    calls = tuple((call.function.name, call.function.arguments) for call in choice.message.tool_calls or ())
    return Answer(choice.message.content or "", calls, choice.finish_reason)


def streamed(client: openai.OpenAI, target: Target, question: str, tools: list[dict[str, Any]] | None = None) -> Answer:
    """Ask, and put the answer together from its stream."""
    content, finish_reason = "", None
    calls: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**_request(target, question, tools), stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            finish_reason = choice.finish_reason or finish_reason
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, ["", ""])
                call[0] += piece.function.name or ""
                call[1] += piece.function.arguments or ""
    return Answer(content, tuple((name, arguments) for name, arguments in calls.values()), finish_reason)


def _request(target: Target, question: str, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    request = {
        "model": target.model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": min(MAX_TOKENS, target.recipe.expect.max_model_len // 2),
    }
    return request | ({"tools": tools} if tools else {})
