"""One connection's wait for one reply, and word of whether it got there. Knows no engine and no session."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from turnkeeper.ids import TurnId
from turnkeeper.service.reply import AgentReply


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a waiter gets."""

    body: bytes
    """The reply, rendered before it was recorded."""
    turn_id: TurnId
    """The turn that records it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """Text of a reply that is still being generated."""

    reasoning: str = ""
    content: str = ""

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.reasoning or self.content)


class ClientGoneError(Exception):
    """The client closed its connection: nobody is left to answer."""


class Delivery:
    """One connection's wait for one reply, and word of whether it got there."""

    def __init__(
        self,
        response_id: str,
        *,
        created_s: int,
        prompt_tokens: int,
        on_change: Callable[["Delivery"], None],
        on_written: Callable[[TurnId, bool], None],
    ) -> None:
        self.response_id = response_id
        """The id under which the reply will be delivered."""
        self.created_s = created_s
        """Unix seconds when it was asked for."""
        self.prompt_tokens = prompt_tokens
        """Length of the whole prompt; 0 before it is rendered."""
        self.is_live = True
        """Whether its client is still there, as far as anybody knows."""
        self.render: Callable[[AgentReply], bytes] | None = None
        self.has_text = asyncio.Event()
        """Set while there is text that ``take_text`` has not given out."""
        self._text = TextDelta()
        self._result: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._on_change = on_change
        self._on_written = on_written

    @classmethod
    def replay(cls, reply: AgentReply, turn_id: TurnId, on_written: Callable[[TurnId, bool], None]) -> "Delivery":
        """The delivery of a turn that is recorded already."""

        def answer(delivery: Delivery) -> None:
            if delivery.is_live and delivery.render is not None:
                delivery.resolve(Receipt(body=delivery.render(reply), turn_id=turn_id))

        return cls(
            reply.response_id,
            created_s=reply.created_s,
            prompt_tokens=reply.prompt_tokens,
            on_change=answer,
            on_written=on_written,
        )

    @property
    def is_over(self) -> bool:
        """Whether it got its reply, or word that there is none."""
        return self._result.done()

    async def wait(self, render: Callable[[AgentReply], bytes]) -> Receipt:
        """Wait for the reply.

        Args:
            render: makes the reply's bytes; called before the turn is recorded.

        Raises:
            ClientGoneError: the client hung up meanwhile.
            TurnkeeperError: why there is no reply.
        """
        self.render = render
        self._on_change(self)
        return await asyncio.shield(self._result)

    def add_text(self, delta: TextDelta) -> None:
        """More of the reply was generated."""
        self._text = TextDelta(
            reasoning=self._text.reasoning + delta.reasoning, content=self._text.content + delta.content
        )
        if self._text:
            self.has_text.set()

    def take_text(self) -> TextDelta:
        """The text since the last time."""
        text, self._text = self._text, TextDelta()
        self.has_text.clear()
        return text

    def detach(self) -> None:
        """The client hung up."""
        if self.is_live:
            self.is_live = False
            self.refuse(ClientGoneError())
            self._on_change(self)

    def close(self, *, was_written: bool) -> None:
        """The reply was written to the connection in full, or cut off."""
        if self._result.done() and self._result.exception() is None:
            self._on_written(self._result.result().turn_id, was_written)

    def resolve(self, receipt: Receipt) -> None:
        """Hand over the reply."""
        if not self._result.done():
            self._result.set_result(receipt)

    def refuse(self, error: Exception) -> None:
        """Hand over why there is no reply."""
        if not self._result.done():
            self._result.set_exception(error)
            self._result.exception()  # a waiter that has left never asks for it
