"""Our rendering equals vLLM's own encoder, text for text and token for token, for every kind of the corpus."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from random import Random

import pytest

from demo.make import (
    data,
    hf,  # noqa: F401 - before vLLM, so that unusable media packages do not stop the import
    render,
    tokenizer,
)

encoding = pytest.importorskip("vllm.tokenizers.deepseek_v4_encoding")
wrapper = pytest.importorskip("vllm.tokenizers.deepseek_v4")


def as_request(messages: list[render.Message]) -> list[render.Message]:
    """Messages as a client sends them: arguments of calls are JSON text."""
    result = copy.deepcopy(messages)
    for message in result:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return result


@pytest.fixture(scope="module")
def served(checkpoint_dir: Path):
    """The tokenizer as the server wraps it."""
    return wrapper.DeepseekV4Tokenizer.from_pretrained(str(checkpoint_dir))


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("effort", sorted(render.EFFORTS))
@pytest.mark.parametrize("kind", sorted(data.KINDS))
def test_prompt_equals_the_servers(served, checkpoint_dir: Path, kind: str, effort: str, thinking: bool) -> None:
    coder = tokenizer.load(checkpoint_dir)
    random = Random(f"{kind} {effort} {thinking}")
    for _ in range(12):
        sample = data.sample(kind, random)
        ours = render.prompt(sample.messages, sample.tools, thinking, effort)
        options = {"tools": sample.tools, "thinking": thinking, "reasoning_effort": effort}
        messages = as_request(sample.messages)
        theirs = served.apply_chat_template(messages, tokenize=False, **options)
        assert ours == theirs
        ids = served.apply_chat_template(messages, tokenize=True, **options)
        assert coder.encode(ours, add_special_tokens=False).ids == list(ids)


@pytest.mark.parametrize("kind", sorted(data.KINDS))
def test_defaults_of_a_request_are_thinking_at_high_effort(served, kind: str) -> None:
    sample = data.sample(kind, Random(kind))
    ours = render.prompt(sample.messages, sample.tools, True, "high")
    messages = as_request(sample.messages)
    assert ours == served.apply_chat_template(messages, tools=sample.tools, tokenize=False)
    assert ours == served.apply_chat_template(messages, tools=sample.tools, tokenize=False, reasoning_effort=None)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("kind", sorted(data.KINDS))
def test_reply_equals_the_servers_history(kind: str, thinking: bool) -> None:
    random = Random(f"{kind} {thinking}")
    for _ in range(12):
        sample = data.sample(kind, random)
        messages = copy.deepcopy([*sample.messages, sample.target])
        if sample.tools:
            if messages[0]["role"] != "system":
                messages.insert(0, {"role": "system"})
            messages[0]["tools"] = sample.tools
        mode = "thinking" if thinking else "chat"
        theirs = encoding.encode_messages(as_request(messages), thinking_mode=mode, reasoning_effort="high")
        ours = render.prompt(sample.messages, sample.tools, thinking, "high") + render.reply(sample.target, thinking)
        assert ours == theirs


def test_a_changed_word_is_noticed(served) -> None:
    sample = data.sample("call", Random(1))
    ours = render.prompt(sample.messages, sample.tools, True, "low")
    theirs = served.apply_chat_template(as_request(sample.messages), tools=sample.tools, tokenize=False)
    assert ours != theirs
