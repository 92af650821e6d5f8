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
"""One token id as text; given to calls that asked for the text of each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """What is known of a reply before it is there."""

    response_id: str
    """The id under which it will be delivered."""
    created_s: int = 0
    """Unix seconds when it was asked for."""
    prompt_tokens: int = 0
    """Length of the whole prompt; 0 where it is not known yet."""


class ReplyStream(Protocol):
    """One reply as server-sent events. Each method returns bytes that are complete events, or none.

    Any number of ``heartbeat`` and ``extend`` calls is followed by exactly one of ``finish`` and ``fail``.
    """

    def heartbeat(self) -> bytes:
        """An event that clients of this dialect accept and ignore; the first one opens the stream where needed."""
        ...

    def extend(self, *, reasoning: str, content: str) -> bytes:
        """Text that was generated since; tool calls come whole, with the finished reply."""
        ...

    def finish(self, reply: AgentReply) -> bytes:
        """Everything that is still to be said, the terminal event included.

        Raises:
            EngineProtocolError: the reply does not begin with what ``extend`` was given.
        """
        ...

    def fail(self, error: TurnkeeperError) -> bytes:
        """The dialect's error event, after which nothing follows."""
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
        """The whole reply as one JSON body."""
        ...

    def open_stream(self, start: StreamStart) -> ReplyStream:
        """The reply as events, from what is known before the reply is there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseContext:
    """What a dialect may know beyond the body."""

    decode_token: DecodeToken
    """The text of one token id."""
    forward_fields: tuple[str, ...] = ()
    """Fields on no list that the operator forwards to the engines."""
    on_image: OnImage = OnImage.REFUSE
    """What becomes of images."""
    find_reply: Callable[[str], Message | None] = lambda _: None
    """The assistant message that the session delivered under the id of a reply; None where it delivered none."""


class Dialect(Protocol):
    """One agent-facing API."""

    @property
    def name(self) -> str:
        """chat, messages or responses: ``TurnRequest.dialect``."""
        ...

    @property
    def path(self) -> str:
        """Where its turns are posted, behind ``/sessions/{id}/``: ``v1/chat/completions``."""
        ...

    @property
    def count_path(self) -> str | None:
        """Where clients ask for the length of a prompt, behind ``/sessions/{id}/``; None where they do not."""
        ...

    def build_response_id(self, hex_digits: str) -> str:
        """Spell 32 random hex digits as this dialect's id of a reply."""
        ...

    def parse_request(self, body: JsonObject, context: ParseContext) -> AgentCall:
        """Read a body.

        Raises:
            RequestError: what is malformed or refused, by the name of its field.
        """
        ...

    def choose_status(self, error: TurnkeeperError) -> int:
        """The HTTP status under which clients of this dialect expect the error."""
        ...

    def render_error(self, error: TurnkeeperError) -> bytes:
        """The error as this dialect's JSON body."""
        ...
