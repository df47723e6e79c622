"""What each upstream repair that this work once had to carry does, as a check of behaviour.

Each check takes the classes to try, so that the tests can also hand it ones without the repair and see it
fail. They look at what the code does, not at how it is written: a refactoring upstream keeps them green.
"""

from __future__ import annotations

import ctypes
import json
from types import SimpleNamespace
from typing import Any

import torch
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

EOS = "<｜end▁of▁sentence｜>"
DSML = "｜DSML｜"
FULL_MASK = -1
GRAMMAR_MASK = 42


def require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def call_text(*parameters: tuple[str, str, str], name: str = "f") -> str:
    """One DSML tool call; a parameter is (name, string attribute, text)."""
    inner = "".join(
        f'<{DSML}parameter name="{key}" string="{string}">{text}</{DSML}parameter>\n'
        for key, string, text in parameters
    )
    return f'<{DSML}tool_calls>\n<{DSML}invoke name="{name}">\n{inner}</{DSML}invoke>\n</{DSML}tool_calls>'


def chat_request(**properties: str) -> ChatCompletionRequest:
    """A request with one tool `f` whose properties have these JSON types."""
    schema = {"type": "object", "properties": {key: {"type": value} for key, value in properties.items()}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=[tool])


def whole_arguments(parser_cls: type, tokenizer: Any, text: str, request: ChatCompletionRequest) -> Any:
    """Arguments of the only call in a complete answer."""
    found = parser_cls(tokenizer, request.tools).extract_tool_calls(text, request)
    require(found.tools_called and len(found.tool_calls) == 1, f"no single call in {text!r}")
    return json.loads(found.tool_calls[0].function.arguments)


def streamed_deltas(parser_cls: type, tokenizer: Any, text: str, request: ChatCompletionRequest, size: int) -> list:
    """(characters fed so far, tool-call delta) of an answer that arrives in pieces of `size` characters."""
    parser = parser_cls(tokenizer, request.tools)
    deltas = []
    for end in range(size, len(text) + size, size):
        before, now = text[: end - size], text[:end]
        delta = parser.extract_tool_calls_streaming(before, now, now[len(before) :], [], [], [], request)
        deltas += [(len(now), call) for call in (delta.tool_calls if delta else [])]
    return deltas


def packed_zeroing(zeroer_cls: type, spec: Any) -> None:
    """#50276: in a packed cache, where another layer's page lies between a layer's blocks, zeroing a block
    clears that layer's page of it and nothing else."""
    blocks, page, gap = 4, 64, 192  # bytes; a block's stride is page + gap
    memory = torch.full((blocks, page + gap), 7, dtype=torch.uint8)
    layer = SimpleNamespace(kv_cache=memory[:, :page])
    group = SimpleNamespace(kv_cache_spec=spec, kv_cache_group_id=0, layer_names=["layer"], kernel_block_stride=0)
    zeroer = zeroer_cls(torch.device("cpu"), [group], [spec.block_size], {"layer": layer}, blocks)
    require(zeroer._meta is not None, "the layer has no segment to zero")
    addresses, strides, pages, _, _, segments = zeroer._meta
    for index in range(segments):  # what the kernel does with the table, for block 2
        address = int(addresses[index]) + 2 * int(strides[index]) * 4
        start = address - memory.data_ptr()
        require(0 <= start and start + int(pages[index]) * 4 <= memory.numel(), "zeroing leaves the cache")
        ctypes.memset(address, 0, int(pages[index]) * 4)
    expected = torch.full_like(memory, 7)
    expected[2, :page] = 0
    require(torch.equal(memory, expected), "zeroing block 2 did not clear exactly its page")


class Grammar:
    """Stands in for a compiled grammar: marks the rows it constrains and keeps what it accepts."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.window: list[int] = []

    def is_terminated(self) -> bool:
        return False

    def fill_bitmask(self, bitmask: torch.Tensor, index: int) -> None:
        bitmask[index] = GRAMMAR_MASK

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        self.accepted += tokens
        return True

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]


def structured(manager_cls: type, reasoner: Any, drafts: int) -> tuple[Any, Any, Grammar]:
    """(manager, request, grammar): a request that is still reasoning, with `drafts` speculative tokens."""
    manager = object.__new__(manager_cls)
    manager.enable_in_reasoning = False
    manager.fill_bitmask_parallel_threshold = 128
    manager.reasoner_cls = type(reasoner)
    manager.backend = None
    manager._full_mask = torch.tensor(FULL_MASK, dtype=torch.int32)
    manager._grammar_bitmask = torch.zeros(1 + drafts, 1, dtype=torch.int32)
    manager.vllm_config = SimpleNamespace(
        num_speculative_tokens=drafts, model_config=SimpleNamespace(is_diffusion=False)
    )
    grammar = Grammar()
    state = SimpleNamespace(reasoning_ended=False, grammar=grammar, reasoner=reasoner, reasoning_parser_kwargs=None)
    request = SimpleNamespace(
        use_structured_output=True,
        request_id="r",
        prompt_token_ids=[0],
        all_token_ids=[0],
        structured_output_request=state,
    )
    return manager, request, grammar


def bitmask_follows_the_reasoning_boundary(manager_cls: type, reasoner: Any, content: int, end: int) -> None:
    """#44297: when reasoning ends within the drafted tokens, the rows after the end are constrained (the
    bonus row too), those up to it are not, and the grammar's state is as before."""
    manager, request, grammar = structured(manager_cls, reasoner, 3)
    mask = manager.grammar_bitmask({"r": request}, ["r"], {"r": [content, end, content]})
    rows = [int(row) for row in mask[:, 0]]
    wanted = [FULL_MASK, FULL_MASK, GRAMMAR_MASK, GRAMMAR_MASK]
    require(rows == wanted, f"rows {rows}, not {wanted}")
    require(grammar.accepted == [], "the grammar kept tokens that were only drafted")
    manager, request, _ = structured(manager_cls, reasoner, 3)
    mask = manager.grammar_bitmask({"r": request}, ["r"], {"r": [end, -1, -1]})
    require(int(mask[1, 0]) == GRAMMAR_MASK, "the row after the end is free when the other slots are padding")


def grammar_advances_over_the_boundary(manager_cls: type, reasoner: Any, content: int, end: int) -> None:
    """#44993: tokens accepted in the same step after the end of reasoning reach the grammar, those up to the
    end do not."""
    manager, request, grammar = structured(manager_cls, reasoner, 3)
    accepted = [content, end, content, content]
    request.all_token_ids = [0, *accepted]
    require(manager.accept_tokens(request, accepted), "the tokens were refused")
    require(grammar.accepted == [content, content], f"the grammar got {grammar.accepted}")
    require(request.structured_output_request.reasoning_ended is True, "the end of reasoning was not noted")


def one_state_machine(reasoning_cls: type, tool_cls: type) -> None:
    """#45877: reasoning and tool calls of this model come from one parser engine."""
    from vllm.parser.engine.parser_engine import ParserEngine

    engines = [getattr(cls, "_parser_engine_cls", None) for cls in (reasoning_cls, tool_cls)]
    require(engines[0] is not None and engines[0] is engines[1], f"two parsers: {engines}")
    require(issubclass(engines[0], ParserEngine), f"{engines[0]} is not a parser engine")


def no_special_token_in_reasoning(reasoning_cls: type, tokenizer: Any) -> None:
    """#48748: an answer that ends within its reasoning does not show the end-of-sentence token."""
    request = chat_request(a="string")
    reasoning, content = reasoning_cls(tokenizer).extract_reasoning(f"still thinking{EOS}", request)
    require(reasoning == "still thinking" and not content, f"got {reasoning!r} and {content!r}")


def string_attribute_and_wrapper(tool_cls: type, tokenizer: Any) -> None:
    """#41801: string="true|false" decides the type, and a wrapper that the schema does not have is taken off."""
    request = chat_request(a="string", b="integer", c="object")
    text = call_text(("a", "true", "5"), ("b", "false", "5"), ("c", "false", '{"x": [1]}'))
    found = whole_arguments(tool_cls, tokenizer, text, request)
    require(found == {"a": "5", "b": 5, "c": {"x": [1]}}, f"got {found}")
    wrapped = call_text(("arguments", "false", '{"a": "x", "b": 1}'))
    found = whole_arguments(tool_cls, tokenizer, wrapped, request)
    require(found == {"a": "x", "b": 1}, f"the wrapper stayed: {found}")
    own = chat_request(arguments="object")
    found = whole_arguments(tool_cls, tokenizer, wrapped, own)
    require(found == {"arguments": {"a": "x", "b": 1}}, f"a real parameter was unwrapped: {found}")
    foreign = call_text(("input", "false", '{"unknown": 1}'))
    found = whole_arguments(tool_cls, tokenizer, foreign, request)
    require(found == {"input": {"unknown": 1}}, f"a foreign object was unwrapped: {found}")


def arguments_arrive_before_the_call_ends(tool_cls: type, tokenizer: Any) -> None:
    """#42879, which #45877 took over: the name and finished parameters are streamed while the call goes on,
    and the pieces together are the arguments of the complete answer."""
    request = chat_request(a="string", b="string")
    text = call_text(("a", "true", "first value"), ("b", "true", "second value"))
    deltas = streamed_deltas(tool_cls, tokenizer, text, request, size=3)
    names = [(at, call.function.name) for at, call in deltas if call.function and call.function.name]
    require([name for _, name in names] == ["f"], f"names {names}")
    pieces = [(at, call.function.arguments) for at, call in deltas if call.function and call.function.arguments]
    second = text.index("second value")
    require(names[0][0] < text.index("first value"), "the name came with the arguments")
    early = "".join(piece for at, piece in pieces if at < second)
    require("first value" in early, f"nothing of the first parameter before the second one: {early!r}")
    joined = "".join(piece for _, piece in pieces)
    require(json.loads(joined) == {"a": "first value", "b": "second value"}, f"together they are {joined!r}")
