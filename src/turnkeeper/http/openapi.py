"""The OpenAPI document, made of the table of routes. Pure."""

import re
from collections.abc import Iterable

from turnkeeper.jsontypes import JsonObject


def describe_routes(rows: Iterable[tuple[tuple[str, ...], str, str]], *, version: str) -> JsonObject:
    """The document.

    Args:
        rows: methods, path and summary of each route.
        version: the server's.
    """
    paths: dict[str, JsonObject] = {}
    for methods, path, summary in rows:
        operations = paths.setdefault(path, {})
        for method in methods:
            operations[method.lower()] = _describe_operation(method, path, summary)
    return {
        "openapi": "3.1.0",
        "info": {"title": "turnkeeper", "version": version, "description": "The session server of agentic RL."},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


_ERROR: JsonObject = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}},
    "required": ["error", "code"],
}


def _describe_operation(method: str, path: str, summary: str) -> JsonObject:
    operation: JsonObject = {
        "summary": summary,
        "operationId": re.sub(r"\W+", "_", f"{method.lower()} {path}").strip("_"),
        "responses": {
            "200": {"description": "Done."},
            "default": {
                "description": "Why not.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if method == "POST":
        operation["requestBody"] = {"content": {"application/json": {"schema": {"type": "object"}}}}
    return operation
