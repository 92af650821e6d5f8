"""The exceptions behind the server's error bodies. Pure."""

from collections.abc import Iterator

import orjson

from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import is_object


def parse_failure(status: int, body: bytes) -> TurnkeeperError:
    """Make the exception of an error response; an unknown code gives a plain ``TurnkeeperError``.

    Args:
        status: the HTTP status.
        body: ``{"error": "<message>", "code": "<code>"}``, or anything a proxy put in its place.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    if not is_object(value) or not isinstance(value.get("error"), str):
        excerpt = body[:200].decode(errors="replace")
        return TurnkeeperError(f"the server answered {status}: {excerpt}", status=status)
    error_class = _CLASSES.get(str(value.get("code")), TurnkeeperError)
    return error_class(value["error"], status=status)


def _walk(error_class: type[TurnkeeperError]) -> Iterator[type[TurnkeeperError]]:
    yield error_class
    for child in error_class.__subclasses__():
        yield from _walk(child)


_CLASSES = {error_class.code: error_class for error_class in _walk(TurnkeeperError)}
