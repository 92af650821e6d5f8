"""One client that waits for the reply of one turn.

A waiter says how its reply is rendered (``expect``), may read text while the reply is generated, and awaits the
response. The response is rendered before the turn is recorded and handed over after it. Knows no engine and no HTTP.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from turnkeeper.dialects.reply import AgentReply
from turnkeeper.ids import TurnId

if TYPE_CHECKING:
    from turnkeeper.service.sessions import SessionEntry
    from turnkeeper.service.turns.in_flight import TurnInFlight

RenderReply: TypeAlias = "Callable[[AgentReply], bytes]"
"""Makes the bytes of a response: a whole body, or the last events of a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Text of a reply that is still being generated."""

    reasoning: str = ""
    content: str = ""

    def __bool__(self) -> bool:
        """Return True where the delta has text."""
        return bool(self.reasoning or self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedReply:
    """A reply whose turn is recorded, so that it may be sent."""

    reply: AgentReply
    turn_id: TurnId


class ClientGoneError(Exception):
    """The client closed its connection before the response was complete."""


class Waiter:
    """One client that waits for the reply of one turn."""

    def __init__(
        self,
        entry: "SessionEntry",
        *,
        response_id: str,
        created_s: int,
        prompt_tokens: int,
        turn: "TurnInFlight | None" = None,
        recorded: RecordedReply | None = None,
    ) -> None:
        """Begin to wait.

        Args:
            entry: the session.
            response_id: the id under which the reply will be delivered.
            created_s: Unix seconds when the reply was asked for.
            prompt_tokens: length of the whole prompt; 0 before it is rendered.
            turn: the turn in flight whose reply the client waits for.
            recorded: the reply of a recorded turn, which is sent again; given instead of ``turn``.
        """
        self.response_id = response_id
        self.created_s = created_s
        self.prompt_tokens = prompt_tokens
        self.is_connected = True
        """True until the client is known to have hung up."""
        self.render: RenderReply | None = None
        """How the reply is rendered for this client; None before ``expect``."""
        self._entry = entry
        self._turn = turn
        self._recorded = recorded
        self._texts_taken = 0
        self._news = asyncio.Event()
        self._response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """True once the client has its response, or an error instead."""
        return self._response.done()

    @property
    def is_ready(self) -> bool:
        """True while the client is connected and has said how the reply is rendered."""
        return self.is_connected and self.render is not None

    def expect(self, render: RenderReply) -> None:
        """Say how the reply is rendered; from now on the turn may be recorded for this client."""
        self.render = render
        if self._turn is not None:
            self._turn.note_ready(self)
        elif self._recorded is not None and self.is_connected:
            self.deliver(self._recorded, render(self._recorded.reply))

    async def wait_until_rendered(self) -> None:
        """Wait until the length of the prompt is known, or the turn is over."""
        if self._turn is not None:
            await self._turn.wait_until_rendered()

    async def wait(self) -> bytes:
        """Wait for the response; ``expect`` comes first.

        Raises:
            ClientGoneError: the client hung up meanwhile.
            TurnkeeperError: why there is no reply.
        """
        return await asyncio.shield(self._response)

    async def wait_for_text(self, timeout_s: float) -> TextDelta:
        """Wait for text that was generated since the last call.

        Returns without text at the timeout, and as soon as the response or an error is there.
        """
        text = self.take_text()
        if not text and not self.is_over:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            text = self.take_text()
        return text

    def take_text(self) -> TextDelta:
        """Return the text that was generated since the last call, without waiting."""
        said = self._turn.texts if self._turn is not None else []
        new = said[self._texts_taken :]
        self._texts_taken = len(said)
        return TextDelta(reasoning="".join(t.reasoning for t in new), content="".join(t.content for t in new))

    def wake(self) -> None:
        """Let ``wait_for_text`` look for text, or for the end."""
        self._news.set()

    def hang_up(self) -> None:
        """Note that the client closed its connection."""
        if self.is_connected:
            self.is_connected = False
            self.refuse(ClientGoneError())
            if self._turn is not None:
                self._turn.note_hang_up()

    def close(self, *, was_written: bool) -> None:
        """Note that the response was written to the connection in full, or cut off."""
        if self._recorded is not None and self.is_over and self._response.exception() is None:
            self._entry.note_written(self._recorded.turn_id, was_written=was_written)

    def deliver(self, recorded: RecordedReply, body: bytes) -> None:
        """Hand over the response of a recorded turn."""
        if not self.is_over:
            self._recorded = recorded
            self._response.set_result(body)
            self.wake()

    def refuse(self, error: Exception) -> None:
        """Hand over why there is no reply."""
        if not self.is_over:
            self._response.set_exception(error)
            self._response.exception()  # a client that has left never asks for it
            self.wake()
