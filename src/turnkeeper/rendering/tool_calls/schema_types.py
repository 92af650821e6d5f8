"""The JSON types that the schema of a tool allows for a parameter.

Formats that spell parameters as tags do not quote strings, so the schema tells whether ``1`` is a number or a text.
Types follow from ``type`` in any case (Google's schemas say ``STRING``), from ``enum`` and ``const``, from ``anyOf``,
``oneOf`` and ``allOf`` around each other, from ``$ref`` to a definition and from OpenAPI's ``nullable``. None stands
for types of which the schema says nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

from turnkeeper.jsontypes import JsonObject, is_array, is_object

Types: TypeAlias = frozenset[str] | None
"""The names of JSON types, with ``integer`` besides ``number``; None where the schema does not tell."""

_MAX_DEPTH = 32
"""The greatest depth of nested schemas, references included. The types of deeper schemas, and of schemas that refer to
themselves, are unknown."""

_NAMES: Mapping[str, frozenset[str]] = {
    "string": frozenset({"string"}),
    "number": frozenset({"number", "integer"}),
    "integer": frozenset({"integer"}),
    "boolean": frozenset({"boolean"}),
    "null": frozenset({"null"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
    # Python's names, which tools written by hand have, and which engines read.
    "str": frozenset({"string"}),
    "float": frozenset({"number", "integer"}),
    "int": frozenset({"integer"}),
    "bool": frozenset({"boolean"}),
    "list": frozenset({"array"}),
    "dict": frozenset({"object"}),
}


class ToolSchemas:
    """The parameters of a request's function tools. A schema is walked when one of its parameters is asked for."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Keep the schemas of function tools, in nested or flat form; values that are no schemas are ignored."""
        self._roots: dict[str, JsonObject] = {}
        for tool in tools:
            function: Any = tool.get("function") or tool
            parameters: Any = function.get("parameters") if is_object(function) else None
            if is_object(parameters):
                self._roots[str(function.get("name"))] = parameters

    def has_parameter(self, tool: str, name: str) -> bool | None:
        """Return True when a tool has a parameter of this name; None where the tool's schema names no parameters."""
        root = self._roots.get(tool, {})
        named = [properties for properties, _ in _list_properties(root, root, set())]
        return any(name in properties for properties in named) if any(named) else None

    def find_types(self, tool: str, name: str) -> Types:
        """Return the types of a tool's parameter; None where the schema does not tell."""
        root = self._roots.get(tool, {})
        found = [
            properties.get(name, rest)
            for properties, rest in _list_properties(root, root, set())
            if name in properties or is_object(rest)
        ]
        return _join([_parse_types(schema, root, {}, 0) for schema in found]) if found else None


def _list_properties(schema: Any, root: JsonObject, seen: set[str]) -> Iterator[tuple[JsonObject, Any]]:
    """Yield the named properties of an object's schema with the schema of all others, for each of its parts.

    Args:
        schema: any JSON value.
        root: the document in which references are looked up.
        seen: the references that were followed; updated here, so that each is followed once.
    """
    if not is_object(schema):
        return
    named = schema.get("properties")
    yield named if is_object(named) else {}, schema.get("additionalProperties")
    for part in _list_parts(schema):
        yield from _list_properties(part, root, seen)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen and len(seen) < _MAX_DEPTH:
        seen.add(reference)
        yield from _list_properties(_resolve(reference, root), root, seen)


def _list_parts(schema: JsonObject) -> Iterator[Any]:
    for word in ("allOf", "anyOf", "oneOf"):
        parts = schema.get(word)
        if is_array(parts):
            yield from parts


def _parse_types(schema: Any, root: JsonObject, known: dict[str, Types], depth: int) -> Types:
    """Return the types that a schema allows.

    Args:
        schema: any JSON value.
        root: the document in which references are looked up.
        known: the types that references allow; updated here, so that each is resolved once.
        depth: the number of schemas around this one.
    """
    if not is_object(schema) or depth > _MAX_DEPTH:
        return None
    told: list[Types] = [_parse_named(schema.get("type")), _parse_values(schema)]
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in known:
            known[reference] = None  # for references that lead back here
            known[reference] = _parse_types(_resolve(reference, root), root, known, depth + 1)
        told.append(known[reference])
    for word in ("anyOf", "oneOf"):
        parts = schema.get(word)
        if is_array(parts):
            told.append(_join([_parse_types(part, root, known, depth + 1) for part in parts]))
    parts = schema.get("allOf")
    if is_array(parts):
        told += [_parse_types(part, root, known, depth + 1) for part in parts]
    types = _meet(told)
    return types | {"null"} if types is not None and schema.get("nullable") is True else types


def _parse_named(given: Any) -> Types:
    names = given if is_array(given) else [given]
    return _join([_NAMES.get(name.lower()) if isinstance(name, str) else None for name in names])


def _parse_values(schema: JsonObject) -> Types:
    """Return the types of the values that a schema lists."""
    if "const" in schema:
        return frozenset({name_type(schema["const"])})
    values = schema.get("enum")
    return frozenset(name_type(value) for value in values) if is_array(values) and values else None


def _join(types: Sequence[Types]) -> Types:
    """Return the types that at least one of several schemas allows."""
    told = [each for each in types if each is not None]
    return frozenset[str]().union(*told) if len(told) == len(types) else None


def _meet(types: Sequence[Types]) -> Types:
    """Return the types that all of several schemas allow; a schema with unknown types forbids nothing."""
    told = [each for each in types if each is not None]
    return told[0].intersection(*told[1:]) if told else None


def _resolve(reference: Any, root: JsonObject) -> Any:
    """Return the part of the document that a reference names; None for a reference to another document."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        key = unquote(step).replace("~1", "/").replace("~0", "~")
        if is_array(found) and key.isdecimal() and len(key) < 8:
            found = found[int(key)] if int(key) < len(found) else None
        else:
            found = found.get(key) if is_object(found) else None
    return found if reference == "#" or reference.startswith("#/") else None


def name_type(value: Any) -> str:
    """Return the name of a value's JSON type; a number without a fraction is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    kinds = ((float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "object")
