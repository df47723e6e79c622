"""Needle: one sentence at an exact token of a prompt of exact length is found again, and the server goes on after it.

Lengths are those that the server renders, checked against the usage that it reports. The longest takes a quarter of an
hour before its first token, so it is asked for only with --acknowledge-full-run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from validation.core.answer import faults, shorten
from validation.core.casefile import CaseSet, Name, Section, Text
from validation.core.errors import RunError
from validation.core.plan import Fault, Invocation, Planned, Suite, Unit
from validation.core.talk import Record, Talk

from . import haystack
from .reasoning import Check

LONGEST = 994_987
FLAG = "--acknowledge-full-run"


class Case(Section):
    """A length and a place.

    Attributes:
        tokens: of the whole rendered prompt.
        position: token of the prompt, from 0, at which the needle begins; else ``depth``, a share of ``tokens``.
        seed: draws the filler.
        full: asked only with the acknowledgement.
    """

    id: Name
    tokens: int = Field(gt=0, le=LONGEST)
    position: int | None = Field(default=None, gt=0)
    depth: float | None = Field(default=None, gt=0, lt=1)
    seed: int
    full: bool = False

    @model_validator(mode="after")
    def _placed(self) -> Case:
        if (self.position is None) == (self.depth is None):
            raise ValueError("give position or depth")
        if self.start >= self.tokens:
            raise ValueError(f"position {self.start} is beyond the {self.tokens} tokens")
        return self

    @property
    def start(self) -> int:
        """The token at which the needle begins."""
        return self.position if self.position is not None else int(self.tokens * self.depth)


class FollowUp(Section):
    """A short request right after, in a conversation of its own."""

    prompt: Text
    check: Check


class NeedleSet(CaseSet):
    """The words that all lengths share, and the lengths.

    Attributes:
        needle, question, secret: the sentence, what is asked at the end, and what the answer must hold.
        pads: candidates for one-token padding.
        acknowledge_from: tokens from which a length of one's own needs the acknowledgement as well.
    """

    filler: list[Text] = Field(min_length=1)
    needle: Text
    question: str
    secret: Text
    pads: list[str] = Field(min_length=1)
    acknowledge_from: int
    follow_up: FollowUp
    cases: list[Case] = Field(min_length=1)

    def text(self, seed: int) -> haystack.Text:
        """The words of one length."""
        return haystack.Text(tuple(self.filler), self.needle, self.question, seed)


class Needle(Suite):
    """The suite."""

    name = "needle"
    about = "Needle suite: exact prompt length, exact place, any length up to 994,987 tokens."
    cases = NeedleSet
    gates: ClassVar[dict[str, str]] = {
        "exact": "the prompt has exactly the wanted tokens, rendered and in the usage",
        "placed": "the needle begins at exactly the wanted token",
        "retrieved": "what was hidden stands in reasoning, reasoning_content or content",
        "told": "it stands in the content",
        "followed": "the short request right after is answered right",
    }

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--tokens", type=int, metavar="N", help="one prompt of this length instead of the set's")
        parser.add_argument("--position", type=int, metavar="P", help="with --tokens: where; default: the middle")
        parser.add_argument(FLAG, action="store_true", help="ask the full length too: about 16 minutes to a token")

    def options(self, args: argparse.Namespace) -> dict[str, Any]:
        if args.position is not None and args.tokens is None:
            raise RunError("--position needs --tokens; give both")
        return {"tokens": args.tokens, "position": args.position, "acknowledged": args.acknowledge_full_run}

    def plan(self, cases: NeedleSet, options: dict[str, Any], limit: int | None) -> Planned:
        chosen, left_out = list(cases.cases), {}
        if (tokens := options["tokens"]) is not None:
            chosen = [_own(cases, tokens, options["position"])]
        units = []
        for case in chosen:
            answer = cases.settings.max_tokens
            if limit is not None and case.tokens + answer > limit:
                left_out[case.id] = f"{case.tokens:,} tokens and {answer:,} of answer are over the server's {limit:,}"
            elif case.full and not options["acknowledged"]:
                left_out[case.id] = f"{case.tokens:,} tokens take long; {FLAG} asks for them"
            else:
                units.append(Unit(case.id, (Invocation(case.id, "full" if case.full else "length", case, case.seed),)))
        return Planned(units, left_out)

    def perform(self, invocation: Invocation, cases: NeedleSet, talk: Talk) -> list[Fault]:
        case: Case = invocation.case
        text, options = cases.text(case.seed), cases.settings.body()
        template = options.get("chat_template_kwargs", {})
        made = talk.fact(
            "prompt",
            lambda server: haystack.Builder(
                haystack.renderer(server, talk.model, template), text, tuple(cases.pads)
            ).build(case.tokens, case.start),
        )
        content = text.content(haystack.Shape(**made["shape"]))
        asked = talk.chat([{"role": "user", "content": content}], seed=case.seed, **options)
        after = talk.chat([{"role": "user", "content": cases.follow_up.prompt}], "-after", seed=case.seed, **options)
        found = faults(asked.answer, asked.status, asked.body)
        if asked.status == 200:
            found += _lengths(case, made, asked.answer.usage or {})
            where = list(haystack.fields(asked.answer, cases.secret))
            talk.happened("needle", found_in=where)
            if not where:
                said = shorten(asked.answer.content or asked.answer.thought)
                found.append(Fault("retrieved", f"{cases.secret!r} stands nowhere in the answer {said}"))
            if "content" not in where:
                found.append(Fault("told", f"{cases.secret!r} is not in the content {shorten(asked.answer.content)}"))
        found += faults(after.answer, after.status, after.body)
        if after.status == 200 and (wrong := cases.follow_up.check.fault(after.answer.content)):
            found.append(Fault("followed", wrong))
        return found

    def measures(self, records: Sequence[tuple[Invocation, Record]]) -> dict[str, Any]:
        return {invocation.id: _numbers(record) for invocation, record in records if record.exchanges}


def _own(cases: NeedleSet, tokens: int, position: int | None) -> Case:
    """A case of a length that was given by flag."""
    if not 0 < tokens <= LONGEST:
        raise RunError(f"--tokens {tokens} is not from 1 to {LONGEST:,}")
    if position is not None and not 0 < position < tokens:
        raise RunError(f"--position {position} is not within the {tokens} tokens")
    place = {"position": position} if position is not None else {"depth": 0.5}
    full = tokens >= cases.acknowledge_from
    return Case(id=f"tokens-{tokens}", tokens=tokens, seed=cases.cases[0].seed, full=full, **place)


def _lengths(case: Case, made: dict[str, Any], usage: dict[str, Any]) -> list[Fault]:
    found = []
    for name, tokens in (("rendered", made["tokens"]), ("by its usage", usage.get("prompt_tokens"))):
        if tokens != case.tokens:
            found.append(Fault("exact", f"the prompt has {tokens} tokens {name}, not {case.tokens}"))
    if made["position"] != case.start:
        found.append(Fault("placed", f"the needle begins at token {made['position']}, not {case.start}"))
    return found


def _numbers(record: Record) -> dict[str, Any]:
    """Client-derived rates; the server's own counters are not among them."""
    exchange = record.exchanges[0]
    answer, usage = exchange.answer, exchange.answer.usage or {}
    firsts = [answer.at(f"first {name}") for name in ("reasoning", "reasoning_content", "content")]
    first = min((seconds for seconds in firsts if seconds is not None), default=None)
    prompt, decoded = usage.get("prompt_tokens"), usage.get("completion_tokens")
    rest = None if first is None else exchange.seconds - first
    return {
        "exercised_prompt_tokens": prompt,
        "cached_prompt_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        "completion_tokens": decoded,
        "client_ttft_seconds": first,
        "client_prompt_tokens_per_ttft_second": round(prompt / first, 2) if prompt and first else None,
        "client_decode_tokens_per_second": round((decoded - 1) / rest, 2) if decoded and rest else None,
    }
