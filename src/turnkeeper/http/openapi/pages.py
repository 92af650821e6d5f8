"""``/openapi.json`` and ``/docs``: the server's description of its own routes.

The page is written here and loads nothing from elsewhere, since many clusters reach no other host.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.headers import JSON_HEADERS
from turnkeeper.http.exchange import Exchange
from turnkeeper.jsontypes import JsonObject

HTML_HEADERS: Mapping[str, str] = {"content-type": "text/html; charset=utf-8"}

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
code, pre {{ font: 13px/1.5 ui-monospace, monospace }} pre {{ overflow-x: auto }}
summary {{ cursor: pointer; padding: .2rem 0 }} summary b {{ display: inline-block; min-width: 4.5rem }}
</style></head><body>
"""


@dataclass(frozen=True, slots=True)
class ApiPages:
    """The handlers of both routes."""

    document: JsonObject
    """The OpenAPI document."""

    async def show_document(self, exchange: Exchange) -> None:
        """Answer ``GET /openapi.json``."""
        await exchange.respond(200, encode_json(self.document), JSON_HEADERS)

    async def show_page(self, exchange: Exchange) -> None:
        """Answer ``GET /docs``."""
        await exchange.respond(200, render_page(self.document).encode(), HTML_HEADERS)


def render_page(document: JsonObject) -> str:
    """Write an OpenAPI document as one HTML page: a line for each operation, which opens to its description."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    operations = [
        _render_operation(method, path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    schemas = [_render_schema(name, schema) for name, schema in document["components"]["schemas"].items()]
    described = f"<h1>{title}</h1>\n<p>{escape(document['info']['description'])}</p>\n"
    return "".join(
        [_HEAD.format(title=title), described, *operations, "<h2>Schemas</h2>\n", *schemas, "</body></html>\n"]
    )


def _render_operation(method: str, path: str, operation: JsonObject) -> str:
    line = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {escape(operation['summary'])}"
    lines = "".join(f"<li>{item}</li>" for item in _describe(operation))
    return f"<details><summary>{line}</summary><ul>{lines}</ul></details>\n"


def _describe(operation: JsonObject) -> Iterator[str]:
    for parameter in operation.get("parameters", ()):
        said = escape(parameter.get("description", ""))
        yield f"<code>{escape(parameter['name'])}</code> in the {parameter['in']}: {said}".removesuffix(": ")
    if "requestBody" in operation:
        yield f"body: {_render_content(operation['requestBody']['content'])}"
    for status, response in operation["responses"].items():
        content = _render_content(response["content"]) if "content" in response else "no body"
        yield f"{status}: {escape(response['description'])} {content}"


def _render_content(content: Mapping[str, Any]) -> str:
    return ", ".join(
        f"<code>{escape(kind)}</code> {_render_link(each.get('schema'))}" for kind, each in content.items()
    )


def _render_link(schema: JsonObject | None) -> str:
    name = (schema or {}).get("$ref", "").rpartition("/")[2]
    return f'<a href="#{escape(name)}">{escape(name)}</a>' if name else ""


def _render_schema(name: str, schema: JsonObject) -> str:
    written = escape(json.dumps(schema, indent=2))
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><pre>{written}</pre></details>\n'
    )
