"""The seam for families that write assistant history themselves.

Where no template argument keeps earlier thinking, the checkpoint's template renders only the head of a conversation
(everything before its first assistant message); a rule writes the rest, thinking kept, so that what follows a
sampled turn is what the model would see in place.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from turnkeeper.jsontypes import JsonObject, Message


class HistoryRule(Protocol):
    """Writes messages behind the head. Stateless; the same input gives the same text."""

    def write(self, messages: Sequence[Message], earlier: Sequence[Message], arguments: Mapping[str, Any]) -> str:
        """The text of messages in place.

        Args:
            messages: the messages to write; a run of tool results is whole.
            earlier: what stands before them, read only to resolve the calls that tool results answer.
            arguments: the effective template arguments.
        """
        ...


class Encoder(HistoryRule, Protocol):
    """Writes whole conversations, for checkpoints that come without a chat template."""

    def write_head(self, head: Sequence[Message], tools: Sequence[JsonObject], arguments: Mapping[str, Any]) -> str:
        """Everything before the first message that is no system message: BOS, system texts, tools.

        Args:
            head: the leading system messages.
            tools: function tools.
            arguments: the effective template arguments.
        """
        ...

    def write_opening(self, last: Message | None, arguments: Mapping[str, Any]) -> str:
        """What opens the assistant's message behind a message; the beginning of the conversation is None."""
        ...
