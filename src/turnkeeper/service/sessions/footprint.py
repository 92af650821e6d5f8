"""Measures the memory of a session, part by part: the one list of what an agent or a trainer can make grow.

Arrays are measured exactly, texts by length and alphabet, every other value by a constant. Each part is kept up to date
while it changes (``SessionEntry``), so that no request pays for a whole session; `measure_session` measures all of it
anew. Pure.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.turn import Turn
from turnkeeper.dialects.repetition import KnownRequest
from turnkeeper.jsontypes import is_array
from turnkeeper.matching import NormalMessage
from turnkeeper.service.sessions.settings import NewSession

if TYPE_CHECKING:
    from turnkeeper.service.sessions.entry import SessionEntry
    from turnkeeper.service.turns import TextDelta


class Part(StrEnum):
    """A part of a session."""

    SETTINGS = "settings"
    """The session itself, with the metadata and the pins of whoever created it."""
    TURNS = "turns"
    """The turns without tools and the items of side channels: messages, ids, log-probabilities, what their requests
    asked for, harness headers and idempotency keys, marks, differences that were accepted."""
    TOOLS = "tools"
    """The definitions of its tools, each of which is held once."""
    ROWS = "rows"
    """The items of side channels, such as routing rows, that its turns hold in memory; on disk they count apart."""
    PATHS = "paths"
    """The ids of the paths that are held joined."""
    MISMATCHES = "mismatches"
    """The mismatches that were found between ids and messages of a path."""
    EVENTS = "events"
    """The events of the session, such as a call that was given up or a reply that was delivered."""
    RECEIPTS = "receipts"
    """The receipts of its collects, where no store holds them."""
    KNOWN = "known"
    """The new messages of the last request, and the places where the parts of its body end."""
    PROMPT_TEXT = "prompt_text"
    """The ids and the JSON of its last prompt, while the sessions together do not hold too much of that."""
    IN_FLIGHT = "in_flight"
    """The requests of turns in flight, and the text that was generated for them so far."""


SESSION_BYTES, TURN_BYTES, EVENT_BYTES, MESSAGE_BYTES = 5120, 5120, 256, 1024
"""The bytes of a session, a turn (with the report of its end, and what became of its tokens), an event and a message
of a request, without any text."""

RECEIPT_BYTES = 512
"""A receipt of a collect, with its place among the others."""

MEMBER_BYTES = 8
"""What a byte of a body's members takes once it is parsed: a schema of tools has many small values."""

_WIDE_BYTES = 4
"""What a character takes in a text that is not all ASCII; a narrower text is often held in UTF-8 as well."""

_PLACE_BYTES, _PAIR_BYTES = 48, 120
"""A tuple, and a pair of a whole number and a double with its place in one, as CPython holds them."""


_SEQUENCES = (list, tuple)
_MAPPINGS = (dict, Mapping)  # a dict first: asking whether a value is a Mapping takes ten times as long


def measure_session(entry: "SessionEntry") -> Mapping[Part, int]:
    """Measure every part of a session anew, in bytes."""
    session, turns = entry.session, entry.session.forest.turns
    return {
        Part.SETTINGS: measure_settings(entry.settings),
        Part.TURNS: sum(map(measure_turn, turns)),
        Part.TOOLS: sum(map(measure_value, session.kept_tools)),
        Part.ROWS: sum(map(measure_rows, turns[entry.spilled_turns :])),
        Part.PATHS: session.forest.joined_bytes,
        Part.MISMATCHES: sum(measure_value(found) for found in entry.mismatches.values()),
        Part.EVENTS: len(session.events) * EVENT_BYTES,
        Part.RECEIPTS: len(entry.receipts) * RECEIPT_BYTES,
        Part.KNOWN: measure_known(entry.known, entry.known_new),
        Part.PROMPT_TEXT: entry.prompt_text.size_bytes,
        Part.IN_FLIGHT: sum(
            measure_pending(turn.pending) + sum(map(measure_text, turn.texts)) for turn in entry.in_flight.values()
        ),
    }


def measure_settings(settings: NewSession) -> int:
    """Measure a session before its first turn, in bytes."""
    return SESSION_BYTES + measure_value(settings.metadata) + measure_value(dict(settings.pins))


def measure_turn(turn: Turn) -> int:
    """Measure a turn without the items of side channels and its tools, in bytes."""
    completion, request = turn.completion, turn.request
    arrays = turn.prompt.ids.nbytes + completion.ids.nbytes + completion.logprobs.nbytes
    tops = sum(_PLACE_BYTES + _PAIR_BYTES * len(place) for place in completion.top_logprobs or ())
    # Matchers keep the text of a message that came in parts once more, joined.
    messages = sum(measure_value(message) + _measure_joined(message.get("content")) for message in turn.messages)
    fields = (request.chat_template_kwargs, request.sampling, request.forwarded, request.headers, completion.meta)
    said = (request.dropped_fields, request.notes, turn.prompt.chat_template_kwargs, completion.marks)
    names = (
        request.model,
        request.digest,
        request.retry.key,
        completion.sampled_ids,
        turn.rewrite and turn.rewrite.form,
    )
    rest = sum(measure_value(value) for value in (completion.message, *fields, *said, *names))
    accepted = sum(512 + measure_string(each.stored) + measure_string(each.replayed) for each in turn.accepted)
    return TURN_BYTES + arrays + tops + messages + rest + accepted


def measure_rows(turn: Turn) -> int:
    """Measure the items that a turn keeps of side channels, in bytes; those that are stored take no memory."""
    channels = turn.completion.channels.values()
    return sum(run.size_bytes for items in channels for run in items.runs if run.in_memory)


def measure_pending(pending: PendingTurn) -> int:
    """Measure the request of a turn in flight with all of its messages that no turn holds, in bytes."""
    messages = pending.query.messages
    held = len(messages) - len(pending.shown) if pending.is_exact else 0
    return _PLACE_BYTES * held + measure_messages(messages[held:])


def measure_known(known: KnownRequest | None, new: int) -> int:
    """Measure what is known of a request, of whose messages so many are held by no turn, in bytes."""
    if known is None:
        return 0
    messages, body = known.query.messages, known.body
    places = _PLACE_BYTES * len(messages) + _PAIR_BYTES * len(body.parts)
    return places + measure_messages(messages[len(messages) - new :]) + MEMBER_BYTES * body.members_bytes


def measure_messages(messages: Sequence[NormalMessage]) -> int:
    """Measure messages as matchers see them, in bytes."""
    size = 0
    for message in messages:  # a plain loop, since most messages have nothing but content
        size += MESSAGE_BYTES + measure_string(message.content)
        if message.reasoning:
            size += measure_string(message.reasoning)
        if message.media:
            size += sum(map(len, message.media))
        for call in message.calls:
            size += measure_string(call.arguments)
    return size


def measure_text(text: "TextDelta") -> int:
    """Measure a part of generated text while its turn is in flight, in bytes."""
    return _PAIR_BYTES + measure_string(text.reasoning) + measure_string(text.content)


def measure_string(text: str) -> int:
    """Measure the characters of a text in bytes: one emoji makes each of them four bytes wide."""
    return len(text) if text.isascii() else _WIDE_BYTES * len(text)


def measure_value(value: Any) -> int:
    """Estimate the memory of a JSON value, in bytes."""
    if isinstance(value, str):
        return 50 + (len(value) if value.isascii() else _WIDE_BYTES * len(value))
    if isinstance(value, _MAPPINGS):
        size = 100
        for name, item in cast("Mapping[str, Any]", value).items():
            # Texts are measured in place: of the values of a turn they are the most.
            size += 50 + (len(name) if name.isascii() else _WIDE_BYTES * len(name))
            if isinstance(item, str):
                size += 50 + (len(item) if item.isascii() else _WIDE_BYTES * len(item))
            else:
                size += measure_value(item)
        return size
    if isinstance(value, _SEQUENCES):
        return 60 + sum(map(measure_value, cast("Sequence[Any]", value)))
    return 30


def _measure_joined(content: Any) -> int:
    return measure_value(content) if is_array(content) else 0
