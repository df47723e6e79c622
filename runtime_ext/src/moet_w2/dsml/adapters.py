"""Our stream behind vLLM's reasoning and tool parser interfaces.

vLLM runs the two one after the other: the reasoning parser until thinking ends, the tool parser on what follows. The
token-level questions (where does thinking end in these ids) stay with vLLM's own parser; everything about text is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.parser.deepseek_v4 import DeepSeekV4Parser
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter, ParserEngineToolAdapter
from vllm.parser.engine.parser_engine_config import ParserState
from vllm.renderers.chat_utils import get_tool_call_id_type, make_tool_call_id
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from .answer import CallDelta, Output, Policy, Until
from .markup import THINK_CLOSE, THINK_OPEN, special_tokens, vocabulary
from .messages import build
from .schema import Tools
from .stream import Stream

_NO_TOOLS = Tools({})
# What is known while only text is at hand: every named invoke may be a call.
_TEXT_ONLY = Policy(_NO_TOOLS, enabled=True, known=False)


def policy(request: Any, tools: Sequence[Any] | None = None, *, think: bool = True) -> Policy:
    """What a request allows: its own tools, or those the parser was made with."""
    declared = Tools.of(getattr(request, "tools", None) or tools)
    choice = getattr(request, "tool_choice", None)
    forced = choice not in (None, "auto", "none")
    return Policy(declared, enabled=bool(declared) and choice != "none", think=think, forced=forced)


class MoetDeepSeekV4ReasoningParser(ParserEngineReasoningAdapter):
    """Splits thinking from the rest, which it passes on untouched."""

    _parser_engine_cls = DeepSeekV4Parser

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(tokenizer, *args, **kwargs)
        self._words = vocabulary(special_tokens(tokenizer))
        self._thinking = self._parser_engine.parser_engine_config.initial_state is ParserState.REASONING
        self._stream: Stream | None = None
        self._handed_over = False
        self._streamed_tokens = 0

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Whole answer: (reasoning, everything from where the answer begins)."""
        stream = Stream(self._words, policy(request), thinking=self._thinking, until=Until.ANSWER)
        parts = [*stream.feed(model_output).reasoning, *stream.finish().reasoning]
        return "".join(parts) or None, stream.rest or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """A piece: its reasoning, and in the piece where thinking ends, the text for the tool parser as content."""
        if self._stream is None:
            self._stream = Stream(self._words, _TEXT_ONLY, thinking=self._thinking, until=Until.THOUGHT)
        stream = self._stream
        reasoning = "".join(stream.feed(delta_text).reasoning)
        if not stream.done:
            self._streamed_tokens += len(delta_token_ids)
            return build(DeltaMessage, reasoning=reasoning) if reasoning else None
        ids = self._parser_engine
        end = ids.find_reasoning_end(delta_token_ids)
        self._streamed_tokens += end.offset if end else 0
        self._handed_over = True
        rest, stream.rest = stream.rest, ""
        if reasoning and self._thinks_on(rest):
            # vLLM keeps only one parser's reasoning of a piece: the tool parser takes over all of this one.
            on = rest.removeprefix(THINK_OPEN)
            rest = THINK_OPEN + reasoning + (on if on != rest else THINK_CLOSE + rest)
            reasoning = ""
        return DeltaMessage(reasoning=reasoning or None, content=rest or None)

    def has_engine_confirmed_reasoning_end(self) -> bool:
        """Whether thinking has ended, as far as the text has arrived."""
        return self._handed_over

    def finish_streaming(self) -> DeltaMessage | None:
        """The end, or the hand-over (then nothing is left here)."""
        if self._stream is None or self._handed_over:
            return None
        reasoning = "".join(self._stream.finish().reasoning)
        return DeltaMessage(reasoning=reasoning) if reasoning else None

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens of thinking, its tags not counted."""
        if self._stream is not None:
            return self._streamed_tokens
        if not self._thinking:
            return 0
        end = self._parser_engine.find_reasoning_end(token_ids)
        return end.offset if end else len(token_ids)

    def _thinks_on(self, rest: str) -> bool:
        """Whether the tool parser will find more thinking in what this piece leaves to it."""
        probe = Stream(self._words, _TEXT_ONLY, until=Until.ANSWER)
        return bool(probe.feed(rest).reasoning) or rest.startswith(THINK_OPEN)


class MoetDeepSeekV4ToolParser(ParserEngineToolAdapter):
    """Tool calls, content, and thinking that goes on after its first end."""

    _parser_engine_cls = DeepSeekV4Parser
    structural_tag_model = "deepseek_v4"

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None, **kwargs: Any) -> None:
        ToolParser.__init__(self, tokenizer, tools)
        model_config = kwargs.get("model_config")
        self._id_type = get_tool_call_id_type(model_config) if model_config is not None else "random"
        self._request_tools = tools
        self._words = vocabulary(special_tokens(tokenizer))
        self._stream: Stream | None = None
        self._think_is_text = False

    @property
    def skip_reasoning_parsing(self) -> bool:
        """Set by vLLM when no reasoning parser is configured: think tags are content then."""
        return self._think_is_text

    @skip_reasoning_parsing.setter
    def skip_reasoning_parsing(self, value: bool) -> None:
        self._think_is_text = value

    def adjust_request(self, request: Any) -> Any:
        """Have the detokenizer keep the tags that tokenizers call special."""
        request = ToolParser.adjust_request(self, request)
        request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Whole content: one big piece."""
        stream = self._new_stream(request)
        content: list[str] = []
        calls: list[list[str]] = []
        for output in (stream.feed(model_output), stream.finish()):
            content += output.content
            for call in output.calls:
                if call.name is not None:
                    calls.append([call.name])
                calls[call.index].append(call.arguments)
        found = [
            ToolCall(id=self._new_id(name, index), function=FunctionCall(name=name, arguments="".join(parts)))
            for index, (name, *parts) in enumerate(calls)
        ]
        return ExtractedToolCallInformation(
            tools_called=bool(found), tool_calls=found, content="".join(content) or None
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """A piece of content."""
        if self._stream is None:
            self._stream = self._new_stream(request)
        return self._message(self._stream.feed(delta_text))

    def finish_streaming(self) -> DeltaMessage | None:
        """The end of the output."""
        return self._message(self._stream.finish()) if self._stream is not None else None

    def _new_stream(self, request: Any) -> Stream:
        return Stream(self._words, policy(request, self._request_tools, think=not self._think_is_text))

    def _new_id(self, name: str, index: int) -> str:
        return make_tool_call_id(id_type=self._id_type, func_name=name, idx=index)

    def _message(self, output: Output) -> DeltaMessage | None:
        # Only what came is set: the server sends the fields that were set.
        fields: dict[str, Any] = {}
        if output.calls:
            fields["tool_calls"] = [self._call(call) for call in output.calls]
        if output.content:
            fields["content"] = "".join(output.content)
        if output.reasoning:
            fields["reasoning"] = "".join(output.reasoning)
        return build(DeltaMessage, **fields) if fields else None

    def _call(self, call: CallDelta) -> DeltaToolCall:
        if call.name is None:
            function = build(DeltaFunctionCall, arguments=call.arguments)
            return build(DeltaToolCall, index=call.index, function=function)
        return DeltaToolCall(
            index=call.index,
            id=self._new_id(call.name, call.index),
            type="function",
            function=DeltaFunctionCall(name=call.name, arguments=call.arguments),
        )
