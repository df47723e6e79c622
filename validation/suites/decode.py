"""Natural decode control: text as the model writes it by itself, kept as token ids with their digest.

Nothing forces a length or forbids an end, so the rate is that of ordinary text. Each repeat has its own cache salt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from validation.core import digest
from validation.core.answer import Answer, faults, shorten
from validation.core.casefile import CaseSet, Name, Section, Text
from validation.core.loops import repetition
from validation.core.plan import Fault, Invocation, Planned, Suite, Unit
from validation.core.talk import Record, Talk
from validation.core.wire import Server


class Case(Section):
    """A prompt.

    Attributes:
        repeats: how often it is asked; ``same`` says whether different token ids are a fault or only told.
        ids_sha256: digest of the token ids that must come, where they are known.
        at_least: tokens below which an answer is no sample of decoding.
    """

    id: Name
    prompt: Text
    seed: int
    repeats: int = Field(default=2, ge=1)
    same: Literal["gate", "told"] = "told"
    ids_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    at_least: int = Field(default=1, ge=1)


class DecodeSet(CaseSet):
    """The prompts."""

    cases: list[Case] = Field(min_length=1)


class Decode(Suite):
    """The suite."""

    name = "decode"
    about = "Natural decode control: token ids and digests of text that the model ends by itself."
    cases = DecodeSet
    gates: ClassVar[dict[str, str]] = {
        "ids": "every token came with its id, as many as the usage says",
        "spelt": "the ids spell the text that the client got",
        "enough": "the answer is long enough to be a sample",
        "steady": "the text does not go round in a loop",
        "repeated": "repeats give the same token ids, where the case demands it",
        "digest": "the token ids are the known ones, where the case names their digest",
    }

    def plan(self, cases: DecodeSet, options: dict[str, Any], limit: int | None) -> Planned:
        return Planned([Unit(case.id, (Invocation(case.id, "prompt", case, case.seed),)) for case in cases.cases])

    def perform(self, invocation: Invocation, cases: DecodeSet, talk: Talk) -> list[Fault]:
        case: Case = invocation.case
        options = cases.settings.body() | {"seed": case.seed, "return_token_ids": True}
        found: list[Fault] = []
        digests: list[str] = []
        for number in range(case.repeats):
            asked = talk.chat([{"role": "user", "content": case.prompt}], f"-{number}", **options)
            found += faults(asked.answer, asked.status, asked.body, ("stop", "length"))
            if asked.status != 200:
                continue
            ids = asked.answer.token_ids
            spelt = talk.fact(f"spelt {number}", lambda server, ids=ids: _spell(server, talk.model, ids))
            found += _judge(case, asked.answer, spelt)
            digests.append(digest.of_json(ids))
            talk.happened("decoded", tokens=len(ids), ids_sha256=digests[-1])
        if case.same == "gate" and len(set(digests)) > 1:
            found.append(Fault("repeated", f"{len(set(digests))} different answers in {len(digests)} repeats"))
        return found

    def measures(self, records: Sequence[tuple[Invocation, Record]]) -> dict[str, Any]:
        return {invocation.id: [_numbers(e.answer) for e in record.exchanges] for invocation, record in records}


def _spell(server: Server, model: str, ids: list[int]) -> str:
    return server.post("/detokenize", {"model": model, "tokens": ids})["prompt"] if ids else ""


def _judge(case: Case, answer: Answer, spelt: str) -> list[Fault]:
    found = []
    usage = answer.usage or {}
    if len(answer.token_ids) != usage.get("completion_tokens"):
        count = usage.get("completion_tokens")
        found.append(Fault("ids", f"{len(answer.token_ids)} ids came, the usage counts {count} tokens"))
    for name, text in (("thinking", answer.thought), ("content", answer.content)):
        if text.strip() not in spelt:
            found.append(Fault("spelt", f"{name} {shorten(text)} is not what the ids spell: {shorten(spelt)}"))
    if len(answer.token_ids) < case.at_least:
        found.append(Fault("enough", f"{len(answer.token_ids)} tokens, {case.at_least} are wanted"))
    for text in (answer.thought, answer.content):
        if (loop := repetition(text)) is not None:
            found.append(Fault("steady", f"it says {shorten(loop['text'], 40)} {loop['times']} times in a row"))
    if case.ids_sha256 is not None and digest.of_json(answer.token_ids) != case.ids_sha256:
        found.append(Fault("digest", f"the ids' digest is {digest.of_json(answer.token_ids)}, not {case.ids_sha256}"))
    return found


def _numbers(answer: Answer) -> dict[str, Any]:
    """Client-derived: seconds to the first token, and tokens a second after it."""
    seconds = [second for second, name in answer.events if name.startswith("first ")]
    first, last, tokens = min(seconds, default=None), answer.at("finish"), len(answer.token_ids)
    rate = round((tokens - 1) / (last - first), 2) if first is not None and last is not None and last > first else None
    return {"tokens": tokens, "client_ttft_seconds": first, "client_decode_tokens_per_second": rate}
