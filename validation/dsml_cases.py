"""The corpus of tool-call outputs in cases/dsml: what a model wrote, and what a client must get for it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).resolve().parent / "cases" / "dsml"
TOOLS = "tools.yaml"
# Where a tokenizer of this model family cuts; good enough to feed a parser token by token.
TOKEN = re.compile(r"<｜[^｜<>]+｜>|</?think>|｜DSML｜|tool_calls|invoke|parameter| ?\w{1,6}|.", re.S)
_FIELDS = {"id", "about", "policy", "tools", "tool_choice", "thinking", "output", "call", "inside", "streams", "expect"}


class CorpusError(Exception):
    """A case file is not what the corpus holds. The message names file, case and field."""


@dataclass(frozen=True)
class Answer:
    """What a client has in hand. ``calls`` are (name, arguments as JSON text); ``pieces`` counts argument deltas."""

    reasoning: str | None = None
    content: str | None = None
    calls: tuple[tuple[str, str], ...] = ()
    pieces: int = 0


@dataclass(frozen=True)
class Case:
    """One output and its answer. ``policy`` marks a choice of ours where the format leaves one."""

    id: str
    output: str
    tools: list[dict[str, Any]]
    expect: dict[str, Any]
    about: str = ""
    policy: bool = False
    thinking: bool = True
    tool_choice: Any = None
    streams: int = 0
    file: str = field(default="", compare=False)

    def faults(self, answer: Answer, *, streamed: bool) -> list[str]:
        """In what the answer differs. Arguments are compared as JSON values, types included."""
        found = []
        for name in ("reasoning", "content"):
            expected, got = self.expect.get(name), getattr(answer, name)
            if expected != got:
                found.append(f"{name}: expected {expected!r}, got {got!r}")
        expected_calls = [(call["name"], call["arguments"]) for call in self.expect.get("calls", [])]
        if [name for name, _ in answer.calls] != [name for name, _ in expected_calls]:
            found.append(f"calls: expected {[n for n, _ in expected_calls]}, got {[n for n, _ in answer.calls]}")
        else:
            for (name, expected), (_, text) in zip(expected_calls, answer.calls, strict=True):
                try:
                    got = json.loads(text)
                except ValueError:
                    found.append(f"{name}: arguments are no JSON: {text!r}")
                    continue
                if canonical(got) != canonical(expected):
                    found.append(f"{name}: expected {json.dumps(expected, ensure_ascii=False)}, got {text}")
        if streamed and answer.pieces < self.streams:
            found.append(f"arguments came in {answer.pieces} deltas, expected at least {self.streams}")
        return found


def canonical(value: Any) -> Any:
    """For comparing as JSON does: 3 is 3.0, but True is not 1, and members have no order."""
    if isinstance(value, dict):
        return {key: canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [canonical(inner) for inner in value]
    return ("boolean", value) if isinstance(value, bool) else value


def load(directory: Path = CASES) -> list[Case]:
    """Every case, in file order.

    Raises:
        CorpusError: an unknown field, an unknown tool, an id that occurs twice.
    """
    declared = yaml.safe_load((directory / TOOLS).read_text(encoding="utf-8"))
    cases: list[Case] = []
    seen: set[str] = set()
    for path in sorted(directory.glob("*.yaml")):
        if path.name == TOOLS:
            continue
        for raw in yaml.safe_load(path.read_text(encoding="utf-8")):
            case = _case(raw, declared, path.name)
            if case.id in seen:
                raise CorpusError(f"{path.name}: {case.id} occurs twice; ids are unique over all files")
            seen.add(case.id)
            cases.append(case)
    return cases


def _case(raw: dict[str, Any], declared: dict[str, Any], file: str) -> Case:
    name = raw.get("id", "?")
    if unknown := set(raw) - _FIELDS:
        raise CorpusError(f"{file}: {name}: unknown field {sorted(unknown)[0]}; allowed are {sorted(_FIELDS)}")
    if unknown := set(raw.get("tools", [])) - set(declared):
        raise CorpusError(f"{file}: {name}: {TOOLS} declares no tool {sorted(unknown)[0]}")
    if "call" in raw:
        # The usual frame, written once.
        output = (
            f'</think><｜DSML｜tool_calls><｜DSML｜invoke name="{raw["call"]}">{raw["inside"]}'
            "</｜DSML｜invoke></｜DSML｜tool_calls>"
        )
    else:
        output = raw["output"]
    tools = [
        {"type": "function", "function": {"name": tool, "parameters": {"type": "object", **declared[tool]}}}
        for tool in raw.get("tools", [])
    ]
    known = {key: raw[key] for key in ("about", "policy", "thinking", "tool_choice", "streams") if key in raw}
    return Case(name, output, tools, raw["expect"], file=file, **known)
