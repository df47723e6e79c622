"""Tool calls on their way back into the prompt: what the encoder cannot take, it gets in a form that it can.

Two things go wrong in a history. Arguments that are no JSON object (a client cut them, or a model wrote a list) stay in
the conversation for good, so refusing them would end it: they become one verbatim parameter, ``arguments``. And a
string that holds markup of this very format would be read as markup: it is written as escaped JSON instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .markup import THINK_CLOSE
from .schema import parse_json
from .writer import dumps

VERBATIM = "arguments"
_UNSAFE = ("<｜", "</｜")
_UNSAFE_KEY = frozenset('<>"\n')


def as_object(arguments: Any) -> dict[str, Any]:
    """The arguments of a history's call as an object.

    An object stays as it is; nothing is no arguments; anything else is the value of one parameter, unchanged.
    """
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            value = parse_json(arguments)
        except ValueError:
            return {VERBATIM: arguments}
    else:
        value = arguments
    return dict(value) if isinstance(value, Mapping) else {VERBATIM: value}


def repair(messages: Sequence[Any]) -> list[Any]:
    """Messages whose calls all carry an object; what was fine is passed on, nothing is changed in place."""
    return [_repair_message(message) for message in messages]


def _repair_message(message: Any) -> Any:
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not calls or message.get("role") != "assistant":
        return message
    return {**message, "tool_calls": [_repair_call(call) for call in calls]}


def _repair_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call  # vLLM refuses it by name
    return {**call, "function": {**function, "arguments": dumps(as_object(function.get("arguments")))}}


def encode_arguments(tool_call: Mapping[str, Any]) -> str:
    """The parameters of one call as DSML, one a line. Stands in for the encoder's function of this purpose."""
    arguments = as_object(tool_call["arguments"])
    if any(not key or not _UNSAFE_KEY.isdisjoint(key) for key in arguments):
        # A name that no tag can carry: the whole object goes in as one value.
        arguments = {VERBATIM: arguments}
    return "\n".join(_parameter(key, value) for key, value in arguments.items())


def _parameter(key: str, value: Any) -> str:
    if isinstance(value, str) and not _is_markup(value):
        return _tag(key, "true", value)
    text = dumps(value)
    if _is_markup(text):
        text = text.replace("<", "\\u003c")
    return _tag(key, "false", text)


def _is_markup(text: str) -> bool:
    return any(mark in text for mark in _UNSAFE)


def _tag(key: str, string: str, value: str) -> str:
    return f'<｜DSML｜parameter name="{key}" string="{string}">{value}</｜DSML｜parameter>'


def encode_turn(calls: Sequence[Mapping[str, Any]], content: str = "", reasoning: str | None = None) -> str:
    """An assistant turn as the model writes it: for tests and tools. ``calls`` hold ``name`` and ``arguments``."""
    thought = "" if reasoning is None else f"{reasoning}{THINK_CLOSE}"
    if not calls:
        return thought + content
    invokes = "\n".join(
        f'<｜DSML｜invoke name="{call["name"]}">\n{encode_arguments(call)}\n</｜DSML｜invoke>' for call in calls
    )
    return f"{thought}{content}\n\n<｜DSML｜tool_calls>\n{invokes}\n</｜DSML｜tool_calls>"
