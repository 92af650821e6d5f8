"""Who may do what: one table of routes, with what each asks of its caller. The decision is pure.

::

    no key, or one that is unknown     401
    the key of a session               the scopes that it was granted, in its own session; else 403
    the admin's key                    everything

Scope ``turn`` belongs to every session's key; ``read``, ``collect`` and ``delete`` are granted by name when the
session is created. A server without keys takes everybody for the admin. Whether a session exists does not change
what a caller without rights to it is told. To serve a new route, give it a row in ``ACCESS``: without one the
application is not built.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.errors import AuthenticationError, PermissionDeniedError
from turnkeeper.ids import SessionId


class Right(StrEnum):
    """What a route asks of its caller."""

    OPEN = "open"
    """Nothing: a stranger may call it."""
    TURN = "turn"
    """The scope of every session's key: turns, token counts, models, probes, and what is passed through."""
    READ = "read"
    """The scope that shows the session's records and metadata."""
    COLLECT = "collect"
    """The scope that collects the session's samples, without giving a reward, and acknowledges them."""
    DELETE = "delete"
    """The scope that ends the session."""
    ADMIN = "admin"
    """The server's own key, which no session's key stands in for."""


GRANTABLE = (Right.TURN, Right.READ, Right.COLLECT, Right.DELETE)
"""The scopes that the key of a session may have; the first one it always has."""

_SESSION = "/sessions/{session_id}"
_PASSED_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")

_TURNS = ("v1/chat/completions", "v1/messages", "v1/messages/count_tokens", "v1/responses", "v1/responses/input_tokens")
_LOOKS = ("v1/models", "v1/models/{model_id}", "v1/models/{model_id:path}", "")

ACCESS: Mapping[str, Right] = {
    "GET /health": Right.OPEN,
    "GET /ready": Right.OPEN,
    **{f"POST {prefix}/{path}": Right.TURN for path in _TURNS for prefix in (_SESSION, "")},
    **{f"GET {prefix}/{path}": Right.TURN for path in _LOOKS for prefix in (_SESSION, "")},
    f"GET {_SESSION}/v1": Right.TURN,
    f"GET {_SESSION}/api/hello": Right.TURN,
    f"HEAD {_SESSION}": Right.TURN,
    **{f"{method} {_SESSION}/{{path:path}}": Right.TURN for method in _PASSED_METHODS},
    f"GET {_SESSION}": Right.READ,
    f"POST {_SESSION}/samples": Right.COLLECT,
    f"POST {_SESSION}/ack": Right.COLLECT,
    f"DELETE {_SESSION}": Right.DELETE,
    "POST /sessions": Right.ADMIN,
    "GET /sessions": Right.ADMIN,
    "POST /engine/pause": Right.ADMIN,
    "POST /engine/continue": Right.ADMIN,
    "POST /engine/abort": Right.ADMIN,
    "GET /metrics": Right.ADMIN,
    "GET /docs": Right.ADMIN,
    "GET /openapi.json": Right.ADMIN,
}
"""What each route asks for, by method and path as the application writes them. HEAD is read as GET without a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the key of one session opens."""

    session_id: SessionId
    scopes: frozenset[Right]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sent a request, told by its keys."""

    is_admin: bool = False
    grants: tuple[Grant, ...] = ()
    """What its keys of sessions open. Some clients send two keys, one of them left over from another session."""
    other_keys: tuple[str, ...] = ()
    """Its keys that are neither the admin's nor a session's. An admin, and anybody on a server without keys, may
    name a session by its id here."""


def find_right(method: str, path: str) -> Right:
    """Find the right that a route asks for.

    Args:
        method: in upper case.
        path: as the application writes it, with the names of its parameters.

    Raises:
        LookupError: the table has no row for it.
    """
    right = ACCESS.get(f"{method} {path}")
    if right is None and method == "HEAD":
        right = ACCESS.get(f"GET {path}")
    if right is None:
        raise LookupError(f"turnkeeper.access.ACCESS has no row for {method} {path}")
    return right


def authorize(right: Right, caller: Caller, session_id: str | None = None) -> None:
    """Check that a caller may use a route.

    Args:
        right: what its route asks for.
        caller: who sent it.
        session_id: the session that its path names, whether there is one or not; None where it names none.

    Raises:
        AuthenticationError: it has no key, or none that is known.
        PermissionDeniedError: its key is known, and does not open this.
    """
    if right is Right.OPEN or caller.is_admin:
        return
    if not caller.grants:
        whose = "the admin's" if right is Right.ADMIN else "the session's"
        raise AuthenticationError(
            "the API key is unknown, or its session has ended" if caller.other_keys else "an API key is missing",
            hint=f"send {whose} key as Authorization: Bearer or x-api-key",
        )
    if right is Right.ADMIN:
        raise PermissionDeniedError(
            "the key of a session does not open this, the admin's key is needed", hint="--api-key is the admin's"
        )
    granted = [grant for grant in caller.grants if session_id in (None, grant.session_id)]
    if not granted:
        raise PermissionDeniedError(
            "the key opens another session than the path names", hint="send the key that came with this session"
        )
    if not any(right in grant.scopes for grant in granted):
        raise PermissionDeniedError(
            f"the key lacks the scope {right}",
            hint=f'the admin grants it when the session is created: POST /sessions {{"scopes": ["{right}"]}}',
            scope=str(right),
        )


def refuse_reward(caller: Caller) -> None:
    """Refuse a reward that comes from anybody but the admin: no agent grades itself.

    Raises:
        PermissionDeniedError: the caller is not the admin.
    """
    if not caller.is_admin:
        raise PermissionDeniedError(
            "a reward needs the admin's key, whatever scopes the key of a session has",
            hint="collect without rewards and metadata.reward",
        )
