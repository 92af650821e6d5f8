"""The part of a reply that a stream has already sent."""

from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsentText:
    """The part of a message's texts that was not sent yet."""

    reasoning: str
    content: str


class GrowingText:
    """A text that grows in pieces: adding one costs the same however long the text is."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def __bool__(self) -> bool:
        """Tell whether there is any text."""
        return bool(self._pieces)

    def __str__(self) -> str:
        """Join the whole text; pieces that were joined before are not joined again one by one."""
        self._pieces = ["".join(self._pieces)] if self._pieces else []
        return self._pieces[0] if self._pieces else ""

    def add(self, piece: str) -> None:
        """Add a piece."""
        if piece:
            self._pieces.append(piece)


class SentText:
    """The texts that were sent so far."""

    def __init__(self) -> None:
        self.reasoning = GrowingText()
        self.content = GrowingText()

    def add(self, *, reasoning: str, content: str) -> None:
        """Add texts that are sent now."""
        self.reasoning.add(reasoning)
        self.content.add(content)

    def get_unsent(self, message: Message) -> UnsentText:
        """Get the rest of the finished message.

        Raises:
            EngineProtocolError: the message does not begin with the texts that were sent.
        """
        reasoning, content = _text(message.get("reasoning_content")), _text(message.get("content"))
        sent_reasoning, sent_content = str(self.reasoning), str(self.content)
        if not reasoning.startswith(sent_reasoning) or not content.startswith(sent_content):
            raise EngineProtocolError("the finished reply does not begin with the text that was streamed")
        return UnsentText(reasoning=reasoning[len(sent_reasoning) :], content=content[len(sent_content) :])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
