"""vLLM's DeepSeek-V4 renderer, given histories that it can render without losing anything."""

from __future__ import annotations

from typing import Any

from vllm.renderers.deepseek_v4 import DeepseekV4Renderer

from .history import repair


class MoetDeepseekV4Renderer(DeepseekV4Renderer):
    """vLLM replaces arguments that are no JSON object by an empty one; here they arrive as a verbatim parameter."""

    def render_messages(self, messages: Any, params: Any) -> Any:
        """The conversation and its prompt."""
        return super().render_messages(repair(messages), params)

    async def render_messages_async(self, messages: Any, params: Any) -> Any:
        """The conversation and its prompt."""
        return await super().render_messages_async(repair(messages), params)
