"""DeepSeek-V4's tool calls (DSML) and thinking, parsed right in every split. Attached through vLLM's parser registries."""

from __future__ import annotations

from ..errors import UnsupportedError

NAME = "deepseek_v4"


def attach() -> None:
    """Put our parsers in the place of vLLM's ``deepseek_v4`` ones. Idempotent; loads no model, touches no device.

    Raises:
        UnsupportedError: vLLM did not take them.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

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
