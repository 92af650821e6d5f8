"""Events to bytes and back.

1. Every event comes back as it was, to the last bit, and encodes to the same bytes again.
2. A tool that many turns have is stored once a session; undoing forgets what was not stored.
3. A record of a newer version is refused and named; a torn or corrupt record is refused, whichever bit is wrong.
4. The schema names every field of what is stored.
5. Routing and indexer rows are payloads beside the record; one that is lost leaves the rest of the turn.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sessionkit import Talk, user
from storekit import EVENTS, TURNS, spell
from turnkeeper.channels import ItemRun
from turnkeeper.core import Session, TurnRequest
from turnkeeper.core.event import SessionOpened, TurnCommitted
from turnkeeper.errors import StoreRecordError, StoreVersionError
from turnkeeper.store import SessionDecoder, SessionEncoder, schema
from turnkeeper.store.codec import EncodedEvent
from turnkeeper.store.payload import Payload, compute_checksum, pack_places, place_payloads, unpack_places
from turnkeeper.store.schema import Schema


def find_in(encoded: EncodedEvent) -> Any:
    """The payloads of an event, read back from their bytes."""

    def find(number: int) -> NDArray[Any]:
        payload = encoded.payloads[number]
        (place,) = unpack_places(pack_places(place_payloads([payload], 0)))
        assert place.checksum == compute_checksum(payload.data)
        assert place.channel == payload.channel
        return ItemRun(place.read(bytes(payload.data)))

    return find


@given(events=st.lists(EVENTS, max_size=4))
@settings(max_examples=80, deadline=None)
def test_events_come_back_as_they_were_to_the_last_bit(events: list[Any]) -> None:
    encoder, decoder, again = SessionEncoder(), SessionDecoder(), SessionEncoder()
    for event in events:
        encoded = encoder.encode(event)
        decoded = decoder.decode(encoded.record, find_in(encoded))
        assert spell(decoded) == spell(event)
        assert again.encode(decoded).record == encoded.record


@given(turn=TURNS, data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_record_with_a_wrong_bit_is_refused(turn: Any, data: st.DataObject) -> None:
    record = SessionEncoder().encode(TurnCommitted(at=1.0, turn=turn)).record
    place = data.draw(st.integers(1, len(record) - 1))
    broken = record[:place] + bytes([record[place] ^ 1 << data.draw(st.integers(0, 7))]) + record[place + 1 :]
    with pytest.raises(StoreRecordError):
        SessionDecoder().decode(broken)
    with pytest.raises(StoreRecordError):
        SessionDecoder().decode(record[:place])


def told(*tools: dict[str, Any]) -> TurnCommitted:
    talk = Talk()
    talk.say(user("u"), tools=tools)
    event = talk.session.events[-1]
    assert isinstance(event, TurnCommitted)
    return event


TOOL = {"name": "search", "about": "x" * 1000}


def test_a_tool_is_stored_once_a_session() -> None:
    encoder, decoder = SessionEncoder(), SessionDecoder()
    first, second = encoder.encode(told(TOOL)), encoder.encode(told(TOOL, {"name": "other"}))
    assert len(first.record) > 1000 > len(second.record)
    one, two = (decoder.decode(each.record) for each in (first, second))
    assert isinstance(one, TurnCommitted)
    assert isinstance(two, TurnCommitted)
    assert one.turn.request.tools[0] is two.turn.request.tools[0]
    assert two.turn.request.tools == (TOOL, {"name": "other"})


def test_an_encoder_goes_on_behind_what_a_decoder_read() -> None:
    decoder = SessionDecoder()
    decoder.decode(SessionEncoder().encode(told(TOOL)).record)
    assert len(SessionEncoder(decoder.shared).encode(told(TOOL)).record) < 1000


def test_what_was_not_stored_is_shared_again() -> None:
    encoder = SessionEncoder()
    mark = encoder.mark()
    whole = encoder.encode(told(TOOL)).record
    encoder.undo(mark)
    assert len(encoder.encode(told(TOOL)).record) == len(whole)


def test_an_event_that_cannot_be_stored_shares_nothing() -> None:
    encoder = SessionEncoder()
    with pytest.raises(TypeError):
        encoder.encode(told(TOOL, {"name": object()}))
    assert len(encoder.encode(told(TOOL)).record) > 1000


def test_a_record_of_a_newer_version_is_refused_and_named() -> None:
    record = SessionEncoder().encode(told()).record
    with pytest.raises(StoreVersionError, match=r"version 2 was found.*up to 1") as refused:
        SessionDecoder().decode(bytes([2]) + record[1:])
    assert refused.value.facts == {"found": 2, "known": 1}


def test_a_record_that_refers_to_what_is_not_there_is_refused() -> None:
    encoder = SessionEncoder()
    encoder.encode(told(TOOL))
    record = encoder.encode(told(TOOL)).record
    with pytest.raises(StoreRecordError, match="makes no event"):
        SessionDecoder().decode(record)


@given(turn=TURNS)
@settings(max_examples=30, deadline=None)
def test_a_turn_whose_payloads_are_lost_is_there_without_them(turn: Any) -> None:
    decoded = SessionDecoder().decode(SessionEncoder().encode(TurnCommitted(at=1.0, turn=turn)).record)
    without = dataclasses.replace(turn.completion, channels={})
    assert spell(decoded) == spell(TurnCommitted(at=1.0, turn=dataclasses.replace(turn, completion=without)))


LEFT_OUT = {"Tree": {"kind"}, "Linear": {"kind"}}
"""Fields that are not stored: the name of a policy is the tag that its record bears."""

SCHEMAS = {each.made: each for each in [*vars(schema).values(), *schema.EVENTS.values()] if isinstance(each, Schema)}


@pytest.mark.parametrize("made", SCHEMAS, ids=lambda made: made.__name__)
def test_the_schema_names_every_field(made: Any) -> None:
    names = {each.name for each in dataclasses.fields(made)} - LEFT_OUT.get(made.__name__, set())
    fields = SCHEMAS[made].fields
    assert {each.name for each in fields} == names
    assert len({each.stored_as for each in fields}) == len(fields)


def test_a_bare_opening_is_refused() -> None:
    opened = Session.open(Talk().session.policy).events[0]
    assert isinstance(opened, SessionOpened)
    with pytest.raises(TypeError, match="SessionOpened"):
        SessionEncoder().encode(opened)


def test_a_field_that_a_record_lacks_has_its_default() -> None:
    fields = Schema(TurnRequest, schema.SchemaField("messages", schema.TUPLE), schema.SchemaField("sampling", None, {}))
    one, two = (fields.read({"messages": []}, None) for _ in range(2))  # type: ignore[arg-type]
    assert one == TurnRequest(messages=())
    assert one.sampling is not two.sampling


def test_a_payload_of_another_byte_order_is_stored_little_endian() -> None:
    array = np.array([[1, 2]], dtype=">i4")
    payload = Payload(channel="indexer_topk", array=array)
    (place,) = place_payloads([payload], 7)
    assert (place.offset, place.stop, place.dtype, place.shape) == (7, 15, "<i4", (1, 2))
    assert place.read(bytes(payload.data)).tolist() == [[1, 2]]
