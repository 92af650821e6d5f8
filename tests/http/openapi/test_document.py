"""The OpenAPI document and the routes that are served.

1. The document lists every route of the table, each with its methods, and none that is not served.
2. What it lists answers: a call of each is served or refused, never unknown and never an internal error.
3. The page of the document shows every operation, and loads nothing from anywhere.
"""

import re
from typing import Any

from httpkit import running_site
from servicekit import build_kit
from turnkeeper.dialects import DIALECTS
from turnkeeper.http.app import build_route_rows


def list_documented(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}


async def read_document() -> dict[str, Any]:
    async with running_site() as site:
        return (await site.call("GET", "/openapi.json")).json()


async def test_the_document_lists_the_table_of_routes() -> None:
    rows = build_route_rows(build_kit().backend)
    served = {(method, row.path) for row in rows if row.operation for method in row.methods}
    assert list_documented(await read_document()) == served


async def test_the_document_lists_every_dialect_with_and_without_a_session() -> None:
    documented = list_documented(await read_document())
    paths = [path for dialect in DIALECTS for path in (dialect.path, dialect.count_path) if path is not None]
    for path in paths:
        assert {("POST", f"/{path}"), ("POST", f"/sessions/{{session_id}}/{path}")} <= documented


async def test_what_the_document_lists_is_served() -> None:
    async with running_site() as site:
        document = (await site.call("GET", "/openapi.json")).json()
        for method, path in sorted(list_documented(document)):
            session = (await site.create()).removeprefix("/sessions/")
            filled = re.sub(r"{\w+}", session, path)
            reply = await site.call(method, filled, {} if method == "POST" else None, x_api_key=session)
            assert reply.status < 500, (method, path, reply.body)
            assert reply.status not in (404, 405), (method, path, reply.body)


async def test_the_page_shows_every_operation_and_loads_nothing() -> None:
    async with running_site() as site:
        reply = await site.call("GET", "/docs")
    page = reply.body.decode()
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    for method, path in list_documented(await read_document()):
        assert f"<b>{method}</b> <code>{path}</code>" in page
    assert not re.search(r"<(script|link|img|iframe)|https?://", page)
