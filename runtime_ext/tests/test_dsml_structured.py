"""Structured output behind thinking and under speculation, on the scheduler's own manager and a real grammar.

DSpark cannot run on a CPU; what it needs of the grammar can: drafts cross the end of thinking in any place, some are
refused, and what was accepted must be JSON of the schema. The reasoner that the manager asks is ours.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import dsml_support as support
import jsonschema
import numpy
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from moet_w2.dsml.adapters import MoetDeepSeekV4ReasoningParser, MoetDeepSeekV4ToolParser

SCHEMA = {
    "type": "object",
    "properties": {
        "answer": {"type": "integer"},
        "why": {"type": "string", "maxLength": 12},
        "ok": {"type": "boolean"},
    },
    "required": ["answer", "why", "ok"],
    "additionalProperties": False,
}
EOS = "<｜end▁of▁sentence｜>"
SCRIPT = 'I think "so" {maybe}</think>{"answer": 42, "why": "6 times 7", "ok": true}' + EOS


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, with the model's special tokens and its think tags."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_tokens([AddedToken(EOS, special=True)])
    made.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>", "｜DSML｜")])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=EOS)


@pytest.fixture(scope="module")
def backend(tokenizer):
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(disable_any_whitespace=False),
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="deepseek_v4")),
        speculative_config=SimpleNamespace(num_speculative_tokens=5),
    )
    return XgrammarBackend(config, tokenizer, len(tokenizer))


def manager_of(backend, tokenizer, drafts: int):
    """The scheduler's manager, as it is after its first structured request."""
    from vllm.v1.structured_output import StructuredOutputManager

    made = object.__new__(StructuredOutputManager)
    made.enable_in_reasoning = False
    made.fill_bitmask_parallel_threshold = 128
    made.reasoner_cls = MoetDeepSeekV4ReasoningParser
    made.tokenizer = tokenizer
    made.backend = backend
    made._full_mask = torch.tensor(-1, dtype=torch.int32)
    made._grammar_bitmask = None
    made.vllm_config = SimpleNamespace(
        num_speculative_tokens=drafts,
        model_config=SimpleNamespace(is_diffusion=False),
        scheduler_config=SimpleNamespace(max_num_seqs=1),
    )
    return made


def generate(backend, tokenizer, rng: random.Random, drafts: int, noise: float, manager_class=None) -> str:
    """A target that mostly follows a script, drafts that are right three times in four, the manager between them."""
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    manager = manager_of(backend, tokenizer, drafts)
    if manager_class is not None:
        manager.__class__ = manager_class
    grammar = backend.compile_grammar(StructuredOutputOptions.JSON, json.dumps(SCHEMA))
    prompt = tokenizer.encode("<think>")
    state = SimpleNamespace(reasoning_ended=None, grammar=grammar, reasoner=None, reasoning_parser_kwargs=None)
    asked = SimpleNamespace(
        request_id="r",
        use_structured_output=True,
        prompt_token_ids=prompt,
        all_token_ids=list(prompt),
        structured_output_request=state,
    )
    script = tokenizer.encode(SCRIPT)
    eos = tokenizer.eos_token_id
    output: list[int] = []

    def wanted(position: int, allowed: numpy.ndarray) -> int:
        """The token that the target takes; after a slip, whatever ends soonest."""
        on_script = output[:position] == script[:position] and position < len(script)
        if on_script and allowed[script[position]] and rng.random() >= noise:
            return script[position]
        for text in (EOS, "}", '"', ":", ",", "1", "t", "r", "u", "e"):
            token = tokenizer.encode(text)[0]
            if allowed[token] and rng.random() < 0.7:
                return token
        return int(rng.choice(numpy.flatnonzero(allowed)))

    while len(output) < 400:
        guess = [t if rng.random() < 0.75 else rng.randrange(len(tokenizer)) for t in script[len(output) :][:drafts]]
        guess = manager.validate_tokens(asked, guess)
        rows = manager.grammar_bitmask({"r": asked}, ["r"], {"r": guess} if guess else {})
        accepted: list[int] = []
        for row in range(len(guess) + 1):
            bits = numpy.unpackbits(rows[row].view(numpy.uint8), bitorder="little")[: len(tokenizer)].astype(bool)
            if state.reasoning_ended and not accepted:
                assert not bits.all(), "after thinking, every first token is constrained"
            token = wanted(len(output), bits)
            accepted.append(token)
            output.append(token)
            if token == eos or row == len(guess) or guess[row] != token:
                break
        asked.all_token_ids += accepted
        if not manager.accept_tokens(asked, accepted):
            return tokenizer.decode(output)
        if accepted[-1] == eos and state.reasoning_ended:
            break
        if eos in accepted:
            return ""  # ended within its thoughts
    return tokenizer.decode(output)


@pytest.mark.parametrize("drafts", [0, 1, 3, 5])
def test_json_after_thinking_is_valid_under_speculation(backend, tokenizer, drafts):
    rng = random.Random(drafts)
    asked = support.request(None)
    valid = 0
    for number in range(40):
        text = generate(backend, tokenizer, rng, drafts, noise=0.0 if number % 2 else 0.03)
        thought, end, _ = text.partition("</think>")
        if not end:
            continue
        answer = support.read(text, asked)
        jsonschema.validate(json.loads(answer.content or ""), SCHEMA)
        assert answer.reasoning == thought
        valid += 1
    assert valid >= 20


def test_without_the_boundary_logic_it_is_not(backend, tokenizer):
    """The gate can fail: a manager that decides once a step lets a draft that crosses the boundary go unseen."""
    from vllm.v1.structured_output import ConstraintBounds, StructuredOutputManager

    class OncePerStep(StructuredOutputManager):
        def _get_constraint_bounds(self, request, spec_tokens, spec_tokens_committed=False):
            found = super()._get_constraint_bounds(request, spec_tokens, spec_tokens_committed)
            begun = request.structured_output_request.reasoning_ended
            if spec_tokens_committed and found.grammar_start <= len(spec_tokens):
                # What followed the end in the same step never reaches the grammar.
                return ConstraintBounds(found.grammar_start if begun else len(spec_tokens), found.constraint_start)
            return found

    rng = random.Random(1)
    bad = 0
    for _ in range(10):
        text = generate(backend, tokenizer, rng, 5, noise=0.0, manager_class=OncePerStep)
        try:
            jsonschema.validate(json.loads(text.partition("</think>")[2].removesuffix(EOS)), SCHEMA)
        except ValueError:
            bad += 1
    assert bad


def tags_of(asked) -> dict | None:
    from vllm.parser.abstract_parser import DelegatingParser

    class Both(DelegatingParser):
        reasoning_parser_cls = MoetDeepSeekV4ReasoningParser
        tool_parser_cls = MoetDeepSeekV4ToolParser

    adjusted = Both(support.TOKENIZER, asked.tools).adjust_request(asked)
    assert adjusted.skip_special_tokens is False
    return json.loads(adjusted.structured_outputs.structural_tag) if adjusted.structured_outputs else None


def function(name: str, strict: bool | None, properties: dict, **more) -> dict:
    made = support.tool(name, properties, additionalProperties=False, **more)
    if strict is not None:
        made["function"]["strict"] = strict
    return made


def test_nothing_is_forced_where_no_function_is_strict():
    assert tags_of(support.request([function("f", None, {"a": {"type": "integer"}})])) is None
    assert tags_of(support.request([function("f", False, {"a": {"type": "integer"}})])) is None


def accepts(backend, tag: dict, text: str, tokenizer) -> bool:
    from vllm.v1.structured_output.backend_types import StructuredOutputOptions

    grammar = backend.compile_grammar(StructuredOutputOptions.STRUCTURAL_TAG, json.dumps(tag))
    return all(grammar.accept_tokens("r", [token]) for token in tokenizer.encode(text))


def call(name: str, key: str, value: str, string: str = "false") -> str:
    parameter = f'<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>'
    invoke = f'<｜DSML｜invoke name="{name}">\n{parameter}\n</｜DSML｜invoke>'
    return f"\n\n<｜DSML｜tool_calls>\n{invoke}\n</｜DSML｜tool_calls>"


def test_strict_binds_its_own_function_and_no_other(backend, tokenizer):
    tag = tags_of(
        support.request([
            function("tight", True, {"a": {"type": "integer"}}, required=["a"]),
            function("loose", None, {"a": {"type": "integer"}}),
        ])
    )
    assert accepts(backend, tag, call("tight", "a", "5"), tokenizer)
    assert not accepts(backend, tag, call("tight", "a", "five"), tokenizer)
    assert not accepts(backend, tag, call("tight", "b", "5"), tokenizer)
    assert accepts(backend, tag, call("loose", "b", "anything", "true"), tokenizer)
    assert accepts(backend, tag, "no call at all", tokenizer)


def test_a_strict_bridge_leaves_its_open_object_open(backend, tokenizer):
    """The outer names are bound; the fields of a schema that was never sent are not made up."""
    properties = {"name": {"type": "string"}, "arguments": {"type": "object"}}
    asked = support.request([function("bridge", True, properties, required=["name", "arguments"])])
    tag = tags_of(asked)
    inside = (
        '<｜DSML｜parameter name="name" string="true">deferred</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="arguments" string="false">{"x": [1, {"y": null}]}</｜DSML｜parameter>'
    )
    text = f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="bridge">\n{inside}\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    assert accepts(backend, tag, text, tokenizer)
    (name, arguments), = support.read(text, asked, thinking=False).calls
    assert (name, json.loads(arguments)) == ("bridge", {"name": "deferred", "arguments": {"x": [1, {"y": None}]}})
    empty = text.replace('{"x": [1, {"y": null}]}', "{}")
    (_, arguments), = support.read(empty, asked, thinking=False).calls
    assert json.loads(arguments) == {"name": "deferred", "arguments": {}}
