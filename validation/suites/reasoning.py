"""Reasoning: problems with one right answer, a rubric for the way to it, and a fixed correction turn at the end.

The run checks what a machine can: the answer, that it ended, that it did not go round in circles. The way to the answer
is graded blind: :mod:`validation.grading.packet` makes the packet, :mod:`validation.grading.score` the score.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from validation.core.answer import Answer, faults, shorten
from validation.core.casefile import CaseSet, Name, Section, Text
from validation.core.loops import repetition
from validation.core.plan import Fault, Invocation, Planned, Suite, Unit
from validation.core.talk import Record, Talk

ANSWER_LINE = re.compile(r"^\W*answer\W*:\s*(.+?)\s*$", re.I | re.M)


class Check(Section):
    """What a machine can say about an answer's content. At least one must be given, and all that are must hold.

    Attributes:
        answer: what the last line that begins with "ANSWER:" says; case, spaces and marks around it do not count.
        last_number: the last whole number in the content.
        matches: regular expressions, each of which is found somewhere.
        absent: regular expressions, none of which is.
    """

    answer: Text | None = None
    last_number: int | None = None
    matches: list[Text] = Field(default_factory=list)
    absent: list[Text] = Field(default_factory=list)

    @model_validator(mode="after")
    def _something(self) -> Check:
        if self == Check.model_construct():
            raise ValueError("a check that checks nothing")
        for pattern in (*self.matches, *self.absent):
            re.compile(pattern)
        return self

    def fault(self, content: str) -> str | None:
        """Why it does not hold, or None."""
        if self.answer is not None:
            lines = ANSWER_LINE.findall(content)
            if not lines:
                return f"no line says 'ANSWER: ...': {shorten(content[-80:])}"
            if plain(lines[-1]) != plain(self.answer):
                return f"the answer is {shorten(lines[-1])}, not {self.answer!r}"
        if self.last_number is not None:
            numbers = re.findall(r"-?\d+", content)
            if numbers[-1:] != [str(self.last_number)]:
                return f"the last number of {shorten(content[-80:])} is not {self.last_number}"
        for pattern in self.matches:
            if not re.search(pattern, content, re.I):
                return f"nothing in {shorten(content)} matches {pattern!r}"
        for pattern in self.absent:
            if found := re.search(pattern, content, re.I):
                return f"{shorten(found[0])} stands in it"
        return None


class Correction(Section):
    """The second turn: the same words whatever the first answer was."""

    prompt: Text
    check: Check
    reference: Text


class Case(Section):
    """A problem. ``reference`` is what graders read; the model never sees it."""

    id: Name
    title: Text
    prompt: Text
    check: Check
    reference: Text
    correction: Correction | None = None


class ReasoningSet(CaseSet):
    """The set: ``expects_thinking`` says whether thinking must come."""

    expects_thinking: bool
    seed: int
    cases: list[Case] = Field(min_length=1)


def plain(text: str) -> str:
    """An answer without what does not count: case, spaces, marks of Markdown and of the end of a sentence."""
    return re.sub(r"[\s*_`$\\]+", "", text).rstrip(".!").casefold()


class Reasoning(Suite):
    """The suite."""

    name = "reasoning"
    about = "Reasoning suite: problems asked one by one, recorded whole, checked by machine, ready for blind grading."
    cases = ReasoningSet
    gates: ClassVar[dict[str, str]] = {
        "solved": "the answer is the right one",
        "thought": "thinking came where the set expects it, and only there",
        "steady": "neither thinking nor answer goes round in a loop",
    }

    def plan(self, cases: ReasoningSet, options: dict[str, Any], limit: int | None) -> Planned:
        kinds = ((case, "correction" if case.correction else "single") for case in cases.cases)
        return Planned([Unit(case.id, (Invocation(case.id, kind, case, cases.seed),)) for case, kind in kinds])

    def perform(self, invocation: Invocation, cases: ReasoningSet, talk: Talk) -> list[Fault]:
        case: Case = invocation.case
        options = cases.settings.body() | {"seed": invocation.seed}
        messages: list[dict[str, Any]] = [{"role": "user", "content": case.prompt}]
        first = talk.chat(messages, **options)
        found = _judge(first.answer, first.status, first.body, case.check, cases, talk)
        if case.correction is None or first.status != 200:
            return found
        messages += [first.answer.message(), {"role": "user", "content": case.correction.prompt}]
        second = talk.chat(messages, **options)
        return found + _judge(second.answer, second.status, second.body, case.correction.check, cases, talk)

    def measures(self, records: Sequence[tuple[Invocation, Record]]) -> dict[str, Any]:
        answers = [exchange for _, record in records for exchange in record.exchanges]
        tokens = sum((exchange.answer.usage or {}).get("completion_tokens", 0) for exchange in answers)
        seconds = sum(exchange.seconds for exchange in answers)
        return {
            "requests": len(answers),
            "completion_tokens": tokens,
            "client_seconds": round(seconds, 3),
            "client_completion_tokens_per_second": round(tokens / seconds, 2) if seconds else None,
        }


def _judge(
    answer: Answer, status: int, body: str | None, check: Check, cases: ReasoningSet, talk: Talk
) -> list[Fault]:
    found = faults(answer, status, body)
    if status != 200:
        return found
    if wrong := check.fault(answer.content):
        found.append(Fault("solved", wrong))
    if bool(answer.thought) != cases.expects_thinking:
        found.append(Fault("thought", "no thinking came" if cases.expects_thinking else "thinking came unasked"))
    for name, text in (("thinking", answer.thought), ("answer", answer.content)):
        if (loop := repetition(text)) is not None:
            talk.happened("repetition", where=name, **loop)
            found.append(Fault("steady", f"{name} says {shorten(loop['text'], 40)} {loop['times']} times in a row"))
    return found
