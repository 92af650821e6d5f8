"""How much of a reply a stream has already said."""

from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import EngineProtocolError
from turnkeeper.jsontypes import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsentText:
    """What of a message's texts is still to be said."""

    reasoning: str
    content: str


class GrowingText:
    """A text that grows in pieces: adding one costs the same however long the text is."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._pieces)

    def __str__(self) -> str:
        """The whole text; joined once for all pieces that came since."""
        self._pieces = ["".join(self._pieces)] if self._pieces else []
        return self._pieces[0] if self._pieces else ""

    def add(self, piece: str) -> None:
        """More text."""
        if piece:
            self._pieces.append(piece)


class SentText:
    """The texts that went out so far."""

    def __init__(self) -> None:
        self.reasoning = GrowingText()
        self.content = GrowingText()

    def add(self, *, reasoning: str, content: str) -> None:
        """More went out."""
        self.reasoning.add(reasoning)
        self.content.add(content)

    def get_unsent(self, message: Message) -> UnsentText:
        """What the finished message adds.

        Raises:
            EngineProtocolError: the message does not begin with what was said.
        """
        reasoning, content = _text(message.get("reasoning_content")), _text(message.get("content"))
        said_reasoning, said_content = str(self.reasoning), str(self.content)
        if not reasoning.startswith(said_reasoning) or not content.startswith(said_content):
            raise EngineProtocolError("the finished reply does not begin with the text that was streamed")
        return UnsentText(reasoning=reasoning[len(said_reasoning) :], content=content[len(said_content) :])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
