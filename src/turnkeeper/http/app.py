"""The application: one table of routes, and the OpenAPI document that is made of it.

Starlette routes requests and runs the lifespan; every handler is plain ASGI, so that a body is read once, with its
limit, and errors have one shape.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp

from turnkeeper import __version__
from turnkeeper.access import Right
from turnkeeper.dialects import DIALECTS, Dialect
from turnkeeper.errors import MethodNotAllowedError, RouteNotServedError
from turnkeeper.http.backend import Backend
from turnkeeper.http.endpoint import Endpoint, Handle, list_rights
from turnkeeper.http.exchange import Exchange, Receive, Scope, Send
from turnkeeper.http.failure import answer_or_explain
from turnkeeper.http.models import ModelsHandler, choose_dialect
from turnkeeper.http.openapi import ApiPages, Operation, describe_routes, operations
from turnkeeper.http.routes import Routes
from turnkeeper.http.turns import TokenCountHandler, TurnHandler
from turnkeeper.logs import with_ids


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


def build_app(backend: Backend) -> Router:
    """Build the ASGI application over a backend; its lifespan starts and closes the backend.

    A router alone is enough: every handler answers its errors itself.
    """

    @asynccontextmanager
    async def live(_: object) -> AsyncGenerator[None]:
        backend.lifecycle.start()
        yield
        await backend.lifecycle.close()

    routes = [MethodRoute(row.path, row.app, methods=list(row.methods)) for row in build_route_rows(backend)]
    return Router(routes=routes, default=build_fallback(backend, routes), redirect_slashes=False, lifespan=live)


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


class MethodRoute(Route):
    """A route that takes the requests of its methods alone and leaves all others to the fallback."""

    def has_path(self, scope: Scope) -> bool:
        """Tell whether the path of a request is the route's, whatever its method."""
        return super().matches(scope)[0] is not Match.NONE

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Tell whether path and method of a request are the route's."""
        match, child = super().matches(scope)
        return (match, child) if match is Match.FULL else (Match.NONE, {})


def build_fallback(backend: Backend, routes: Sequence[MethodRoute]) -> ASGIApp:
    """Build the application that refuses what no route takes: a path that is not served, or a method of one that is."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send)
        allowed = sorted({name for route in routes if route.has_path(scope) for name in route.methods or ()})

        async def refuse(_: Exchange) -> None:
            asked = f"there is no {exchange.method} {exchange.path}"
            if allowed:
                raise MethodNotAllowedError(f"{asked}, only {', '.join(allowed)}", allowed=allowed)
            raise RouteNotServedError(asked, hint="/docs lists the routes")

        with with_ids(request=exchange.request_id):
            await answer_or_explain(exchange, refuse, on_error=partial(backend.report_failure, exchange))

    return answer
