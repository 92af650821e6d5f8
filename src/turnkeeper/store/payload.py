"""Payloads: the large arrays of a turn, which are stored beside its record and not in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from turnkeeper.store.packing import pack, unpack


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Payload:
    """An array that is to be stored."""

    channel: str
    """The name of a run of a side channel, such as ``routed_experts``."""
    array: NDArray[Any]

    @property
    def data(self) -> memoryview:
        """The bytes of the array in C order, little-endian."""
        array = self.array.astype(self.array.dtype.newbyteorder("<"), order="C", copy=False)
        return array.reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPlace:
    """Where in its session's row file a payload stands, and what it is."""

    channel: str
    """The channel's name; one that a later version adds is kept as it is."""
    offset: int
    """The place of its first byte."""
    size_bytes: int
    dtype: str
    """As numpy spells it: ``|u1``, ``<u2``, ``<i4``."""
    shape: tuple[int, ...]
    checksum: int
    """XXH3 of its bytes, 64 bits."""

    @property
    def stop(self) -> int:
        """One past the place of its last byte."""
        return self.offset + self.size_bytes

    def read(self, data: bytes | memoryview) -> NDArray[Any]:
        """Shape ``shape``: the array that these bytes are, read-only and without a copy."""
        array = np.frombuffer(data, self.dtype).reshape(self.shape)
        array.setflags(write=False)
        return array


def place_payloads(payloads: Sequence[Payload], offset: int) -> tuple[PayloadPlace, ...]:
    """Say where payloads stand that are written one after the other from an offset on, each with its checksum."""
    places: list[PayloadPlace] = []
    for payload in payloads:
        data = payload.data
        places.append(
            PayloadPlace(
                channel=payload.channel,
                offset=offset,
                size_bytes=len(data),
                dtype=payload.array.dtype.newbyteorder("<").str,
                shape=payload.array.shape,
                checksum=compute_checksum(data),
            )
        )
        offset += len(data)
    return tuple(places)


def compute_checksum(data: bytes | memoryview) -> int:
    """Compute the checksum of stored bytes: XXH3, 64 bits. It finds torn writes and bad disks, not forgers."""
    return xxh3_64_intdigest(data)


def new_checksum() -> xxh3_64:
    """Begin the checksum of bytes that come in pieces: ``update`` takes the next one, ``intdigest`` is the checksum."""
    return xxh3_64()


def pack_places(places: Sequence[PayloadPlace]) -> bytes:
    """Pack the places of a turn's payloads as its record holds them; nothing for none."""
    rows = [[each.channel, each.offset, each.size_bytes, each.dtype, each.shape, each.checksum] for each in places]
    return pack(rows) if rows else b""


def unpack_places(data: bytes) -> tuple[PayloadPlace, ...]:
    """Unpack what ``pack_places`` made.

    Raises:
        ValueError: the bytes are no places.
    """
    return tuple(
        PayloadPlace(
            channel=channel, offset=offset, size_bytes=size, dtype=dtype, shape=tuple(shape), checksum=checksum
        )
        for channel, offset, size, dtype, shape, checksum in (unpack(data) if data else ())
    )
