"""Events to bytes and back, bit for bit.

::

    record   = version (1 byte)  checksum of what follows (8 bytes)  packed [name, fields, shared values that are new]
    payloads = the turn's large arrays, which the store puts beside its records

The records of one session are written and read in order, since a later one refers to what an earlier one shared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from typing import Any, TypeAlias

from numpy.typing import NDArray

from turnkeeper.channels import ItemRun
from turnkeeper.core.event import Event
from turnkeeper.errors import StoreRecordError, StoreVersionError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.store.opening import SessionOpening
from turnkeeper.store.packing import pack, unpack
from turnkeeper.store.payload import Payload, compute_checksum
from turnkeeper.store.schema import EVENT_NAMES, EVENTS, VERSION

_HEAD = Struct("<BQ")

StoredEvent: TypeAlias = Event | SessionOpening
"""An event of a session as the store has it: the first one is its opening with all that belongs to it."""

FindPayload: TypeAlias = Callable[[int], ItemRun | None]
"""Gives a payload of the record that is being read, by its number; None where it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedEvent:
    """One event as it is stored."""

    record: bytes
    payloads: tuple[Payload, ...]


class SessionEncoder:
    """Writes the events of one session."""

    def __init__(self, shared: Sequence[JsonObject] = ()) -> None:
        """Go on behind records that share these values already."""
        self._shared = _Shared()
        for value in shared:
            self._shared.number(value)

    def encode(self, event: StoredEvent) -> EncodedEvent:
        """Encode the next event.

        Raises:
            TypeError: the event holds a value that cannot be stored.
        """
        name, out, mark = EVENT_NAMES.get(type(event)), _Outgoing(self._shared), self.mark()
        if name is None:
            raise TypeError(f"{type(event).__name__} is no stored event")
        try:
            packed = pack([name, EVENTS[name].write(event, out), out.new])
        except BaseException:
            self.undo(mark)
            raise
        return EncodedEvent(record=_HEAD.pack(VERSION, compute_checksum(packed)) + packed, payloads=tuple(out.payloads))

    def mark(self) -> int:
        """A point to which ``undo`` can return."""
        return len(self._shared)

    def undo(self, mark: int) -> None:
        """Forget what was shared since the mark, since the records that shared it were not stored."""
        self._shared.cut(mark)


class SessionDecoder:
    """Reads the records of one session, in order."""

    def __init__(self) -> None:
        self.shared: list[JsonObject] = []
        """The values that its records share."""

    def decode(self, record: bytes, find_payload: FindPayload = lambda _: None) -> StoredEvent:
        """Decode the next record.

        Args:
            record: what ``SessionEncoder.encode`` made.
            find_payload: gives the payloads of the record.

        Raises:
            StoreVersionError: a newer version wrote the record.
            StoreRecordError: the record is torn or corrupt; nothing of it is kept.
        """
        packed = _check(record)
        try:
            name, fields, shared = unpack(packed)
            source = _Incoming([*self.shared, *shared], find_payload)
            event = EVENTS[name].read(fields, source)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StoreRecordError(f"a record whose checksum is right makes no event: {error!r}"[:300]) from error
        self.shared = source.shared
        return event


def _check(record: bytes) -> memoryview:
    """What stands behind the head of a record, where its version is known and its checksum right."""
    if record and record[0] > VERSION:
        raise StoreVersionError(
            f"a record of version {record[0]} was found, and this server reads versions up to {VERSION}",
            hint="start the version of turnkeeper that wrote the store, or a later one",
            found=record[0],
            known=VERSION,
        )
    if len(record) < _HEAD.size:
        raise StoreRecordError(f"a record has at least {_HEAD.size} bytes, this one has {len(record)}")
    _, checksum = _HEAD.unpack_from(record)
    packed = memoryview(record)[_HEAD.size :]
    if compute_checksum(packed) != checksum:
        raise StoreRecordError(f"the checksum of a record of {len(record)} bytes is wrong: it is torn or corrupt")
    return packed


class _Shared:
    """The values that a session's records share, each with its number."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._values: list[JsonObject] = []
        self._digests: dict[int, bytes] = {}
        """By the identity of a value that is held above: a session's turns have one object for equal tools."""

    def __len__(self) -> int:
        return len(self._values)

    def number(self, value: JsonObject) -> int:
        digest = self._digests.get(id(value)) or blake2b(pack(value), digest_size=16).digest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._numbers)
            self._digests[id(value)] = digest
            self._values.append(value)
        return self._numbers[digest]

    def cut(self, count: int) -> None:
        while len(self._values) > count:
            digest = self._digests.pop(id(self._values.pop()))
            del self._numbers[digest]


@dataclass(slots=True)
class _Outgoing:
    shared: _Shared
    new: list[JsonObject] = field(default_factory=list[JsonObject])
    payloads: list[Payload] = field(default_factory=list[Payload])

    def share(self, value: JsonObject) -> int:
        before, number = len(self.shared), self.shared.number(value)
        if number == before:
            self.new.append(value)
        return number

    def add_payload(self, channel: str, array: NDArray[Any]) -> int:
        self.payloads.append(Payload(channel=channel, array=array))
        return len(self.payloads) - 1


@dataclass(frozen=True, slots=True)
class _Incoming:
    shared: list[JsonObject]
    find_payload: FindPayload

    def get_shared(self, number: int) -> JsonObject:
        return self.shared[number]

    def get_payload(self, number: int) -> ItemRun | None:
        return self.find_payload(number)
