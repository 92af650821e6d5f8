"""What a dialect is: one agent-facing API, as a pure translation.

::

    body --parse_request--> AgentCall --(service)--> AgentReply --render_reply / open_stream--> body or events
    error --render_error--> body

A dialect reads and writes JSON values and bytes. It knows no sockets, no sessions, no tokens and no clock. Everything
it refuses is a ``RequestError`` that names the field. To add one: implement the protocols below in a module of its
own and add its instance to ``DIALECTS``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from turnkeeper.choices import OnImage
from turnkeeper.core.turn import TurnRequest
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.errors import TurnkeeperError
from turnkeeper.jsontypes import JsonObject, Message

DecodeToken: TypeAlias = Callable[[int], str]
"""Gives the text of one token id, for requests that want log-probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """What is known of a reply while it is still being generated."""

    response_id: str
    """The id under which the reply will be delivered."""
    created_s: int = 0
    """Unix seconds at the arrival of the request."""
    prompt_tokens: int = 0
    """Length of the whole prompt; 0 where it is not known yet."""


class ReplyStream(Protocol):
    """One reply as server-sent events. Each method returns bytes that are complete events, or none.

    Any number of ``heartbeat`` and ``extend`` calls is followed by exactly one of ``finish`` and ``fail``.
    """

    def heartbeat(self) -> bytes:
        """Send an event that clients accept and ignore; the first one opens the stream where the API has an opening."""
        ...

    def extend(self, *, reasoning: str, content: str) -> bytes:
        """Send text that was generated since the last call; tool calls come whole, with the finished reply."""
        ...

    def finish(self, reply: AgentReply) -> bytes:
        """Send whatever of the reply was not sent yet, the terminal event included.

        Raises:
            EngineProtocolError: the reply does not begin with what ``extend`` was given.
        """
        ...

    def fail(self, error: TurnkeeperError) -> bytes:
        """Send the error event of the dialect, behind which nothing may follow."""
        ...


class AgentCall(Protocol):
    """A parsed request, with what the dialect must remember to shape its reply."""

    @property
    def request(self) -> TurnRequest:
        """The canonical request; ``digest`` is still empty, sampling still without the session's pins."""
        ...

    @property
    def wants_stream(self) -> bool:
        """Whether the reply is a stream of events."""
        ...

    def render_reply(self, reply: AgentReply) -> bytes:
        """Render the whole reply as one JSON body."""
        ...

    def open_stream(self, start: StreamStart) -> ReplyStream:
        """Open a stream of events for a reply that is still being generated."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseContext:
    """What a dialect may know beyond the body."""

    decode_token: DecodeToken
    """Gives the text of one token id."""
    spell_token: Callable[[int], bytes] | None = None
    """Gives the bytes of one token id, which may be part of a character; None takes those of its text."""
    forward_fields: tuple[str, ...] = ()
    """The fields that stand in no row of `turnkeeper.fields` and that the operator forwards to the engines."""
    on_image: OnImage = OnImage.REFUSE
    """Whether images are refused or left out."""
    find_reply: Callable[[str], Message | None] = lambda _: None
    """Finds the assistant message that the session delivered under an id of a reply; None where there is none."""
    goes_on: bool = False
    """True where the messages of the body follow others that were parsed before."""


class Dialect(Protocol):
    """One agent-facing API."""

    @property
    def name(self) -> str:
        """The name by which records and options call it: chat, messages or responses."""
        ...

    @property
    def path(self) -> str:
        """The path to which turns are posted, behind ``/sessions/{id}/``: ``v1/chat/completions``."""
        ...

    @property
    def count_path(self) -> str | None:
        """The path under which clients ask for the length of a prompt; None where the API has no such path."""
        ...

    @property
    def repeats_messages(self) -> bool:
        """Whether every body has the whole conversation in ``messages``, and each message is parsed by itself."""
        ...

    def build_response_id(self, hex_digits: str) -> str:
        """Build the id of a reply, in the form that clients know, from 32 random hex digits."""
        ...

    def parse_request(self, body: JsonObject, context: ParseContext) -> AgentCall:
        """Parse a body.

        Raises:
            RequestError: what is malformed or refused, by the name of its field.
        """
        ...

    def choose_status(self, error: TurnkeeperError) -> int:
        """Choose the HTTP status under which clients of this dialect expect the error."""
        ...

    def render_error(self, error: TurnkeeperError) -> bytes:
        """Render the error as the JSON body that clients of this dialect expect."""
        ...
