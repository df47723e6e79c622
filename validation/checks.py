"""The checks of a smoke validation, in the order in which they run.

A check takes the run's :class:`Context` and returns what it found; what does not hold raises CheckFailed with
one line.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jsonschema
import openai

from moet_w2 import audit_ranks
from moet_w2.errors import AuditError

from . import ready
from .calls import Answer, streamed, whole
from .target import Target

QUESTION, ANSWER = "What is 37 - 9?", 28
WEATHER_QUESTION, WEATHER_CITY = "What is the weather in Paris?", "Paris"
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
WEATHER_ARGUMENTS = WEATHER_TOOL["function"]["parameters"] | {"additionalProperties": False}
"""What the arguments must hold: stricter than what is sent, so that nothing made up passes."""

MARKUP = ("｜DSML｜", "<think>", "</think>", "<｜")
"""Text of the model's own markup that must never reach a client."""

IMPORTS = """
import json
from importlib.metadata import version
import moet_w2, vllm
print(json.dumps({"moet_w2": version("moet-w2"), "vllm": version("vllm")}))
"""


class CheckFailed(Exception):
    """A check does not hold; str() is the one line that says why."""


@dataclass(frozen=True)
class Context:
    """What every check needs: the target, a client of its API, and the time /health may take, in seconds."""

    target: Target
    client: openai.OpenAI
    health_limit: float


def check_import(context: Context) -> dict[str, Any]:
    """The extension and vLLM import here, in a process of their own, and vLLM is this project's build."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailed(f"moet_w2 and vllm do not import in {sys.executable}: {last}; set up with: make setup")
    versions = json.loads(done.stdout.strip().splitlines()[-1])
    if "+moet" not in versions["vllm"]:
        raise CheckFailed(f"vllm {versions['vllm']} is not this project's build; set it up with: make setup")
    return versions


def check_health(context: Context) -> dict[str, Any]:
    """The server answers /health in time."""
    try:
        return {"waited_seconds": round(ready.wait(context.target.base_url, context.health_limit), 2)}
    except ready.NotReady as error:
        raise CheckFailed(str(error)) from None


def check_models(context: Context) -> dict[str, Any]:
    """The server serves the model asked for, with the recipe's limit."""
    target, wanted = context.target, context.target.recipe.expect.max_model_len
    cards = {card.id: card for card in context.client.models.list().data}
    if target.model not in cards:
        raise CheckFailed(f"{target.base_url} serves {', '.join(cards) or 'nothing'}, not {target.model}")
    limit = getattr(cards[target.model], "max_model_len", None)
    if limit != wanted:
        raise CheckFailed(f"max_model_len of {target.model} is {limit}, the recipe expects {wanted}")
    return {"model": target.model, "max_model_len": limit}


def check_audit(context: Context) -> dict[str, Any]:
    """Every field of the audit agrees with the recipe that served."""
    return judge_audit(context.target)


def judge_audit(target: Target) -> dict[str, Any]:
    """The same, without a client: the main facts of an audit that agrees.

    Raises:
        CheckFailed: the recipe is not the served one, or the audit is missing or disagrees with it.
    """
    if target.stale:
        raise CheckFailed(target.stale)
    if target.audit_path is None:
        return {"judged": False, "reason": "the server runs without W2"}
    try:
        documents = audit_ranks.load(target.audit_path)
    except AuditError as error:
        raise CheckFailed(str(error)) from None
    problems = audit_ranks.check(documents, target.recipe)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckFailed(f"{problems[0].removeprefix('audit: ')}{more}")
    bytes_of = {
        name: sum(document[name] for document in documents)
        for name in ("mapped_bytes", "w2_bytes", "redundant_gpu_w2_bytes")
    }
    return {
        "judged": True,
        "mapped_layers": documents[0]["allocated_mapped_layers"],
        "w2_layers": len(documents[0]["layers"]),
        **bytes_of,
    }


def check_arithmetic(context: Context) -> dict[str, Any]:
    """One sum is answered, to its end."""
    answer = whole(context.client, context.target, QUESTION)
    _clean(answer)
    if answer.finish_reason != "stop":
        raise CheckFailed(f"{QUESTION!r} ended with finish_reason {answer.finish_reason!r}, not 'stop'")
    numbers = re.findall(r"-?\d+", answer.content)
    if not numbers or int(numbers[-1]) != ANSWER:
        raise CheckFailed(f"{QUESTION!r} was answered {_shorten(answer.content)}, not {ANSWER}")
    return {"question": QUESTION, "answer": answer.content.strip(), "finish_reason": answer.finish_reason}


def check_tool_call(context: Context) -> dict[str, Any]:
    """One tool is called, with arguments that hold its schema, and a stream says the same."""
    found = {}
    for form, ask in (("whole", whole), ("streamed", streamed)):
        answer = ask(context.client, context.target, WEATHER_QUESTION, [WEATHER_TOOL])
        found[form] = _call(form, answer)
    if found["whole"] != found["streamed"]:
        raise CheckFailed(f"the streamed call {found['streamed']} differs from the whole one {found['whole']}")
    name, arguments = found["whole"]
    return {"question": WEATHER_QUESTION, "name": name, "arguments": arguments}


CHECKS: dict[str, Callable[[Context], dict[str, Any]]] = {
    "import": check_import,
    "health": check_health,
    "models": check_models,
    "audit": check_audit,
    "arithmetic": check_arithmetic,
    "tool_call": check_tool_call,
}


def _call(form: str, answer: Answer) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the one call that an answer must hold."""
    _clean(answer)
    function = WEATHER_TOOL["function"]
    if len(answer.calls) != 1:
        said = f" and the text {_shorten(answer.content)}" if answer.content else ""
        raise CheckFailed(f"{form} answer to {WEATHER_QUESTION!r} has {len(answer.calls)} calls{said}, not one")
    name, text = answer.calls[0]
    if name != function["name"]:
        raise CheckFailed(f"{form} answer calls {name!r}, not {function['name']!r}")
    try:
        arguments = json.loads(text)
        jsonschema.validate(arguments, WEATHER_ARGUMENTS)
    except ValueError as error:
        raise CheckFailed(f"{form} call's arguments {_shorten(text)} are not JSON: {error}") from None
    except jsonschema.ValidationError as error:
        raise CheckFailed(f"{form} call's arguments {_shorten(text)} break the schema: {error.message}") from None
    if WEATHER_CITY not in arguments["city"]:
        raise CheckFailed(f"{form} call's arguments {_shorten(text)} do not name {WEATHER_CITY}")
    if answer.finish_reason != "tool_calls":
        raise CheckFailed(f"{form} call ended with finish_reason {answer.finish_reason!r}, not 'tool_calls'")
    return name, arguments


def _clean(answer: Answer) -> None:
    for text in (answer.content, *(arguments for _, arguments in answer.calls)):
        for mark in MARKUP:
            if mark in text:
                raise CheckFailed(f"the model's markup {mark!r} leaked into the answer {_shorten(text)}")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")
