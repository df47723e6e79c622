"""Schemas of a request: every shape of tool, references, alternatives, and decoding through them."""

from __future__ import annotations

import dsml_support as support
import pytest
from openai.types.responses import FunctionTool

from moet_w2.dsml.schema import Declared, Tools, decode

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_tools_come_in_every_shape_that_vllm_passes():
    chat = support.request([{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]).tools
    responses = [FunctionTool(type="function", name="f", parameters=PARAMETERS, strict=None)]
    plain = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
    flat = [{"type": "function", "name": "f", "parameters": PARAMETERS}]
    for tools in (chat, responses, plain, flat):
        known = Tools.of(tools)
        assert known.declares("f") and not known.declares("g")
        assert known.parameters("f").member("a").types() == {"integer"}
        assert known.parameters("g").keys() == frozenset()
    assert not Tools.of(None) and not Tools.of([])


def test_a_function_without_parameters_is_declared_and_open():
    known = Tools.of([{"type": "function", "function": {"name": "f"}}])
    assert known.declares("f") and known.parameters("f").types() is None


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"enum": ["a", 1, None, True]}, {"string", "integer", "null", "boolean"}),
        ({"enum": [1.5, [], {}]}, {"number", "array", "object"}),
        ({"const": 3}, {"integer"}),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/x"}]}, {"integer", "boolean"}),
        ({"allOf": [{"properties": {"a": {}}}]}, {"object"}),
        ({"items": {}}, {"array"}),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": "#/$defs/nothing"}, None),
        ({"$ref": "https://elsewhere"}, None),
        ({}, None),
        (True, None),
        ({"type": 5, "anyOf": 5, "properties": 5}, {"object"}),
    ],
)  # fmt: skip
def test_types_are_found_behind_references_and_alternatives(schema, types):
    root = {"$defs": {"x": {"type": "boolean"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert Declared(schema, root).types() == types


def test_a_schema_that_fans_out_into_itself_costs_nothing():
    node: dict = {"anyOf": [{"$ref": "#/$defs/node"} for _ in range(20)], "type": "object"}
    node["properties"] = {"child": {"$ref": "#/$defs/node"}}
    schema = Declared(node, {"$defs": {"node": node}})
    for _ in range(100):
        schema = schema.member("child")
    assert schema.types() == {"object"}


def test_members_are_found_behind_references_and_additional_properties():
    root = {"$defs": {"p": {"properties": {"a": {"type": "null"}}}}, "$ref": "#/$defs/p",
            "additionalProperties": {"type": "number"}}  # fmt: skip
    schema = Declared(root, root)
    assert schema.member("a").types() == {"null"} and schema.member("b").types() == {"number"}
    assert schema.keys() == {"a"}
    assert Declared({"items": {"type": "string"}}, {}).item().types() == {"string"}
    assert Declared({}, {}).item().types() is None


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, 5), ("5.0", {"integer"}, 5), ("5.5", {"integer"}, 5.5), ("+5", {"integer"}, 5),
        ("٥", {"integer"}, "٥"), ("5", {"number"}, 5), (" 5e1 ", {"number"}, 50.0), (".5", {"number"}, 0.5),
        ("-Infinity", {"number"}, "-Infinity"), ("1", {"boolean"}, True), ("2", {"boolean"}, 2),
        ('"true"', {"boolean"}, True), ("TRUE", {"boolean"}, True), ("None", {"null"}, None),
        ('"[1]"', {"array"}, [1]), ('"[1"', {"array"}, "[1"), ('"{}"', {"object"}, {}), ("[1]", {"object"}, [1]),
        ("5", {"string"}, "5"), ('"5"', {"string"}, "5"), ("[1]", {"integer", "string"}, "[1]"),
        ("5", {"integer", "string"}, 5), ("x", {"integer", "string"}, "x"), ("9" * 5000, {"integer"}, "9" * 5000),
        ("5", None, 5), ("x", None, "x"), ("", {"null"}, None), ("", {"integer"}, ""), (" ", {"string"}, " "),
    ],
)  # fmt: skip
def test_a_value_is_what_its_schema_declares(text, types, value):
    found = decode(text, frozenset(types) if types else None, True)
    assert (type(found), found) == (type(value), value)
