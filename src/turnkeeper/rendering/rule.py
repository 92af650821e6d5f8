"""The seam for families that write assistant history themselves.

Where no template argument keeps earlier thinking, the checkpoint's template renders only the head of a conversation
(everything before its first assistant message); a rule writes the rest, thinking kept, so that what follows a
sampled turn is what the model would see in place.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from turnkeeper.jsontypes import Message


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
