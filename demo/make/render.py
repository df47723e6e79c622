"""DeepSeek-V4 prompt text of a conversation, without vLLM; a test holds it equal to vLLM's own encoder.

Messages are dicts in the OpenAI form (roles system, user, assistant, tool). An assistant message may carry
`reasoning`, `content` and `tool_calls`; arguments are a dict or its JSON text.
"""

from __future__ import annotations

import json
from typing import Any

from demo.make.tokenizer import ASSISTANT, BOS, DSML, END_THINK, EOS, THINK, USER

Message = dict[str, Any]

# The format's own preambles by reasoning effort; "low" has none. vLLM renders "high" when a request names no effort.
EFFORTS = {
    "low": "",
    "high": "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n",
    "max": "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose "
    "the problem into its most fundamental components, trace every causal chain to its root, and resolve the "
    "underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n",
}

_TOOLS = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \
"<{DSML}tool_calls>" block like the following:

<{DSML}tool_calls>
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
</{DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, \
arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside \
{THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

SCHEMAS

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def tools_text(tools: list[dict[str, Any]]) -> str:
    """The system prompt's section on tools, from tools in the OpenAI form."""
    return _TOOLS.replace("SCHEMAS", "\n".join(_json(tool["function"]) for tool in tools))


def _parameter(name: str, value: Any) -> str:
    is_text = isinstance(value, str)
    flag = "true" if is_text else "false"
    return f'<{DSML}parameter name="{name}" string="{flag}">{value if is_text else _json(value)}</{DSML}parameter>'


def _calls_text(calls: list[dict[str, Any]]) -> str:
    blocks = []
    for call in calls:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        lines = "\n".join(_parameter(name, value) for name, value in arguments.items())
        blocks.append(f'<{DSML}invoke name="{function["name"]}">\n{lines}\n</{DSML}invoke>')
    return f"\n\n<{DSML}tool_calls>\n" + "\n".join(blocks) + f"\n</{DSML}tool_calls>"


def reply(message: Message, thinking: bool) -> str:
    """What the assistant writes after its turn has been opened, end of sentence included."""
    reasoning = (message.get("reasoning") or "") + END_THINK if thinking else ""
    calls = message.get("tool_calls")
    return reasoning + (message.get("content") or "") + (_calls_text(calls) if calls else "") + EOS


def prompt(messages: list[Message], tools: list[dict[str, Any]] | None, thinking: bool, effort: str) -> str:
    """Everything up to and including the marker that opens the assistant's answer.

    With tools the reasoning of earlier turns stays; without, only the turn to come has a thinking part. Neighbouring
    user and tool messages share one user turn.
    """
    text = BOS + (EFFORTS[effort] if thinking else "")
    messages = list(messages)
    if tools and not any(m["role"] == "system" for m in messages):
        messages.insert(0, {"role": "system", "content": ""})
    last_user = max(i for i, m in enumerate(messages) if m["role"] in ("user", "tool"))
    previous = None
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "system":
            text += message["content"] + ("\n\n" + tools_text(tools) if tools else "")
        elif role in ("user", "tool"):
            content = message["content"]
            text += "\n\n" if previous in ("user", "tool") else USER
            text += f"<tool_result>{content}</tool_result>" if role == "tool" else content
            following = messages[index + 1]["role"] if index + 1 < len(messages) else "assistant"
            if following == "assistant":
                open_thinking = thinking and (bool(tools) or index >= last_user)
                text += ASSISTANT + (THINK if open_thinking else END_THINK)
        else:
            text += reply(message, thinking and bool(tools))
        previous = role
    return text
