"""The exceptions behind the server's error bodies. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from turnkeeper.errors import ServerReplyError, TurnkeeperError
from turnkeeper.jsontypes import is_object

_HINT = " (hint: "


def parse_failure(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> TurnkeeperError:
    """Make the exception of an error response.

    It has the message and the hint that the server's own had, and of its facts ``status``, ``retry_after_s`` where
    the server asks for a wait, and ``is_final`` where it says that asking again changes nothing. An unknown code gives
    a plain ``TurnkeeperError`` with the fact ``code``; what is no error of a session server a ``ServerReplyError``.

    Args:
        status: the HTTP status.
        body: ``{"error": "<message>", "code": "<code>"}``, or anything a proxy put in its place.
        headers: those of the response, by name in lower case.
    """
    facts = _read_facts(status, headers or {})
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not is_object(value) or not isinstance(value.get("error"), str):
        return ServerReplyError(
            f"an error of a session server is expected, got {status}: {excerpt(body)}",
            hint="is this the session server's address, and what stands between?",
            **facts,
        )
    code = str(value.get("code"))
    error_class = _CLASSES.get(code)
    if error_class is None:
        error_class, facts = TurnkeeperError, {**facts, "code": code}
    message, mark, hint = value["error"].rpartition(_HINT)  # as TurnkeeperError writes itself
    if mark and hint.endswith(")"):
        return error_class(message, hint=hint[:-1], **facts)
    return error_class(value["error"], **facts)


def excerpt(body: bytes) -> str:
    """The beginning of a body, for messages."""
    return body[:200].decode(errors="replace").strip() or "an empty body"


def _read_facts(status: int, headers: Mapping[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {"status": status}
    wait = headers.get("retry-after", "").strip()
    if wait.isascii() and wait.isdigit():
        facts["retry_after_s"] = int(wait[:9])
    if headers.get("x-should-retry", "").lower() == "false":
        facts["is_final"] = True
    return facts


def _walk(error_class: type[TurnkeeperError]) -> Iterator[type[TurnkeeperError]]:
    yield error_class
    for child in error_class.__subclasses__():
        yield from _walk(child)


_CLASSES = {error_class.code: error_class for error_class in _walk(TurnkeeperError)}
