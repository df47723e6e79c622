"""What the DSML tests share: a small tokenizer, requests, a driver of vLLM's own parser flow, and strategies."""

from __future__ import annotations

import json
import os
import random
import re
from functools import cache
from typing import Any, NamedTuple

from hypothesis import strategies as st

SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
VISIBLE = ["<think>", "</think>", "｜DSML｜"]
PIECES = re.compile("|".join(map(re.escape, SPECIAL + VISIBLE)) + r"|tool_calls|invoke|parameter| ?\w{1,6}|.", re.S)
D = "｜DSML｜"


def examples(everyday: int, variable: str) -> int:
    """How many examples a heavy test draws: few every day, the issue's count where the variable asks for it."""
    return int(os.environ.get(variable, everyday))


class Tokenizer:
    """Enough of a tokenizer for vLLM's parsers: every piece that occurs gets an id."""

    def __init__(self) -> None:
        self._ids = {text: number for number, text in enumerate(SPECIAL + VISIBLE)}
        self._texts = list(self._ids)
        self.all_special_tokens = list(SPECIAL)
        self.all_special_ids = [self._ids[text] for text in SPECIAL]

    def get_vocab(self) -> dict[str, int]:
        return self._ids

    def encode(self, text: str, **_: Any) -> list[int]:
        for piece in PIECES.findall(text):
            if piece not in self._ids:
                self._ids[piece] = len(self._texts)
                self._texts.append(piece)
        return [self._ids[piece] for piece in PIECES.findall(text)]

    def decode(self, ids: list[int] | int, **_: Any) -> str:
        return "".join(self._texts[i] for i in ([ids] if isinstance(ids, int) else ids))


TOKENIZER = Tokenizer()


class Call(NamedTuple):
    name: str
    arguments: str

    @property
    def value(self) -> Any:
        return json.loads(self.arguments)


class Parsed(NamedTuple):
    reasoning: str | None
    content: str | None
    calls: list[Call]


def tool(name: str, properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties or {}, **more}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def request(tools: list[dict[str, Any]] | None = None, **options: Any) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    return ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "x"}], tools=tools or None, **options
    )


@cache
def parser_class() -> type:
    """Our two parsers, composed as vLLM composes them."""
    from vllm.parser import ParserManager

    from moet_w2 import dsml

    dsml.attach()
    return ParserManager.get_parser("deepseek_v4", "deepseek_v4", enable_auto_tools=True)


def new_parser(asked: Any, thinking: bool) -> Any:
    return parser_class()(TOKENIZER, asked.tools, chat_template_kwargs={"thinking": thinking})


def whole(text: str, asked: Any, thinking: bool = True) -> Parsed:
    """The answer to a request that is not streamed."""
    reasoning, content, calls = new_parser(asked, thinking).parse(text, asked, enable_auto_tools=True)
    return Parsed(reasoning, content, [Call(c.name, c.arguments) for c in calls or ()])


def streamed(pieces: list[str], asked: Any, thinking: bool = True) -> tuple[Parsed, list[Any]]:
    """The same, piece by piece: what a client gathers, and the deltas."""
    parser = new_parser(asked, thinking)
    prompt = TOKENIZER.encode("<think>" if thinking else "</think>")
    reasoning, content, calls, deltas = "", "", [], []
    for number, piece in enumerate(pieces):
        delta = parser.parse_delta(
            piece, TOKENIZER.encode(piece), asked, prompt_token_ids=prompt, finished=number == len(pieces) - 1
        )
        if delta is None:
            continue
        deltas.append(delta)
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for call in delta.tool_calls:
            if call.id is not None:
                assert call.index == len(calls), "indices count up from 0"
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
    return Parsed(reasoning or None, content or None, [Call(*call) for call in calls]), deltas


def cut(text: str, rng: random.Random) -> list[str]:
    """A random way of cutting: single characters, tokens, few big pieces or anything between."""
    style = rng.randrange(4)
    if style == 0:
        return list(text) or [""]
    if style == 1:
        return PIECES.findall(text) or [""]
    count = rng.randrange(1, 6) if style == 2 else rng.randrange(1, max(2, len(text)))
    places = sorted(rng.randrange(len(text) + 1) for _ in range(count))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


TRICKY = [
    "<", "</", ">", "2>&1", '"', "\\", "\n", "\n\n", " ", "｜", "<｜", "</｜", "｜DSML｜", "<｜DSML｜", "</｜DSML｜",
    "</｜DSML｜parameter>", '<｜DSML｜parameter name="a" string="true">', "</｜DSML｜invoke>", "<｜DSML｜tool_calls>",
    '<｜DSML｜invoke name="f">', "</｜DSML｜tool_calls>", "<think>", "</think>", "<｜end▁of▁sentence｜>", "<｜User｜>",
    "日本", "🙂", "\x00", "\x1f", "é", "{", "}", "[]", "null", "true", "5", "\\u003c",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(TRICKY), st.text(max_size=8)), max_size=6).map("".join)
keys = st.text(st.characters(exclude_characters='<>"\n', exclude_categories=("Cs",)), min_size=1, max_size=8)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts,
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)), max_leaves=8
)
arguments = st.dictionaries(keys, values, max_size=4)
# Prose that ends in no newline: the encoder puts two of its own before a block.
prose = st.text(st.characters(exclude_characters="<｜", exclude_categories=("Cs",)), max_size=30).map(str.strip)
