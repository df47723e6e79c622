"""A recording with a stated edit: how it is shown that a gate fails.

    about: the second call names another city
    from: ../demo                  # a run's folder, from this file
    edits:
      - invocation: weather-paris#7
        exchange: 1                # from 1; default 1
        set: {calls: [{name: get_weather, arguments: '{"city": "Rome"}'}]}
      - invocation: sum-1
        drop: true                 # as if it had never been asked
      - invocation: depth-half
        facts: {prompt.tokens: 3}  # a fact, or a member of one
    fails: [arguments]             # the gates that fail then, and no others

``set`` takes any of status, reasoning, reasoning_content, content, calls, finish_reason, usage, token_ids, ended.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from moet_w2 import recipe_errors

from .answer import Answer
from .casefile import Section, Text, first_problem
from .errors import ReplayError
from .talk import Record
from .wire import Exchange

SETTABLE = (
    "reasoning",
    "reasoning_content",
    "content",
    "calls",
    "finish_reason",
    "usage",
    "token_ids",
    "ended",
    "error",
)


class Edit(Section):
    """One change."""

    invocation: Text
    exchange: int = Field(default=1, ge=1)
    set: dict[str, Any] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    drop: bool = False
    drop_exchange: bool = False


class Derived(Section):
    """The file."""

    about: Text
    source: Text = Field(alias="from")
    edits: list[Edit] = Field(min_length=1)
    fails: list[Text]


def load(path: Path) -> Derived:
    """Read the file. Raises ReplayError if it is none."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=recipe_errors.UniqueKeyLoader)
        return Derived.model_validate(data)
    except OSError as error:
        reason = str(error.strerror)
    except ValidationError as error:
        reason = first_problem(error)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
    raise ReplayError(f"{path} is no derived recording: {reason}; name a run's folder, or a file that is one")


def apply(records: dict[str, Record], edits: list[Edit]) -> dict[str, Record]:
    """Copies of the records, edited.

    Raises:
        ReplayError: an edit names what is not there.
    """
    edited = copy.deepcopy(records)
    for edit in edits:
        if edit.invocation not in edited:
            raise ReplayError(f"{edit.invocation} is no invocation of the recording; correct the edit")
        if edit.drop:
            del edited[edit.invocation]
            continue
        record = edited[edit.invocation]
        for place, value in edit.facts.items():
            *parents, key = place.split(".")
            section = record.facts
            for parent in parents:
                section = section[parent]
            section[key] = value
        if edit.exchange > len(record.exchanges):
            raise ReplayError(f"{edit.invocation} has {len(record.exchanges)} exchanges; correct the edit")
        if edit.drop_exchange:
            del record.exchanges[edit.exchange - 1 :]
        elif edit.set:
            record.exchanges[edit.exchange - 1] = _edited(record.exchanges[edit.exchange - 1], edit.set)
    return edited


def _edited(exchange: Exchange, changes: dict[str, Any]) -> Exchange:
    if unknown := set(changes) - {*SETTABLE, "status"}:
        raise ReplayError(f"{sorted(unknown)[0]} cannot be set; allowed are status, {', '.join(SETTABLE)}")
    if "status" in changes:
        return replace(exchange, status=changes["status"], lines=[], body="an edited answer")
    fields = asdict(exchange.answer)
    for call in changes.get("calls", ()):
        call.setdefault("id", "edited")
    fields |= changes
    end = exchange.lines[-1][0] if exchange.lines else 0.0
    return replace(exchange, lines=[(end, line) for line in stream_lines(fields)])


def stream_lines(fields: dict[str, Any]) -> list[str]:
    """The shortest stream that says this.

    Args:
        fields: those of an :class:`Answer`, as ``asdict`` gives them.
    """
    texts = {name: fields[name] for name in ("reasoning", "reasoning_content", "content") if fields[name]}
    calls = [
        {
            "index": index,
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for index, call in enumerate(fields["calls"])
    ]
    delta = {"role": "assistant", **texts} | ({"tool_calls": calls} if calls else {})
    choice = {"index": 0, "delta": delta, "finish_reason": fields["finish_reason"]}
    if fields["token_ids"]:
        choice["token_ids"] = fields["token_ids"]
    chunks: list[dict[str, Any]] = [{"choices": [choice]}]
    if fields["usage"]:
        chunks.append({"choices": [], "usage": fields["usage"]})
    if fields["error"]:
        chunks.append({"error": {"message": fields["error"]}})
    told = [f"data: {json.dumps(chunk, ensure_ascii=False)}" for chunk in chunks]
    return told + (["data: [DONE]"] if fields["ended"] else [])


def spoken(**fields: Any) -> list[str]:
    """The stream of a whole answer that says this and is otherwise as a right one is."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    plain = asdict(Answer(ended=True, finish_reason="stop", usage=usage))
    for call in fields.get("calls", ()):
        call.setdefault("id", "call-1")
    return stream_lines(plain | fields)
