"""An agent's request, read without reading again what it repeats of the request before it.

An agent sends its whole conversation with every request. A session keeps what it knows of its last request, and of the
next one only the new messages are parsed, checked and reduced. The result is that of reading all of it: where that is
not certain, all of it is read.
"""

from dataclasses import dataclass, replace

from turnkeeper.core import Query, extend_query
from turnkeeper.dialects.dialect import AgentCall, Dialect, ParseContext
from turnkeeper.dialects.jsonbody import parse_object
from turnkeeper.dialects.known_body import KnownBody, parse_body
from turnkeeper.dialects.members import NESTED_FIELDS
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRequest:
    """What a session knows of its last request."""

    dialect: str
    body: KnownBody
    query: Query
    """The request as the search saw it; messages that a turn holds are the turn's own."""
    notes: tuple[str, ...]
    """What was left out or changed on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A request, read."""

    call: AgentCall
    """The call of the dialect; the request of one that goes on from a known request holds the new messages alone."""
    query: Query | None = None
    """The request as the search of its session sees it, where that is known already."""
    body: KnownBody | None = None
    """What the next body is expected to begin with; None where that is not known."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of the request."""
        return self.call.request.messages if self.query is None else tuple(m.message for m in self.query.messages)


def read_request(
    body: bytes, dialect: Dialect, context: ParseContext, known: KnownRequest | None = None
) -> ReadRequest:
    """Read a body; what a known request says already is taken from there.

    Raises:
        RequestError: the body is malformed.
    """
    if not dialect.repeats_messages:
        return ReadRequest(call=dialect.parse_request(parse_object(body), context))
    if known is not None and known.dialect != dialect.name:
        known = None
    parsed = parse_body(body, None if known is None else known.body)
    value, next_body = parsed.value, parsed.known
    if any(name in value for name in NESTED_FIELDS):
        next_body = None  # other messages may stand in there, which count instead
    if parsed.is_continued:
        read = None if known is None or next_body is None else _go_on(value, dialect, context, known, next_body)
        if read is not None:
            return read
        value = parse_object(body)
    return ReadRequest(call=dialect.parse_request(value, context), body=next_body)


def _go_on(
    value: JsonObject, dialect: Dialect, context: ParseContext, known: KnownRequest, next_body: KnownBody
) -> ReadRequest | None:
    """Read a request whose messages go on from known ones; None where all of it has to be read together."""
    try:
        call = dialect.parse_request(value, replace(context, goes_on=True))
    except RequestError:
        return None  # its messages are counted from the first one that is new
    new = call.request
    # A result may belong into the order of results before it, and a tool that was loaded changes what is rendered.
    if new.messages[0].get("role") == "tool" or new.loaded_tools or new.notes != known.notes:
        return None
    query = extend_query(known.query, new)
    if query.context_digest != known.query.context_digest:
        return None  # the messages may become a root of their own, in the spelling of this request
    return ReadRequest(call=call, query=query, body=next_body)
