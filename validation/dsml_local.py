"""Runs outputs through a parser in this process, the way vLLM's server does: whole, by tokens, by characters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from validation.dsml_cases import TOKEN, Answer, Case

SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
VISIBLE = ["<think>", "</think>", "｜DSML｜"]
PARSERS = ("ours", "upstream")


class Tokenizer:
    """Enough of a tokenizer for vLLM's parsers: every piece that occurs gets an id; no model is needed."""

    def __init__(self) -> None:
        self._texts = SPECIAL + VISIBLE
        self._ids = {text: number for number, text in enumerate(self._texts)}
        self.all_special_tokens = list(SPECIAL)
        self.all_special_ids = [self._ids[text] for text in SPECIAL]

    def get_vocab(self) -> dict[str, int]:
        """Text to id, as known so far."""
        return self._ids

    def encode(self, text: str, **_: Any) -> list[int]:
        """Ids of the pieces of a text."""
        pieces = TOKEN.findall(text)
        for piece in pieces:
            if piece not in self._ids:
                self._ids[piece] = len(self._texts)
                self._texts.append(piece)
        return [self._ids[piece] for piece in pieces]

    def decode(self, ids: Sequence[int] | int, **_: Any) -> str:
        """The text of ids that were encoded before."""
        return "".join(self._texts[i] for i in ([ids] if isinstance(ids, int) else ids))


TOKENIZER = Tokenizer()


@cache
def parser_class(which: str) -> type:
    """The pair of parsers, composed as vLLM composes them: ``ours`` or ``upstream``."""
    from vllm.parser.abstract_parser import DelegatingParser

    if which == "ours":
        from moet_w2.dsml.adapters import MoetDeepSeekV4ReasoningParser as Reasoning
        from moet_w2.dsml.adapters import MoetDeepSeekV4ToolParser as Tools
    else:
        from vllm.parser.engine.registered_adapters import DeepSeekV4ParserReasoningAdapter as Reasoning
        from vllm.tool_parsers.deepseekv4_engine_tool_parser import DeepSeekV4EngineToolParser as Tools
    parts = {"reasoning_parser_cls": Reasoning, "tool_parser_cls": Tools}
    return type(f"{which.title()}Parser", (DelegatingParser,), parts)


def request(tools: list[dict[str, Any]] | None, tool_choice: Any = None, **options: Any) -> Any:
    """A chat request of the server's own class."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    if tool_choice is not None:
        options["tool_choice"] = tool_choice
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=tools or None, **options)


def parser(which: str, asked: Any, thinking: bool = True) -> Any:
    """A fresh parser for one answer."""
    return parser_class(which)(TOKENIZER, asked.tools, chat_template_kwargs={"thinking": thinking})


def whole(which: str, text: str, asked: Any, thinking: bool = True) -> Answer:
    """The answer without streaming."""
    reasoning, content, calls = parser(which, asked, thinking).parse(text, asked, enable_auto_tools=True)
    return Answer(reasoning, content, tuple((c.name, c.arguments) for c in calls or ()))


def streamed(which: str, pieces: list[str], asked: Any, thinking: bool = True, *, with_ids: bool = True) -> Answer:
    """What a client gathers from a stream in these pieces."""
    one = parser(which, asked, thinking)
    prompt = TOKENIZER.encode("<think>" if thinking else "</think>")
    reasoning, content, calls, deltas = "", "", [], 0
    for number, piece in enumerate(pieces):
        ids = TOKENIZER.encode(piece) if with_ids else []
        last = number == len(pieces) - 1
        delta = one.parse_delta(piece, ids, asked, prompt_token_ids=prompt, finished=last)
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls:
            while len(calls) <= call.index:
                calls.append(["", ""])
            if call.function and call.function.name:
                calls[call.index][0] += call.function.name
            if call.function and call.function.arguments:
                calls[call.index][1] += call.function.arguments
                deltas += 1
    return Answer(reasoning or None, content or None, tuple((n, a) for n, a in calls), deltas)


def run(which: str, case: Case) -> dict[str, list[str]]:
    """The faults of a case by mode; empty lists where it is right. An exception is a fault."""
    asked = request(case.tools, case.tool_choice)
    found: dict[str, list[str]] = {}
    for mode, pieces in (
        ("whole", None),
        ("tokens", TOKEN.findall(case.output)),
        ("characters", list(case.output)),
    ):
        try:
            if pieces is None:
                answer = whole(which, case.output, asked, case.thinking)
            else:
                # A character has no token id: parsers must do with the text then.
                answer = streamed(which, pieces or [""], asked, case.thinking, with_ids=mode == "tokens")
        except Exception as error:  # whatever a parser throws is what is measured
            found[mode] = [f"{type(error).__name__}: {error}"]
        else:
            found[mode] = case.faults(answer, streamed=pieces is not None)
    return found
