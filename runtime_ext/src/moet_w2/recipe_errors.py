"""How a malformed recipe is told: strict YAML, and one line for what pydantic finds."""

from __future__ import annotations

import difflib
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML's safe loader, with a key that stands twice in one mapping as an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.YAMLError(f"key {key.value!r} stands twice (line {key.start_mark.line + 1})")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def first(error: ValidationError, sections: dict[tuple[str, ...], type[BaseModel]]) -> str:
    """The first problem as one line: place, value, and what is allowed; further problems are counted.

    Args:
        error: what pydantic found.
        sections: the model of every mapping in the file, by its place, for naming the keys allowed there.
    """
    problems = error.errors(include_url=False)
    problem = problems[0]
    where, kind, given = _dotted(problem["loc"]), problem["type"], _shorten(problem["input"])
    if kind == "missing":
        line = f"{where} is missing"
    elif kind == "extra_forbidden":
        line = f"{where} = {given} is not a key of a recipe; {_allowed(problem['loc'], sections)}"
    elif kind == "value_error":
        reason = str(problem["ctx"]["error"])
        line = f"{where}: {reason}" if where else reason
    else:
        rule = problem["msg"].replace("Input should", "must").replace("String should", "must")
        line = f"{where} = {given} {rule}"
    more = len(problems) - 1
    return f"{line} (and {more} more)" if more else line


def _dotted(place: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def _allowed(place: tuple[int | str, ...], sections: dict[tuple[str, ...], type[BaseModel]]) -> str:
    known = sections[tuple(str(part) for part in place[:-1])].model_fields
    near = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"did you mean {near[0]}?" if near else f"allowed here: {', '.join(known)}"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
