"""What a tool's schema says about the types of its parameters.

1. Types are read through every way in which a schema may say them; what it does not say is unknown.
2. No schema, however malformed, deep or circular, is more than unknown.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering.tool_calls import ToolSchemas

NUMBER = {"number", "integer"}
DEFINITIONS: JsonObject = {
    "$defs": {
        "Name": {"type": "string"},
        "Maybe": {"anyOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]},
        "Loop": {"$ref": "#/$defs/Loop"},
        "Ring": {"anyOf": [{"$ref": "#/$defs/Ring"}, {"type": "string"}]},
        "a/b~c": {"type": "integer"},
    },
    "definitions": {"Color": {"enum": ["red", "1", "null"]}},
}

SCHEMAS: dict[str, tuple[Any, set[str] | None]] = {
    "a type": ({"type": "string"}, {"string"}),
    "two types": ({"type": ["string", "null"]}, {"string", "null"}),
    "a number is any number": ({"type": "number"}, NUMBER),
    "python's name": ({"type": "str"}, {"string"}),
    "anyOf": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
    "oneOf": ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"string", "integer"}),
    "anyOf in anyOf": ({"anyOf": [{"anyOf": [{"type": "string"}]}, {"type": "null"}]}, {"string", "null"}),
    "allOf": ({"allOf": [{"type": ["string", "integer"]}, {"type": "string", "minLength": 1}]}, {"string"}),
    "allOf with more than types": ({"allOf": [{"$ref": "#/$defs/Name"}], "default": "x"}, {"string"}),
    "a type beside anyOf": ({"type": "string", "anyOf": [{"pattern": "a"}, {"pattern": "b"}]}, {"string"}),
    "types that meet": ({"type": "number", "anyOf": [{"type": "integer"}, {"type": "string"}]}, {"integer"}),
    "enum of strings": ({"enum": ["a", "1", "true"]}, {"string"}),
    "enum of several": ({"enum": ["a", 1, None, 1.5, False]}, {"string", "null", "boolean", *NUMBER}),
    "enum beside a type": ({"type": "string", "enum": ["a", "1"]}, {"string"}),
    "const": ({"const": "1"}, {"string"}),
    "const in anyOf": ({"anyOf": [{"const": "auto"}, {"type": "integer"}]}, {"string", "integer"}),
    "nullable": ({"type": "string", "nullable": True}, {"string", "null"}),
    "a definition": ({"$ref": "#/$defs/Name"}, {"string"}),
    "a definition that refers on": ({"$ref": "#/$defs/Maybe"}, {"string", "null"}),
    "an older definition": ({"$ref": "#/definitions/Color"}, {"string"}),
    "a definition with a strange name": ({"$ref": "#/$defs/a~1b~0c"}, {"integer"}),
    "a definition that is not there": ({"$ref": "#/$defs/Nobody"}, None),
    "another document": ({"$ref": "other.json#/Name"}, None),
    "a definition of itself": ({"$ref": "#/$defs/Loop"}, None),
    "a definition around itself": ({"$ref": "#/$defs/Ring"}, None),
    "nothing said": ({"description": "a name"}, None),
    "nothing said in one of two": ({"anyOf": [{"type": "string"}, {"description": "x"}]}, None),
    "true": (True, None),
    "no schema": ("string", None),
    "an unknown type": ({"type": "varchar"}, None),
    "a type that is none": ({"type": 7}, None),
    "an empty enum": ({"enum": []}, None),
    "a list": ({"type": "array", "items": {"type": "string"}}, {"array"}),
}


def build_tool(parameters: Any, name: str = "look") -> JsonObject:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


@pytest.mark.parametrize(("schema", "types"), SCHEMAS.values(), ids=SCHEMAS.keys())
def test_types_are_read_in_every_form(schema: Any, types: set[str] | None) -> None:
    schemas = ToolSchemas([build_tool({"type": "object", "properties": {"at": schema}, **DEFINITIONS})])
    assert schemas.find_types("look", "at") == types


PARAMETERS: dict[str, Any] = {
    "a reference": {"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"at": {"type": "string"}}}}},
    "allOf": {"allOf": [{"properties": {"to": {}}}, {"properties": {"at": {"type": "string"}}}]},
    "anyOf": {"anyOf": [{"properties": {"at": {"type": "string"}}}, {"properties": {"to": {}}}]},
    "other parameters": {"properties": {"to": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
}


@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_parameters_are_found_in_every_form(parameters: Any) -> None:
    assert ToolSchemas([build_tool(parameters)]).find_types("look", "at") == {"string"}
    assert ToolSchemas([build_tool(parameters)["function"]]).find_types("look", "at") == {"string"}


def test_a_tool_knows_its_parameters_or_knows_none() -> None:
    tools = [build_tool({"properties": {"at": {}}}), build_tool({}, "free"), build_tool(None, "bare")]
    schemas = ToolSchemas(tools)
    assert schemas.has_parameter("look", "at") is True
    assert schemas.has_parameter("look", "to") is False
    assert [schemas.has_parameter(name, "at") for name in ("free", "bare", "nobody")] == [None] * 3


def test_endless_references_end() -> None:
    parts = [{"$ref": f"#/$defs/{number + 1}"} for number in range(2000)]
    chain = {str(number): {"anyOf": [part, part]} for number, part in enumerate(parts)}
    forks = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"at": {"$ref": "#/$defs/0"}}, "$defs": chain}
    assert ToolSchemas([build_tool(forks)]).find_types("look", "at") is None


KEYWORDS = [
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "properties",
    "nullable",
    "additionalProperties",
]
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["string", "#", "#/properties/at", "#/x/0"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4)),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(parameters=anything)
def test_no_schema_is_too_strange_to_read(parameters: Any) -> None:
    schemas = ToolSchemas([build_tool(parameters)])
    known = {"string", "number", "integer", "boolean", "null", "array", "object"}
    assert (schemas.find_types("look", "at") or set()) <= known
    assert schemas.has_parameter("look", "at") in (True, False, None)
