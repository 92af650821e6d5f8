"""Call ids, unique along a session whatever engines give.

Agents pair each tool result with its call by the call's id, and engines repeat ids: ``call_0`` in every reply,
``functions.look:0`` from Kimi, or no id at all. So a call may have two ids::

    sampled   call_0                          what the engine gave: in prompts and in messages to the engine
    shown     call_5d0b61c2f7a94e8830b1a6c4   what the agent gets and replays, and what requests are matched against

An id that no turn of the session has used, committed or in flight, is both. Any other call gets a new id when its
reply is built, before anybody is shown it. A call that came without an id has only the new one.

Every look-up is one in a set or a table: nothing here walks through the history.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnkeeper.core.turn import Turn
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.matching import Difference, DifferenceKind, NormalMessage

TokenBytes: TypeAlias = Callable[[int], bytes]
"""Gives so many random bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReply:
    """An engine's message under the call ids that its agent gets."""

    message: Message
    """With the shown ids."""
    sampled_ids: Mapping[str, str]
    """Shown id to sampled id, of each call whose own id was in use."""


def name_calls(message: Message, is_used: Callable[[str], bool], token_bytes: TokenBytes) -> NamedReply:
    """Give each call an id of its own: the engine's where it is not in use, else ``call_`` and 24 random hex digits.

    Args:
        message: the engine's, in canonical form.
        is_used: returns True for an id that is in use.
        token_bytes: where randomness comes from.
    """
    calls: Sequence[JsonObject] = message.get("tool_calls") or ()
    names: dict[str, str] = {}
    for call in calls:
        given = str(call.get("id") or "")
        is_free = given and given not in names and not is_used(given)
        names[given if is_free else f"call_{token_bytes(12).hex()}"] = given
    sampled_ids = {name: given for name, given in names.items() if given and given != name}
    if all(call.get("id") == name for call, name in zip(calls, names, strict=True)):
        return NamedReply(message=message, sampled_ids=sampled_ids)
    named = [{**call, "id": name} for call, name in zip(calls, names, strict=True)]
    return NamedReply(message={**message, "tool_calls": named}, sampled_ids=sampled_ids)


class UsedIds:
    """The call ids of a session's committed turns."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._sampled_of: dict[str, str] = {}

    def __contains__(self, call_id: object) -> bool:
        """Return True when a committed turn has used the id."""
        return call_id in self._used

    def add(self, turn: Turn, segment: Sequence[NormalMessage]) -> None:
        """Note the ids of a turn: those of its calls, of calls that its client carried, and names that clients gave.

        Args:
            turn: one that is being committed.
            segment: its messages and its completion's, as the matchers see them.
        """
        self._used.update(list_ids(segment), list_renames(turn.accepted))
        self._sampled_of.update(turn.completion.sampled_ids)

    def restore(self, message: Message) -> Message:
        """Return a message under the ids that the engine sampled: those of its calls, and that of the call which a
        result answers."""
        restored: JsonObject = {}
        answered = message.get("tool_call_id")
        if self._find_sampled(answered) is not None:
            restored["tool_call_id"] = self._find_sampled(answered)
        calls: list[JsonObject] = message.get("tool_calls") or []
        if any(self._find_sampled(call.get("id")) is not None for call in calls):
            restored["tool_calls"] = [
                {**call, "id": self._find_sampled(call.get("id")) or call.get("id")} for call in calls
            ]
        return {**message, **restored} if restored else message

    def _find_sampled(self, shown: object) -> str | None:
        return self._sampled_of.get(shown) if isinstance(shown, str) else None


class HeldIds:
    """The call ids of turns in flight: each is held for a turn until that turn ends."""

    def __init__(self) -> None:
        self._of: dict[int, list[str]] = {}
        self._holders: Counter[str] = Counter()

    def __contains__(self, call_id: object) -> bool:
        """Return True when a turn in flight holds the id."""
        return call_id in self._holders

    def hold(self, number: int, ids: Iterable[str]) -> None:
        """Hold ids for a pending turn, beside those that it holds already."""
        added = list(ids)
        self._of.setdefault(number, []).extend(added)
        self._holders.update(added)

    def release(self, number: int) -> None:
        """Give up the ids that are held for a pending turn, which has ended."""
        for call_id in self._of.pop(number, ()):
            self._holders[call_id] -= 1
            if not self._holders[call_id]:
                del self._holders[call_id]


def list_ids(messages: Iterable[NormalMessage]) -> Iterable[str]:
    """List every call id that the messages name."""
    return (call_id for message in messages for call_id in message.call_ids)


def list_renames(accepted: Iterable[Difference]) -> Iterable[str]:
    """List the names that a client gave to calls of this session, where a matcher accepted other names than ours."""
    return (each.replayed for each in accepted if each.kind is DifferenceKind.CALL_ID)
