"""Values as bytes: MessagePack for JSON, and its extension types for what strangers' JSON and numpy hold beyond it.

Everything comes back as it was: whole numbers of any size, each bit of a float, texts with lone surrogates, tuples as
tuples, arrays with their dtype and shape. Knows nothing of sessions and events.
"""

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from struct import pack as pack_integers
from typing import Any, cast

import numpy as np
import ormsgpack
from numpy.typing import NDArray

from turnkeeper.jsontypes import is_array, is_object


class Extension(IntEnum):
    """The extension types, by the number that stands in the bytes."""

    BIG_INT = 1
    """A whole number beyond 64 bits: its decimal digits."""
    TUPLE = 2
    """A tuple: a packed list."""
    TEXT = 3
    """A text with lone surrogates: UTF-8 in which each surrogate takes three bytes."""
    MAP = 4
    """An object with such a text among its keys: a packed list of keys and values in turn."""
    ARRAY = 5
    """An array: its head, its lengths, its bytes."""


_HEAD = Struct("<3sx3sB")
"""The dtype of an array, the dtype in which it is held, the number of its axes. Eight bytes, so that what stands
behind is aligned."""
_LENGTH = np.dtype("<i8")
_DTYPES = frozenset({"|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"})
_OPTIONS = ormsgpack.OPT_PASSTHROUGH_TUPLE | ormsgpack.OPT_PASSTHROUGH_BIG_INT


def pack(value: Any) -> bytes:
    """Pack a value.

    Raises:
        TypeError: the value holds what is neither JSON nor an array.
    """
    try:
        return ormsgpack.packb(value, default=_extend, option=_OPTIONS)
    except ormsgpack.MsgpackEncodeError:
        return ormsgpack.packb(_extend_texts(value), default=_extend, option=_OPTIONS)


def unpack(data: bytes | memoryview) -> Any:
    """Unpack what ``pack`` made; arrays are read-only.

    Raises:
        ValueError: the bytes are no packed value.
    """
    return ormsgpack.unpackb(data, ext_hook=_read_extension)


def _extend(value: Any) -> Any:
    """What MessagePack has no type for."""
    if isinstance(value, np.ndarray):
        return ormsgpack.Ext(Extension.ARRAY, _pack_array(cast("NDArray[Any]", value)))
    if isinstance(value, tuple):
        return ormsgpack.Ext(Extension.TUPLE, pack(list(cast("tuple[Any, ...]", value))))
    if isinstance(value, int):
        return ormsgpack.Ext(Extension.BIG_INT, str(value).encode())
    if isinstance(value, np.generic):
        return cast("np.generic[Any]", value).item()
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"{type(value).__name__} cannot be stored")


def _extend_texts(value: Any) -> Any:
    """Return a copy in which each text with lone surrogates, and each object with such a key, is an extension."""
    if isinstance(value, str):
        return value if _is_sound(value) else ormsgpack.Ext(Extension.TEXT, value.encode("utf-8", "surrogatepass"))
    if is_array(value):
        return [_extend_texts(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_extend_texts(item) for item in cast("tuple[Any, ...]", value))
    if is_object(value):
        if all(map(_is_sound, value)):
            return {key: _extend_texts(item) for key, item in value.items()}
        return ormsgpack.Ext(Extension.MAP, pack([part for pair in value.items() for part in pair]))
    return value


def _is_sound(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _read_extension(number: int, data: bytes) -> Any:
    match number:
        case Extension.ARRAY:
            return _unpack_array(data)
        case Extension.TUPLE:
            return tuple(unpack(data))
        case Extension.BIG_INT:
            return int(data)
        case Extension.TEXT:
            return data.decode("utf-8", "surrogatepass")
        case Extension.MAP:
            parts = unpack(data)
            return dict(zip(parts[::2], parts[1::2], strict=True))
        case _:
            raise ValueError(f"{number} is no extension type of a stored value")


def _pack_array(array: NDArray[Any]) -> bytes:
    """An array's bytes behind its head; doubles that are all exact in 32 bits are held in 32 bits."""
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    dtype = array.dtype.str
    if dtype not in _DTYPES:
        raise TypeError(f"an array of {array.dtype} cannot be stored")
    held = _narrow(array) if dtype == "<f8" else array
    lengths = pack_integers(f"<{array.ndim}q", *array.shape)
    return _HEAD.pack(dtype.encode(), held.dtype.str.encode(), array.ndim) + lengths + held.tobytes()


def _narrow(doubles: NDArray[np.float64]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        singles = doubles.astype("<f4")
        return singles if singles.astype("<f8").tobytes() == doubles.tobytes() else doubles


def _unpack_array(data: bytes) -> NDArray[Any]:
    dtype, held, axes = _HEAD.unpack_from(data)
    shape = np.frombuffer(data, _LENGTH, axes, _HEAD.size).tolist()
    start = _HEAD.size + axes * _LENGTH.itemsize
    array = np.frombuffer(data, held.decode(), offset=start).reshape(shape).astype(dtype.decode(), copy=False)
    array.setflags(write=False)
    return array
