"""A conversation in canonical form, the one that sessions store and renderers read: chat-completions messages.

What the parsers of all dialects share while they bring a conversation into that form.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.dialects.jsonbody import describe_json
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, Message, is_array


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages in canonical form, with what was left out or changed on the way."""

    messages: tuple[Message, ...]
    notes: tuple[str, ...]
    """What was left out or changed, a sentence each."""
    references: tuple[str, ...] = ()
    """The names of the tools that tool results refer to, in their order."""


@dataclass(slots=True)
class AssistantDraft:
    """An assistant message while its blocks or items are parsed."""

    reasoning: list[str] = field(default_factory=list[str])
    texts: list[str] = field(default_factory=list[str])
    calls: list[JsonObject] = field(default_factory=list[JsonObject])

    def build(self) -> Message:
        """Build the message: its texts joined, reasoning and calls where there are any."""
        message: JsonObject = {"role": "assistant", "content": "".join(self.texts)}
        if any(self.reasoning):
            message["reasoning_content"] = "".join(self.reasoning)
        return message | ({"tool_calls": self.calls} if self.calls else {})


def get_messages(value: Any) -> list[Any]:
    """Check that ``messages`` is a list, and not an empty one.

    Raises:
        RequestError: it is something else.
    """
    if not is_array(value) or not value:
        found = "an empty list" if value == [] else describe_json(value)
        raise RequestError(f"messages must be a list with at least one message, got {found}", param="messages")
    return value


def order_results(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Bring the results of parallel tool calls into the order of the calls.

    Harnesses send results in the order in which tools finish, and may send the same results in another order later on.
    A run of results that does not answer the calls before it one by one stays as it came.
    """
    ordered: list[Message] = []
    run: list[Message] = []
    places: dict[Any, int] = {}
    for message in messages:
        if message.get("role") == "tool":
            run.append(message)
            continue
        ordered += _sort_run(run, places)
        run = []
        places = {call.get("id"): place for place, call in enumerate(message.get("tool_calls") or ())}
        ordered.append(message)
    return (*ordered, *_sort_run(run, places))


def _sort_run(run: list[Message], places: Mapping[Any, int]) -> list[Message]:
    if len(run) < 2:
        return run
    ids = [message.get("tool_call_id") for message in run]
    if len(set(ids)) < len(ids) or not places.keys() >= set(ids):
        return run
    return sorted(run, key=lambda message: places[message.get("tool_call_id")])
