"""The values that JSON Schemas are written with: simple schemas, and builders of lists, objects and references."""

from collections.abc import Iterable, Mapping
from typing import Any

from turnkeeper.jsontypes import JsonObject

ANYTHING: JsonObject = {}
TEXT: JsonObject = {"type": "string"}
NUMBER: JsonObject = {"type": "number"}
COUNT: JsonObject = {"type": "integer", "minimum": 0}
FLAG: JsonObject = {"type": "boolean"}
OBJECT: JsonObject = {"type": "object"}


def build_list(item: JsonObject, **rules: Any) -> JsonObject:
    """Build the schema of a list of such items."""
    return {"type": "array", "items": item, **rules}


def build_object(
    description: str, properties: Mapping[str, JsonObject], *, optional: Iterable[str] = (), is_closed: bool = True
) -> JsonObject:
    """Build the schema of an object.

    Args:
        description: a sentence on what it is.
        properties: the schema of each member.
        optional: the members that may be missing.
        is_closed: True when it has no other members.
    """
    missing = set(optional)
    return {
        "type": "object",
        "description": description,
        "properties": dict(properties),
        "required": [name for name in properties if name not in missing],
        **({"additionalProperties": False} if is_closed else {}),
    }


def allow_null(schema: JsonObject) -> JsonObject:
    """Build the schema of a value that may be null as well."""
    return {"anyOf": [schema, {"type": "null"}]}


def refer(name: str) -> JsonObject:
    """Build a reference to one of the document's schemas."""
    return {"$ref": f"#/components/schemas/{name}"}
