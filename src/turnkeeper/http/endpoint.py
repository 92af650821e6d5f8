"""One route as an ASGI application: who may call it is decided first, before its body is read.

::

    request -> whose keys? -> turnkeeper.access -> handler -> response, or the error in the caller's own form
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from turnkeeper.access import Right, authorize, find_right
from turnkeeper.dialects import Dialect
from turnkeeper.http.backend import Backend
from turnkeeper.http.exchange import Exchange, Receive, Scope, Send
from turnkeeper.http.failure import answer_or_explain
from turnkeeper.http.headers import list_session_keys
from turnkeeper.ids import find_key_session, parse_session_id
from turnkeeper.logs import with_ids

Handle: TypeAlias = Callable[[Exchange], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A handler, and the rights that a caller needs to reach it."""

    backend: Backend
    rights: Mapping[str, Right]
    """The right that each of its methods requires."""
    handle: Handle
    choose_dialect: Callable[[Mapping[str, str]], Dialect] | None = None
    """Chooses, by the headers, the dialect that errors are rendered in; None renders those of the control plane."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        async with Exchange(scope, receive, send) as exchange:
            dialect = self.choose_dialect(exchange.headers) if self.choose_dialect else None
            on_error = partial(self.backend.report_failure, exchange, dialect=dialect)
            session_id = parse_session_id(exchange.path_params.get("session_id", "")) or ""
            with with_ids(session=session_id, request=exchange.request_id):
                await answer_or_explain(exchange, self._answer, dialect, on_error)

    async def _answer(self, exchange: Exchange) -> None:
        keys = list_session_keys(exchange.headers)
        await self.backend.sessions.recall(_list_session_ids(exchange, keys))
        exchange.caller = self.backend.sessions.identify(keys)
        authorize(self.rights[exchange.method], exchange.caller, exchange.path_params.get("session_id"))
        await self.handle(exchange)


def _list_session_ids(exchange: Exchange, keys: Iterable[str]) -> list[str]:
    """List the sessions that a request may be about: that of its path, those of its keys, and ids sent as keys."""
    named = [exchange.path_params["session_id"]] if "session_id" in exchange.path_params else []
    return named + [find_key_session(key) or key for key in keys]


def list_rights(methods: Iterable[str], path: str) -> dict[str, Right]:
    """List the right that each method of a path requires; a path that serves GET serves HEAD too.

    Raises:
        LookupError: the table of access has no row for one of them.
    """
    served = {*methods} | ({"HEAD"} if "GET" in methods else set[str]())
    return {method: find_right(method, path) for method in sorted(served)}
