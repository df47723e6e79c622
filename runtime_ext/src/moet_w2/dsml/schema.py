"""The tools of one request: which names they declare, and how a raw value is decoded through a declared schema."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]


class Tools:
    """Declared functions by name. Built from a request's tools, in any of the shapes that vLLM passes on."""

    def __init__(self, parameters: Mapping[str, Schema | None]) -> None:
        self._parameters = dict(parameters)

    @classmethod
    def of(cls, tools: Sequence[Any] | None) -> Tools:
        """From Chat Completions tools, Responses tools or plain dictionaries."""
        from vllm.tool_parsers.utils import iter_response_function_tool_info

        found: dict[str, Schema | None] = {}
        for tool in tools or ():
            function = tool.get("function", tool) if isinstance(tool, dict) else getattr(tool, "function", None)
            if isinstance(function, dict):
                found[function.get("name", "")] = function.get("parameters")
            elif function is not None:
                found[function.name] = function.parameters
            else:
                found.update(iter_response_function_tool_info(tool))
        return cls(found)

    def __bool__(self) -> bool:
        return bool(self._parameters)

    def declares(self, name: str) -> bool:
        """Whether this request declares the function."""
        return name in self._parameters

    def parameters(self, name: str) -> Declared:
        """The parameters' schema of a function; an unknown function has an open one."""
        schema = self._parameters.get(name)
        return Declared(schema if isinstance(schema, Mapping) else None, schema)


class Declared:
    """A schema inside its document: ``$ref`` and the ``anyOf`` family are looked through."""

    def __init__(self, schema: Any, root: Any) -> None:
        self._root = root
        self._options = _flatten(schema, root, set())

    def types(self) -> frozenset[str] | None:
        """The JSON types allowed, or None where the schema does not say."""
        types: set[str] = set()
        for option in self._options:
            named = option.get("type")
            if isinstance(named, str):
                types.add(named)
            elif isinstance(named, list):
                types.update(t for t in named if isinstance(t, str))
            elif isinstance(option.get("enum"), list):
                types.update(json_type(value) for value in option["enum"])
            elif "const" in option:
                types.add(json_type(option["const"]))
            elif "properties" in option:
                types.add("object")
            elif "items" in option:
                types.add("array")
        return frozenset(types) or None

    def keys(self) -> frozenset[str]:
        """The declared property names; empty for an open object."""
        return frozenset(key for option in self._options for key in _mapping(option.get("properties")))

    def member(self, key: str) -> Declared:
        """The schema of a property."""
        for option in self._options:
            properties = _mapping(option.get("properties"))
            if key in properties:
                return Declared(properties[key], self._root)
        for option in self._options:
            if isinstance(option.get("additionalProperties"), Mapping):
                return Declared(option["additionalProperties"], self._root)
        return Declared(None, None)

    def item(self) -> Declared:
        """The schema of an array's items."""
        for option in self._options:
            if isinstance(option.get("items"), Mapping):
                return Declared(option["items"], self._root)
        return Declared(None, None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _flatten(schema: Any, root: Any, seen: set[int]) -> list[Schema]:
    """A schema and its alternatives, references resolved; each part once, so that cycles and fans cost nothing."""
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return []
    seen.add(id(schema))
    found: list[Schema] = [schema]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target: Any = root
        for part in reference.lstrip("#").strip("/").split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            target = _mapping(target).get(part) if part else target
        found += _flatten(target, root, seen)
    for family in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(family) or () if isinstance(schema.get(family), list) else ():
            found += _flatten(choice, root, seen)
    return found


def json_type(value: Any) -> str:
    """The JSON Schema type name of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def parse_json(text: str) -> Any:
    """Strict JSON: no NaN, no infinities.

    Raises:
        ValueError: not JSON, too deep, or a number that JSON cannot write back.
    """
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} has no finite value")
    return value


def decode(text: str, types: frozenset[str] | None, explicit: bool) -> Any:
    """The value of a ``string="false"`` parameter (``explicit``), or of one without the attribute.

    JSON first; a scalar that the schema declares otherwise is turned into what it declares; what is no JSON is text.
    """
    stripped = text.strip()
    if not stripped:
        return _empty(text, types, explicit)
    if types == {"string"} and not stripped.startswith('"'):
        return text
    try:
        value = parse_json(stripped)
    except ValueError:
        return _coerce_text(text, stripped, types)
    if types is None or _fits(value, types):
        return value
    if isinstance(value, str):
        return _coerce_text(value, value.strip(), types)
    if isinstance(value, float) and "integer" in types and value.is_integer():
        return int(value)
    if isinstance(value, int) and "boolean" in types and value in (0, 1):
        return bool(value)
    return text if "string" in types else value


def _empty(text: str, types: frozenset[str] | None, explicit: bool) -> Any:
    """Nothing between the tags. ``string="false"`` says it is no string: then only an object without members fits."""
    if types is None:
        return {} if explicit else text
    if "string" in types:
        return text
    for name, value in (("object", {}), ("array", []), ("null", None)):
        if name in types:
            return value
    return text


def _fits(value: Any, types: frozenset[str]) -> bool:
    name = json_type(value)
    return name in types or (name == "integer" and "number" in types)


def _coerce_text(text: str, stripped: str, types: frozenset[str] | None) -> Any:
    """Text that should be something else: Python's spellings, bare numbers, JSON inside a JSON string."""
    types = types or frozenset()
    lowered = stripped.lower()
    if "null" in types and lowered in ("null", "none"):
        return None
    if "boolean" in types and lowered in ("true", "false"):
        return lowered == "true"
    if "string" in types:
        return text
    try:
        if "integer" in types or "number" in types:
            return int(stripped) if stripped.lstrip("+-").isascii() else text
    except ValueError:
        pass
    try:
        if "number" in types:
            return _finite(stripped)
        if types & {"object", "array", "boolean"}:
            value = parse_json(stripped)
            return value if _fits(value, types) else text
    except ValueError:
        pass
    return text
