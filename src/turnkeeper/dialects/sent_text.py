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


@dataclass(slots=True)
class SentText:
    """The texts that went out so far."""

    reasoning: str = ""
    content: str = ""

    def add(self, *, reasoning: str, content: str) -> None:
        """More went out."""
        self.reasoning += reasoning
        self.content += content

    def get_unsent(self, message: Message) -> UnsentText:
        """What the finished message adds.

        Raises:
            EngineProtocolError: the message does not begin with what was said.
        """
        reasoning, content = _text(message.get("reasoning_content")), _text(message.get("content"))
        if not reasoning.startswith(self.reasoning) or not content.startswith(self.content):
            raise EngineProtocolError("the finished reply does not begin with the text that was streamed")
        return UnsentText(reasoning=reasoning[len(self.reasoning) :], content=content[len(self.content) :])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
