"""Tools: the right tool with exactly the right arguments, over local mock tools, with repeats and three at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import jsonschema
from pydantic import Field, field_validator, model_validator

from validation.core.answer import Answer, faults, shorten
from validation.core.casefile import CaseSet, Name, Section, Text
from validation.core.plan import Fault, Invocation, Planned, Suite, Unit
from validation.core.talk import Record, Talk
from validation.dsml_cases import canonical


class Tool(Section):
    """A mock tool: what the model is told, and what it returns whatever it is given."""

    description: Text
    parameters: dict[str, Any]
    returns: Text = '{"status": "ok"}'

    @field_validator("parameters")
    @classmethod
    def _schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise ValueError(f"no JSON schema: {error.message}") from None
        if schema.get("type") != "object":
            raise ValueError("arguments are an object: type: object")
        return schema


class ExpectedCall(Section):
    """A call that must be made."""

    name: str
    arguments: dict[str, Any]


class Case(Section):
    """A request and the calls that are right for it.

    Attributes:
        tools: those on offer, in this order.
        calls: none means that no tool may be called.
        any_order: the calls may come in any order.
        then: words of which each must stand in the answer to the mock results; empty: results are not sent.
    """

    id: Name
    user: Text
    system: Text | None = None
    tools: list[str] = Field(min_length=1)
    calls: list[ExpectedCall]
    any_order: bool = False
    then: list[Text] = Field(default_factory=list)


class ToolsSet(CaseSet):
    """The set: one smoke case, measured cases once a seed, and cases that are asked at the same time."""

    tools: dict[str, Tool]
    cases: list[Case]
    smoke: Name
    measured: list[Name]
    seeds: list[int] = Field(min_length=1)
    concurrent: list[Name]

    @model_validator(mode="after")
    def _known(self) -> ToolsSet:
        known = {case.id for case in self.cases}
        for name in (self.smoke, *self.measured, *self.concurrent):
            if name not in known:
                raise ValueError(f"{name} is no case")
        for case in self.cases:
            for name in (*case.tools, *(call.name for call in case.calls)):
                if name not in self.tools:
                    raise ValueError(f"{case.id}: no tool {name}")
            for call in case.calls:
                if call.name not in case.tools:
                    raise ValueError(f"{case.id}: {call.name} is not on offer")
                if wrong := schema_fault(self.tools[call.name].parameters, call.arguments):
                    raise ValueError(f"{case.id}: the expected arguments of {call.name} break its schema: {wrong}")
        return self


def schema_fault(schema: dict[str, Any], arguments: Any) -> str | None:
    """How arguments break a tool's schema, or None; what it does not declare may not be there."""
    strict = {"additionalProperties": False} | schema
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(strict).iter_errors(arguments))
    return error.message if error else None


class Tools(Suite):
    """The suite."""

    name = "tools"
    about = "Tool suite: exact tool selection and arguments over local mock tools."
    cases = ToolsSet
    gates: ClassVar[dict[str, str]] = {
        "selection": "the calls are those that the case names, no more and no less",
        "arguments": "each call's arguments are exactly the expected ones, types included",
        "schema": "each call's arguments are JSON that holds the tool's schema and nothing else",
        "used": "the answer to the mock results says what they say",
    }

    def plan(self, cases: ToolsSet, options: dict[str, Any], limit: int | None) -> Planned:
        by_id = {case.id: case for case in cases.cases}
        first = Invocation(f"smoke-{cases.smoke}", "smoke", by_id[cases.smoke], cases.seeds[0])
        units = [Unit(first.id, (first,), stop_on_fault=True)]
        for seed in cases.seeds:
            for name in cases.measured:
                invocation = Invocation(f"{name}-seed{seed}", "measured", by_id[name], seed)
                units.append(Unit(invocation.id, (invocation,)))
        together = tuple(
            Invocation(f"concurrent{number}-{name}", "concurrent", by_id[name], cases.seeds[0])
            for number, name in enumerate(cases.concurrent, 1)
        )
        return Planned([*units, Unit("concurrent", together)] if together else units)

    def perform(self, invocation: Invocation, cases: ToolsSet, talk: Talk) -> list[Fault]:
        case: Case = invocation.case
        options = cases.settings.body() | {"seed": invocation.seed, "tools": [definition(cases, n) for n in case.tools]}
        messages = [{"role": "system", "content": case.system}] if case.system else []
        messages.append({"role": "user", "content": case.user})
        asked = talk.chat(messages, **options)
        found = faults(asked.answer, asked.status, asked.body, ("tool_calls",) if case.calls else ("stop",))
        if asked.status == 200:
            found += judge_calls(asked.answer, case.calls, cases.tools, case.any_order)
        if found or not case.then:
            return found
        messages.append(asked.answer.message())
        for call in asked.answer.calls:
            result = cases.tools[call.name].returns
            talk.happened("call", name=call.name, arguments=call.arguments, result=result)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        told = talk.chat(messages, **options)
        found = faults(told.answer, told.status, told.body)
        missing = [word for word in case.then if word.casefold() not in told.answer.content.casefold()]
        if missing:
            found.append(Fault("used", f"{missing[0]!r} is not in {shorten(told.answer.content)}"))
        return found

    def measures(self, records: Sequence[tuple[Invocation, Record]]) -> dict[str, Any]:
        kinds = Counter(invocation.kind for invocation, _ in records)
        tokens = seconds = 0.0
        for _, record in records:
            tokens += sum((exchange.answer.usage or {}).get("completion_tokens", 0) for exchange in record.exchanges)
            seconds += sum(exchange.seconds for exchange in record.exchanges)
        return {
            "invocations": dict(sorted(kinds.items())),
            "completion_tokens": int(tokens),
            "client_request_seconds": round(seconds, 3),
        }


def definition(cases: ToolsSet, name: str) -> dict[str, Any]:
    """A tool as the request names it."""
    tool = cases.tools[name]
    return {
        "type": "function",
        "function": {"name": name, "description": tool.description, "parameters": tool.parameters},
    }


def judge_calls(answer: Answer, wanted: list[ExpectedCall], tools: dict[str, Tool], any_order: bool) -> list[Fault]:
    """Selection, schema and arguments of an answer's calls."""
    names, expected = [call.name for call in answer.calls], [call.name for call in wanted]
    if (sorted(names) if any_order else names) != (sorted(expected) if any_order else expected):
        said = f" and says {shorten(answer.content)}" if answer.content else ""
        return [Fault("selection", f"it calls {names}, not {expected}{said}")]
    found, given = [], []
    for call in answer.calls:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            found.append(Fault("schema", f"arguments of {call.name} are no JSON: {shorten(call.arguments)}"))
            continue
        if wrong := schema_fault(tools[call.name].parameters, arguments):
            found.append(Fault("schema", f"arguments of {call.name} break its schema: {wrong}"))
        given.append((call.name, arguments))
    if found:
        return found
    left = list(wanted)
    for name, arguments in given:
        same_name = [call for call in left if call.name == name]
        candidates = same_name if any_order else left[:1]
        match = next((call for call in candidates if canonical(call.arguments) == canonical(arguments)), None)
        if match is None:
            told, wish = (json.dumps(value, ensure_ascii=False) for value in (arguments, candidates[0].arguments))
            return [Fault("arguments", f"{name} gets {shorten(told)}, not {shorten(wish)}")]
        left.remove(match)
    return []
