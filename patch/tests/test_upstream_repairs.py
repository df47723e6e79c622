"""The pinned vLLM contains every upstream repair that earlier revisions of this work had to carry.

So the series carries none of them. Each check is also given code without the repair and must fail.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import fetch
import pins
import pytest
import torch
import upstream_checks as checks
import vllm
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from vllm.parser.deepseek_v4 import DeepSeekV4Parser, deepseek_v4_config
from vllm.parser.engine.adapters import make_adapters
from vllm.reasoning.deepseek_v4_engine_reasoning_parser import DeepSeekV4ParserReasoningAdapter
from vllm.tool_parsers.deepseekv4_engine_tool_parser import DeepSeekV4EngineToolParser
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.utils import KVBlockZeroer

SPEC = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype=torch.uint8)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """ASCII, one token a character, with the model's special and added tokens."""
    special = ["<｜begin▁of▁sentence｜>", checks.EOS]
    vocabulary = {text: index for index, text in enumerate([*special, *map(chr, range(32, 127))])}
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE(vocab=vocabulary, merges=[])), bos_token=special[0], eos_token=special[1]
    )
    made.add_tokens(["<think>", "</think>", checks.DSML])
    return made


@pytest.fixture(scope="module")
def reasoning_cls() -> type:
    """vLLM's own, whatever a plugin may have registered under its name."""
    return DeepSeekV4ParserReasoningAdapter


@pytest.fixture(scope="module")
def tool_cls() -> type:
    return DeepSeekV4EngineToolParser


@pytest.fixture
def reasoner(reasoning_cls: type, tokenizer: PreTrainedTokenizerFast) -> object:
    return reasoning_cls(tokenizer)


@pytest.fixture(scope="module")
def end(tokenizer: PreTrainedTokenizerFast) -> int:
    return tokenizer.convert_tokens_to_ids("</think>")


@pytest.fixture(scope="module")
def content(tokenizer: PreTrainedTokenizerFast) -> int:
    return tokenizer.convert_tokens_to_ids("{")


# -- #50276: zeroing of packed KV blocks


def test_50276_packed_zeroing() -> None:
    checks.packed_zeroing(KVBlockZeroer, SPEC)


class StrideIsPage(KVBlockZeroer):
    """As before the repair: the whole stride is taken for the page."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        addresses, strides, _, *rest = self._meta
        self._meta = (addresses, strides, strides, *rest)


class PageIsStride(KVBlockZeroer):
    """The other way round: blocks are taken to lie page by page."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        addresses, _, pages, *rest = self._meta
        self._meta = (addresses, pages, pages, *rest)


@pytest.mark.parametrize("broken", [StrideIsPage, PageIsStride])
def test_50276_is_missed_when_stride_and_page_are_one(broken: type) -> None:
    with pytest.raises(AssertionError):
        checks.packed_zeroing(broken, SPEC)


def test_50276_is_in_force_for_caches_of_mixed_precision() -> None:
    """This model's cache holds FP8 rows and wider compressor state in one pool."""

    def config(*dtypes: torch.dtype) -> KVCacheConfig:
        specs = [FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=64, dtype=dtype) for dtype in dtypes]
        groups = [KVCacheGroupSpec([f"layer{index}"], spec) for index, spec in enumerate(specs)]
        return KVCacheConfig(num_blocks=1, kv_cache_tensors=[], kv_cache_groups=groups)

    assert config(torch.uint8, torch.float32).needs_kv_cache_zeroing
    assert not config(torch.uint8, torch.uint8).needs_kv_cache_zeroing


# -- #44297 and #44993: structured output with speculative decoding


def test_44297_bitmask(reasoner: object, content: int, end: int) -> None:
    checks.bitmask_follows_the_reasoning_boundary(StructuredOutputManager, reasoner, content, end)


def test_44993_advance(reasoner: object, content: int, end: int) -> None:
    checks.grammar_advances_over_the_boundary(StructuredOutputManager, reasoner, content, end)


class StartOfStepDecides(StructuredOutputManager):
    """As before the repairs: whether the step is constrained is decided once, at its start."""

    def _get_constraint_bounds(self, request, spec_tokens, spec_tokens_committed=False):
        return type(super()._get_constraint_bounds(request, ()))(len(spec_tokens) + 1, len(spec_tokens) + 1)


class EverythingIsConstrained(StructuredOutputManager):
    def _get_constraint_bounds(self, request, spec_tokens, spec_tokens_committed=False):
        return type(super()._get_constraint_bounds(request, ()))(0, 0)


@pytest.mark.parametrize("broken", [StartOfStepDecides, EverythingIsConstrained])
@pytest.mark.parametrize(
    "check", [checks.bitmask_follows_the_reasoning_boundary, checks.grammar_advances_over_the_boundary]
)
def test_44297_and_44993_are_missed_without_them(check, broken: type, reasoner: object, content: int, end: int) -> None:
    with pytest.raises(AssertionError):
        check(broken, reasoner, content, end)


# -- #45877: one parser engine


def test_45877_one_engine(reasoning_cls: type, tool_cls: type) -> None:
    checks.one_state_machine(reasoning_cls, tool_cls)


def test_45877_is_missed_by_parsers_of_their_own(reasoning_cls: type) -> None:
    class OldToolParser:
        pass

    with pytest.raises(AssertionError):
        checks.one_state_machine(reasoning_cls, OldToolParser)


# -- #48748: special tokens in reasoning


def test_48748_reasoning_is_clean(reasoning_cls: type, tokenizer: PreTrainedTokenizerFast) -> None:
    checks.no_special_token_in_reasoning(reasoning_cls, tokenizer)


def test_48748_is_missed_when_special_tokens_are_kept(reasoning_cls: type, tokenizer: PreTrainedTokenizerFast) -> None:
    class Leaking(reasoning_cls):
        def extract_reasoning(self, model_output, request):
            reasoning, content = super().extract_reasoning(model_output, request)
            return (reasoning or "") + checks.EOS, content

    with pytest.raises(AssertionError):
        checks.no_special_token_in_reasoning(Leaking, tokenizer)


# -- #41801: DSML parameter types and wrappers


def test_41801_types_and_wrappers(tool_cls: type, tokenizer: PreTrainedTokenizerFast) -> None:
    checks.string_attribute_and_wrapper(tool_cls, tokenizer)


def tool_adapter(engine: type) -> type:
    """The tool parser of an engine, as vLLM makes it."""
    return make_adapters(engine)[1]


class NoUnwrapping(DeepSeekV4Parser):
    def _convert_args(self, raw_args: str, partial: bool) -> str:
        return deepseek_v4_config().arg_converter(raw_args, partial)


class UnwrapsAnything(DeepSeekV4Parser):
    def _convert_args(self, raw_args: str, partial: bool) -> str:
        found = json.loads(deepseek_v4_config().arg_converter(raw_args, partial))
        return json.dumps(next(iter(found.values())) if len(found) == 1 else found)


class NothingIsAString(DeepSeekV4Parser):
    """Ignores string="true"; the schema's own types would put it right again, so there is no schema."""

    def _convert_args(self, raw_args: str, partial: bool) -> str:
        return super()._convert_args(raw_args.replace('string="true"', 'string="false"'), partial)

    def _fix_arg_types(self, args_json: str, func_name: str) -> str:
        return args_json


@pytest.mark.parametrize("broken", [NoUnwrapping, UnwrapsAnything, NothingIsAString])
def test_41801_is_missed_without_it(broken: type, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(AssertionError):
        checks.string_attribute_and_wrapper(tool_adapter(broken), tokenizer)


# -- #42879: incremental arguments


def test_42879_streaming(tool_cls: type, tokenizer: PreTrainedTokenizerFast) -> None:
    checks.arguments_arrive_before_the_call_ends(tool_cls, tokenizer)


class AllAtTheEnd(DeepSeekV4Parser):
    """Holds the arguments back until the call is complete."""

    def _compute_arg_delta(self, idx: int, raw_delta: str) -> str | None:
        return None


def test_42879_is_missed_when_arguments_come_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(AssertionError, match="nothing of the first parameter"):
        checks.arguments_arrive_before_the_call_ends(tool_adapter(AllAtTheEnd), tokenizer)


def test_what_was_checked_is_the_pinned_source() -> None:
    """The checks ran on the installed wheel; the files they exercise are those of the source archive."""
    names = ["v1/worker/utils.py", "v1/structured_output/__init__.py", "v1/kv_cache_interface.py"]
    names += ["parser/deepseek_v4.py", "parser/engine/parser_engine.py", "parser/engine/adapters.py"]
    names += ["parser/engine/streaming_parser_engine.py", "parser/engine/token_id_scanner.py"]
    table = pins.load()
    archive = fetch.cache_dir() / table.artifact("vllm.sdist").filename
    with tarfile.open(archive) as tar:
        for name in names:
            member = tar.extractfile(f"{table.get('vllm.sdist.root')}/vllm/{name}")
            assert member is not None
            assert member.read() == (Path(vllm.__file__).parent / name).read_bytes(), name
