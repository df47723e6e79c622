"""DeepSeek-V4's tool calls (DSML) and thinking, parsed right in every split, behind vLLM's parser registries."""

from __future__ import annotations

from ..errors import UnsupportedError

NAME = "deepseek_v4"


def attach() -> None:
    """Put our parsers and our renderer in the place of vLLM's ``deepseek_v4`` ones. Idempotent; touches no device.

    Raises:
        UnsupportedError: vLLM did not take them.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers import deepseek_v4_encoding
    from vllm.tool_parsers import ToolParserManager

    from . import history, renderer
    from .adapters import MoetDeepSeekV4ReasoningParser, MoetDeepSeekV4ToolParser

    for manager, get, parser in (
        (ToolParserManager, ToolParserManager.get_tool_parser, MoetDeepSeekV4ToolParser),
        (ReasoningParserManager, ReasoningParserManager.get_reasoning_parser, MoetDeepSeekV4ReasoningParser),
    ):
        manager.register_module(name=NAME, force=True, module=parser)
        if get(NAME) is not parser:
            raise UnsupportedError(
                f"vLLM did not take {parser.__name__} as its {NAME} parser; this vLLM is not the pinned one"
            )
    # Not .register(): it warns of every name that is taken, and this one always is.
    RENDERER_REGISTRY.renderers[NAME] = (renderer.__name__, renderer.MoetDeepseekV4Renderer.__name__)
    # The encoder has no interface for this: its function of that purpose is looked up by name at each call.
    deepseek_v4_encoding.encode_arguments_to_dsml = history.encode_arguments
    if not _encoder_uses_ours():
        raise UnsupportedError(
            "vLLM's DeepSeek-V4 encoder does not take our arguments; this vLLM is not the pinned one"
        )


def _encoder_uses_ours() -> bool:
    """Whether a call with broken arguments is encoded the way ours does it."""
    from vllm.tokenizers.deepseek_v4_encoding import encode_messages

    call = {"type": "function", "function": {"name": "f", "arguments": "no JSON"}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        text = encode_messages([{"role": "user", "content": "q"}, message], thinking_mode="chat")
    except ValueError:
        return False
    return '<｜DSML｜parameter name="arguments" string="true">no JSON</｜DSML｜parameter>' in text
