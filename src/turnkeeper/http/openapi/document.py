"""The OpenAPI document, made of the table of routes. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from turnkeeper.access import Right
from turnkeeper.http.openapi.schemas import SCHEMAS
from turnkeeper.http.openapi.schemas.values import refer
from turnkeeper.http.queries import LIST_PARAMETERS, METADATA_PREFIX, SESSION_FLAGS
from turnkeeper.jsontypes import JsonObject

QUERY: Mapping[str, JsonObject] = {
    **{name: {"description": row.description, "schema": row.schema} for name, row in LIST_PARAMETERS.items()},
    f"{METADATA_PREFIX}KEY": {
        "description": "With this value of the KEY of their metadata: a text as it is, any other value as JSON.",
        "schema": {"type": "string"},
    },
    **{
        name: {"description": says, "schema": {"enum": ["0", "1", "false", "true"]}}
        for name, says in SESSION_FLAGS.items()
    },
}
"""The parameters that stand in queries, by name."""

_PARAMETERS: Mapping[str, str] = {"session_id": "The id of a session.", "model_id": "Any name."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The description of one route: the body that it reads, its reply, its errors."""

    reply: str
    """A sentence on what a success means."""
    schema: str | None = None
    """The name of the reply's schema; None where the reply is no JSON."""
    media_type: str = "application/json"
    """The type of the reply; empty where it has no body."""
    status: int = 200
    """The status of a success."""
    other_statuses: Mapping[int, str] = field(default_factory=dict[int, str])
    """Further statuses under which the same reply comes, each with a sentence on what it means."""
    body: str | None = None
    """The name of the body's schema; None where no body is read."""
    is_body_required: bool = False
    streams: bool = False
    """True where the reply may come as server-sent events."""
    query: tuple[str, ...] = ()
    """The names of its parameters in the query."""
    error: str = "ControlError"
    """The name of the schema of its errors."""
    fails: tuple[int, ...] = ()
    """The statuses of its errors, beside those that its rights, a body or a session in the path bring along."""


class DescribedRoute(Protocol):
    """One row of the table of routes."""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that the route serves."""
        ...

    @property
    def path(self) -> str:
        """The path, with its parameters in braces."""
        ...

    @property
    def summary(self) -> str:
        """One sentence that says what the route does."""
        ...

    @property
    def rights(self) -> Mapping[str, Right]:
        """The right that each method of the route requires of a caller."""
        ...

    @property
    def operation(self) -> Operation | None:
        """The description of the route; None where the document leaves the route out."""
        ...


def describe_routes(routes: Iterable[DescribedRoute], *, version: str) -> JsonObject:
    """Build the document.

    Args:
        routes: the rows of the table.
        version: the server's.
    """
    paths: dict[str, JsonObject] = {}
    for route in routes:
        if route.operation is not None:
            described = {method.lower(): _describe(method, route, route.operation) for method in route.methods}
            paths.setdefault(route.path, {}).update(described)
    return {
        "openapi": "3.1.0",
        "info": {"title": "turnkeeper", "version": version, "description": "The session server of agentic RL."},
        "paths": paths,
        "components": {"schemas": dict(SCHEMAS)},
    }


def _describe(method: str, route: DescribedRoute, operation: Operation) -> JsonObject:
    names = re.findall(r"\{(\w+)\}", route.path)
    in_path = [
        {"name": name, "in": "path", "required": True, "description": _PARAMETERS[name], "schema": {"type": "string"}}
        for name in names
    ]
    parameters = [*in_path, *({"name": name, "in": "query", **QUERY[name]} for name in operation.query)]
    described: JsonObject = {
        "summary": route.summary,
        "operationId": re.sub(r"\W+", "_", f"{method.lower()} {route.path}").strip("_"),
        "responses": _describe_responses(method, route, operation),
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {"application/json": {"schema": refer(operation.body)}}
        described["requestBody"] = {"required": operation.is_body_required, "content": content}
    return described


def _describe_responses(method: str, route: DescribedRoute, operation: Operation) -> JsonObject:
    content: JsonObject = {}
    if operation.media_type and method != "HEAD":
        schema = refer(operation.schema) if operation.schema else {"type": "string"}
        streamed = {"text/event-stream": {"schema": {"type": "string"}}} if operation.streams else {}
        content = {"content": {operation.media_type: {"schema": schema}, **streamed}}
    meanings = {operation.status: operation.reply, **operation.other_statuses}
    replies = {str(status): {"description": meaning, **content} for status, meaning in meanings.items()}
    statuses = {*operation.fails, 500, *((400, 413, 415) if operation.body else ())}
    statuses |= {401, 403} if route.rights[method] is not Right.OPEN else set[int]()
    statuses |= {404} if "{session_id}" in route.path else set[int]()
    failures = {str(status): _describe_failure(status, method, operation.error) for status in sorted(statuses)}
    return {**failures, **replies}


def _describe_failure(status: int, method: str, error: str) -> JsonObject:
    failure: JsonObject = {"description": f"{_PHRASES.get(status) or HTTPStatus(status).phrase}."}
    if method != "HEAD":
        failure["content"] = {"application/json": {"schema": refer(error)}}
    return failure


_PHRASES: Mapping[int, str] = {
    400: "The request is malformed, or asks for what is refused",
    401: "The key is missing, or is not one that the server knows",
    403: "The key is known, and does not open this",
    404: "There is no such session, or it takes no further turns",
    413: "The body is over its limit",
    415: "The body is compressed",
    422: "The turns make no samples",
    429: "A limit of the server is reached",
    500: "The server failed, and its log says why",
    502: "An engine refused the call, gave a broken reply, or was not there",
    503: "The server is stopping, the engines are paused, or the turn was aborted",
    504: "An engine gave no answer in time",
    529: "The server is stopping, the engines are paused, or the turn was aborted",
}
