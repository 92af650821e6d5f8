"""The application: one table of routes, and the OpenAPI document that is made of it.

Starlette routes requests and runs the lifespan; every handler is plain ASGI, so that a body is read once, with its
limit, and errors have one shape.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper import __version__
from turnkeeper.dialects import DIALECTS, Dialect
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.errors import RouteNotServedError
from turnkeeper.http.exchange import JSON_HEADERS, Exchange, Receive, Scope, Send
from turnkeeper.http.failure import answer_or_explain
from turnkeeper.http.models import ModelsHandler
from turnkeeper.http.openapi import describe_routes
from turnkeeper.http.pages import ApiPages
from turnkeeper.http.routes import Handle, Handler, Routes
from turnkeeper.http.turns import TokenCountHandler, TurnHandler
from turnkeeper.service.service import SessionService


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """One row of the table of routes."""

    methods: tuple[str, ...]
    path: str
    summary: str
    app: Any
    """An ASGI application."""
    is_listed: bool = True
    """Whether the OpenAPI document shows it."""


def build_app(service: SessionService) -> Starlette:
    """The ASGI application over a service; its lifespan starts and closes the service."""

    @asynccontextmanager
    async def live(_: Starlette) -> AsyncGenerator[None]:
        service.start()
        yield
        await service.close()

    app = Starlette(
        routes=[Route(row.path, row.app, methods=list(row.methods)) for row in build_rows(service)],
        lifespan=live,
        exception_handlers={HTTPException: answer_http_error},
    )
    app.router.default = answer_unknown
    app.router.redirect_slashes = False
    return app


def build_rows(service: SessionService) -> tuple[RouteRow, ...]:
    """The table of routes, in the order in which they are tried: the last one takes what is left of a session's."""
    routes = Routes(service)
    described = _build_described_rows(service, routes)
    listed = [(row.methods, row.path, row.summary) for row in described if row.is_listed]
    pages = ApiPages(service, describe_routes(listed, version=__version__))
    return (
        *described,
        _build_row(service, "GET", "/openapi.json", "Describe the routes in an OpenAPI document.", pages.show_document),
        _build_row(service, "GET", "/docs", "Show that document as a page.", pages.show_page),
        _build_row(
            service,
            "GET POST PUT DELETE PATCH HEAD OPTIONS",
            "/sessions/{session_id}/{path:path}",
            "Pass a route of the list through to the session's engine.",
            routes.relay,
        ),
    )


def _build_described_rows(service: SessionService, routes: Routes) -> tuple[RouteRow, ...]:
    row = partial(_build_row, service, is_listed=True)
    turns = [row for dialect in DIALECTS for row in _build_turn_rows(service, dialect)]
    return (
        *turns,
        row("POST", "/sessions", "Open a session.", routes.create_session),
        row("GET", "/sessions", "List the sessions.", routes.list_sessions),
        row("GET HEAD", "/sessions/{session_id}", "Show a session: its records and metadata.", routes.get_session),
        row("DELETE", "/sessions/{session_id}", "End a session.", routes.delete_session),
        row("POST", "/sessions/{session_id}/samples", "Collect training samples.", routes.collect_samples),
        *(row for prefix in ("/sessions/{session_id}", "") for row in _build_model_rows(service, prefix)),
        row("GET HEAD", "/sessions/{session_id}/v1", "Answer a probe.", routes.probe),
        row("GET HEAD", "/sessions/{session_id}/", "Answer a probe.", routes.probe),
        row("GET HEAD", "/sessions/{session_id}/api/hello", "Answer a probe.", routes.probe),
        row("GET HEAD", "/", "Answer a probe.", routes.probe),
        row("GET HEAD", "/health", "Say whether the server and its engines are well.", routes.health),
        row("GET", "/metrics", "Count what happened, for Prometheus.", routes.metrics),
        row("POST", "/engine/pause", "Hold new turns back while weights are updated.", routes.pause_engines),
        row("POST", "/engine/continue", "Let turns go on.", routes.continue_engines),
        row("POST", "/engine/abort", "End every turn in flight for good.", routes.abort_turns),
    )


def _build_row(
    service: SessionService, methods: str, path: str, summary: str, handle: Handle, *, is_listed: bool = False
) -> RouteRow:
    app = Handler(handle, service.count_error)
    return RouteRow(methods=tuple(methods.split()), path=path, summary=summary, app=app, is_listed=is_listed)


def _build_model_rows(service: SessionService, prefix: str) -> tuple[RouteRow, ...]:
    handler, methods, path = ModelsHandler(service), ("GET", "HEAD"), f"{prefix}/v1/models"
    show = "Show a model, whatever its name."
    return (
        RouteRow(methods=methods, path=path, summary="List the models.", app=handler),
        RouteRow(methods=methods, path=f"{path}/{{model_id}}", summary=show, app=handler),
        # A name may hold slashes; a path that does is no route of the OpenAPI document.
        RouteRow(methods=methods, path=f"{path}/{{model_id:path}}", summary=show, app=handler, is_listed=False),
    )


def _build_turn_rows(service: SessionService, dialect: Dialect) -> tuple[RouteRow, ...]:
    handler = TurnHandler(service, dialect)
    rows = [
        RouteRow(
            methods=("POST",), path=f"{prefix}/{dialect.path}", summary=f"Take a turn ({dialect.name}).", app=handler
        )
        for prefix in ("/sessions/{session_id}", "")
    ]
    if dialect.count_path is None:
        return tuple(rows)
    counter = TokenCountHandler(service, dialect)
    rows += [
        RouteRow(
            methods=("POST",), path=f"{prefix}/{dialect.count_path}", summary="Count a prompt's tokens.", app=counter
        )
        for prefix in ("/sessions/{session_id}", "")
    ]
    return tuple(rows)


async def answer_http_error(_: Request, error: Exception) -> Response:
    """What the frame refuses by itself, such as a method that a route does not have, in the control plane's shape."""
    assert isinstance(error, HTTPException)
    body = encode_json({"error": error.detail, "code": error.detail.lower().replace(" ", "_")})
    return Response(body, status_code=error.status_code, headers={**(error.headers or {}), **JSON_HEADERS})


async def answer_unknown(scope: Scope, receive: Receive, send: Send) -> None:
    """What no route takes."""
    if scope["type"] != "http":
        return

    async def refuse(exchange: Exchange) -> None:
        raise RouteNotServedError(f"there is no {exchange.method} {exchange.path}", hint="/docs lists the routes")

    await answer_or_explain(Exchange(scope, receive, send), refuse)
