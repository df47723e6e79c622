"""Agentic control: a task that takes a fixed number of turns and calls over a mock world, and leaves a file behind.

Every conversation has a cache salt of its own: its first turn finds nothing cached, its later ones what is their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from validation.core.answer import faults, shorten
from validation.core.casefile import CaseSet, Name, Section, Text
from validation.core.plan import Fault, Invocation, Planned, Suite, Unit
from validation.core.talk import Record, Talk
from validation.dsml_cases import canonical

from .reasoning import Check
from .tools import definition
from .world import World, WorldTool


class Turn(Section):
    """What the user says next; ``fresh`` begins a new conversation in the same world."""

    user: Text
    fresh: bool = False


class Artefact(Section):
    """The file that must be there at the end, and its content as JSON."""

    file: Text
    equals: Any


class Case(Section):
    """A task.

    Attributes:
        files: the world at the start.
        user: what the user says, in turn.
        calls: names of the calls that must be made, in order.
        turns: answers of the model in all, the last of each conversation included.
        artefact: what must be there at the end.
        check: of the last answer.
    """

    id: Name
    system: Text | None = None
    files: dict[str, str] = Field(default_factory=dict)
    user: list[Turn] = Field(min_length=1)
    calls: list[Text]
    turns: int = Field(gt=0)
    artefact: Artefact
    check: Check
    seed: int


class AgenticSet(CaseSet):
    """The tools and the tasks; a task is given up ``spare_turns`` after it should have ended."""

    tools: dict[str, WorldTool]
    spare_turns: int = Field(default=2, ge=0)
    cases: list[Case] = Field(min_length=1)


class Agentic(Suite):
    """The suite."""

    name = "agentic"
    about = "Agentic control: a tool loop of fixed length that leaves an artefact."
    cases = AgenticSet
    gates: ClassVar[dict[str, str]] = {
        "calls": "the calls are made in the order that the task gives, one a turn",
        "schema": "each call's arguments hold its tool's schema",
        "turns": "the task takes the turns that it should",
        "artefact": "the file that is left behind holds exactly what it must",
        "told": "the last answer says the result",
    }

    def plan(self, cases: AgenticSet, options: dict[str, Any], limit: int | None) -> Planned:
        return Planned([Unit(case.id, (Invocation(case.id, "task", case, case.seed),)) for case in cases.cases])

    def perform(self, invocation: Invocation, cases: AgenticSet, talk: Talk) -> list[Fault]:
        case: Case = invocation.case
        world = World(case.files, cases.tools)
        options = cases.settings.body() | {"seed": case.seed, "tools": [definition(cases, n) for n in cases.tools]}
        start = [{"role": "system", "content": case.system}] if case.system else []
        messages, found, called, turns, content = list(start), [], [], 0, ""
        for number, turn in enumerate(case.user):
            messages = list(start) if turn.fresh else messages
            messages.append({"role": "user", "content": turn.user})
            while True:
                if turns == case.turns + cases.spare_turns:
                    text = f"the task has not ended after {turns} turns; {case.turns} are right"
                    return [*found, Fault("turns", text)]
                asked = talk.chat(messages, f"-{number}" if turn.fresh else "", **options)
                turns += 1
                answer = asked.answer
                found += faults(answer, asked.status, asked.body, ("stop", "tool_calls"))
                if asked.status != 200:
                    return found
                messages.append(answer.message())
                if len(answer.calls) > 1:
                    found.append(Fault("calls", f"turn {turns} makes {len(answer.calls)} calls"))
                for call in answer.calls:
                    result, wrong = world.call(call)
                    if wrong:
                        found.append(Fault("schema", wrong))
                    called.append(call.name)
                    talk.happened("call", turn=turns, name=call.name, arguments=call.arguments, result=result)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                if not answer.calls:
                    talk.happened("answer", turn=turns)
                    content = answer.content
                    break
        return found + _end(case, world, called, turns, content)

    def measures(self, records: Sequence[tuple[Invocation, Record]]) -> dict[str, Any]:
        return {
            invocation.id: {
                "turns": len(record.exchanges),
                "calls": sum(event["event"] == "call" for event in record.loop),
                "client_seconds": round(sum(exchange.seconds for exchange in record.exchanges), 3),
            }
            for invocation, record in records
        }


def _end(case: Case, world: World, called: list[str], turns: int, content: str) -> list[Fault]:
    found = []
    if called != case.calls:
        found.append(Fault("calls", f"the calls are {called}, not {case.calls}"))
    if turns != case.turns:
        found.append(Fault("turns", f"the task took {turns} turns, not {case.turns}"))
    left = world.artefact(case.artefact.file)
    if canonical(left) != canonical(case.artefact.equals):
        told = json.dumps(left, ensure_ascii=False)
        found.append(Fault("artefact", f"{case.artefact.file} holds {shorten(told)}, not what it must"))
    if wrong := case.check.fault(content):
        found.append(Fault("told", wrong))
    return found
