"""The application: one table of routes, and the OpenAPI document that is made of it.

Starlette routes requests and runs the lifespan; every handler is plain ASGI, so that a body is read once, with its
limit, and errors have one shape.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from turnkeeper import __version__
from turnkeeper.access import Right
from turnkeeper.dialects import DIALECTS, Dialect
from turnkeeper.dialects.jsonbody import encode_json
from turnkeeper.errors import RouteNotServedError
from turnkeeper.headers import JSON_HEADERS, REQUEST_ID
from turnkeeper.http.backend import Backend
from turnkeeper.http.endpoint import Endpoint, Handle, list_rights
from turnkeeper.http.exchange import Exchange, Receive, Scope, Send, choose_request_id
from turnkeeper.http.failure import answer_or_explain
from turnkeeper.http.models import ModelsHandler, choose_dialect
from turnkeeper.http.openapi import ApiPages, Operation, describe_routes, operations
from turnkeeper.http.routes import Routes
from turnkeeper.http.turns import TokenCountHandler, TurnHandler


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRow:
    """One row of the table of routes."""

    methods: tuple[str, ...]
    path: str
    summary: str
    app: Endpoint
    operation: Operation | None = None
    """The description of the route in the OpenAPI document; None where the document leaves the route out."""

    @property
    def rights(self) -> Mapping[str, Right]:
        """The right that each method of the route requires of a caller."""
        return self.app.rights


def build_app(backend: Backend) -> Starlette:
    """Build the ASGI application over a backend; its lifespan starts and closes the backend."""

    @asynccontextmanager
    async def live(_: Starlette) -> AsyncGenerator[None]:
        backend.lifecycle.start()
        yield
        await backend.lifecycle.close()

    app = Starlette(
        routes=[Route(row.path, row.app, methods=list(row.methods)) for row in build_route_rows(backend)],
        lifespan=live,
        exception_handlers={HTTPException: answer_http_error},
    )
    app.router.default = answer_unknown
    app.router.redirect_slashes = False
    return app


def build_route_rows(backend: Backend) -> tuple[RouteRow, ...]:
    """Build the table of routes, in the order in which they are tried.

    The last one, the pass-through, takes whatever path of a session no other takes.
    """
    routes = Routes(backend)
    described = _build_described_rows(backend, routes)
    pages = ApiPages(describe_routes(described, version=__version__))
    return (
        *described,
        _build_row(backend, "GET", "/openapi.json", "Describe the routes in an OpenAPI document.", pages.show_document),
        _build_row(backend, "GET", "/docs", "Show that document as a page.", pages.show_page),
        _build_row(
            backend,
            "GET POST PUT DELETE PATCH HEAD OPTIONS",
            "/sessions/{session_id}/{path:path}",
            "Pass a route of the list through to the session's engine.",
            routes.relay,
        ),
    )


def _build_described_rows(backend: Backend, routes: Routes) -> tuple[RouteRow, ...]:
    row = partial(_build_row, backend)
    turns = [row for dialect in DIALECTS for row in _build_turn_rows(backend, dialect)]
    return (
        *turns,
        row("POST", "/sessions", "Open a session.", routes.create_session, operations.CREATE_SESSION),
        row("GET", "/sessions", "List the sessions.", routes.list_sessions, operations.LIST_SESSIONS),
        row(
            "GET HEAD",
            "/sessions/{session_id}",
            "Show a session: its records and metadata.",
            routes.get_session,
            operations.GET_SESSION,
        ),
        row("DELETE", "/sessions/{session_id}", "End a session.", routes.delete_session, operations.DELETE_SESSION),
        row(
            "POST",
            "/sessions/{session_id}/samples",
            "Collect training samples.",
            routes.collect_samples,
            operations.COLLECT_SAMPLES,
        ),
        row(
            "POST",
            "/sessions/{session_id}/ack",
            "Say that a trainer has the samples of a receipt.",
            routes.acknowledge_samples,
            operations.ACKNOWLEDGE_SAMPLES,
        ),
        *(row for prefix in ("/sessions/{session_id}", "") for row in _build_model_rows(backend, prefix)),
        row("GET HEAD", "/sessions/{session_id}/v1", "Answer a probe.", routes.probe, operations.PROBE),
        row("GET HEAD", "/sessions/{session_id}/", "Answer a probe.", routes.probe, operations.PROBE),
        row("GET HEAD", "/sessions/{session_id}/api/hello", "Answer a probe.", routes.probe, operations.PROBE),
        row("GET HEAD", "/", "Answer a probe.", routes.probe, operations.PROBE),
        row(
            "GET HEAD", "/health", "Say whether the server and its engines are well.", routes.health, operations.HEALTH
        ),
        row("GET HEAD", "/ready", "Say whether a turn can be served now.", routes.ready, operations.READY),
        row("GET", "/metrics", "Count what happened, for Prometheus.", routes.metrics, operations.METRICS),
        row(
            "POST",
            "/engine/pause",
            "Hold new turns back while weights are updated.",
            routes.pause_engines,
            operations.PAUSE_ENGINES,
        ),
        row(
            "POST",
            "/engine/continue",
            "Continue turns after a pause.",
            routes.continue_engines,
            operations.CONTINUE_ENGINES,
        ),
        row("POST", "/engine/abort", "End every turn in flight for good.", routes.abort_turns, operations.ABORT_TURNS),
    )


def _build_row(
    backend: Backend,
    methods: str,
    path: str,
    summary: str,
    handle: Handle,
    operation: Operation | None = None,
    *,
    choose_dialect: Callable[[Mapping[str, str]], Dialect] | None = None,
) -> RouteRow:
    names = tuple(methods.split())
    app = Endpoint(backend=backend, rights=list_rights(names, path), handle=handle, choose_dialect=choose_dialect)
    return RouteRow(methods=names, path=path, summary=summary, app=app, operation=operation)


def _build_model_rows(backend: Backend, prefix: str) -> tuple[RouteRow, ...]:
    path, handle, show = f"{prefix}/v1/models", ModelsHandler(backend).answer, "Show a model, whatever its name."
    row = partial(_build_row, backend, "GET HEAD", handle=handle, choose_dialect=choose_dialect)
    return (
        row(path, "List the models.", operation=operations.LIST_MODELS),
        row(f"{path}/{{model_id}}", show, operation=operations.GET_MODEL),
        # A name may hold slashes; a path that does is no route of the OpenAPI document.
        row(f"{path}/{{model_id:path}}", show),
    )


def _build_turn_rows(backend: Backend, dialect: Dialect) -> Iterator[RouteRow]:
    row = partial(_build_row, backend, "POST", choose_dialect=lambda _: dialect)
    take, count = TurnHandler(backend, dialect).answer, TokenCountHandler(backend, dialect).answer
    for prefix in ("/sessions/{session_id}", ""):
        summary = f"Take a turn ({dialect.name})."
        yield row(f"{prefix}/{dialect.path}", summary, take, operations.describe_turn_route(dialect))
    for prefix in ("/sessions/{session_id}", "") if dialect.count_path is not None else ():
        operation = operations.describe_token_count(dialect)
        yield row(f"{prefix}/{dialect.count_path}", "Count a prompt's tokens.", count, operation)


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Answer a refusal of Starlette's own, such as a method that a route does not have, as the control plane does."""
    assert isinstance(error, HTTPException)
    body = encode_json({"error": error.detail, "code": error.detail.lower().replace(" ", "_")})
    request_id = choose_request_id(request.headers.get(REQUEST_ID))
    headers = {**(error.headers or {}), **JSON_HEADERS, REQUEST_ID: request_id}
    return Response(body, status_code=error.status_code, headers=headers)


async def answer_unknown(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request that no route takes."""
    if scope["type"] != "http":
        return

    async def refuse(exchange: Exchange) -> None:
        raise RouteNotServedError(f"there is no {exchange.method} {exchange.path}", hint="/docs lists the routes")

    await answer_or_explain(Exchange(scope, receive, send), refuse)
