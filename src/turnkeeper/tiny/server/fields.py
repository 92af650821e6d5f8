"""Typed reads of a JSON body's members, each with an error that names the member. Null counts as left out."""

import math
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, is_array, is_object
from turnkeeper.texts import shorten


def parse_body(body: bytes) -> "Fields":
    """Read a body that is a JSON object; an empty one has no members.

    Raises:
        RequestError: it is no JSON, or no object.
    """
    if not body.strip():
        return Fields({})
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not is_object(value):
        raise RequestError(f"the body must be a JSON object, got {type(value).__name__}")
    return Fields(value)


class Fields:
    """The members of one JSON object."""

    def __init__(self, members: JsonObject, *, inside: str = "") -> None:
        """Wrap an object; `inside` names the member it was found in."""
        self.members = members
        self._inside = inside

    def find(self, name: str) -> Any:
        """Find a member as it came; None when it is left out."""
        return self.members.get(name)

    def integer(self, name: str, default: int | None = None) -> int | None:
        """Return a member that is a whole number, also when it is written as 3.0."""
        value = self.members.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value != math.floor(value):
            raise self._wrong(name, "a whole number", value)
        return int(value)

    def number(self, name: str, default: float) -> float:
        """Return a member that is a number."""
        value = self.members.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number", value)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a member that is a boolean."""
        value = self.members.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def text(self, name: str) -> str | None:
        """Return a member that is a string."""
        value = self.members.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, "a string", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a member that is a string or a list of strings."""
        value = self.members.get(name)
        if isinstance(value, str):
            return (value,)
        items: list[Any] = value if is_array(value) else []
        if (value is not None and not is_array(value)) or not all(isinstance(item, str) for item in items):
            raise self._wrong(name, "a string or a list of strings", value)
        return tuple(items)

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a member that is a list of whole numbers."""
        value = self.members.get(name)
        items: list[Any] = value if is_array(value) else []
        if (value is not None and not is_array(value)) or not all(type(item) is int for item in items):
            raise self._wrong(name, "a list of whole numbers", value)
        return tuple(items)

    def objects(self, name: str) -> list[JsonObject]:
        """Return a member that is a list of objects."""
        value = self.members.get(name)
        items: list[Any] = value if is_array(value) else []
        if (value is not None and not is_array(value)) or not all(is_object(item) for item in items):
            raise self._wrong(name, "a list of objects", value)
        return items

    def object(self, name: str) -> "Fields":
        """Return a member that is an object; an empty one when it is left out."""
        value = self.members.get(name)
        if value is None:
            return Fields({}, inside=name)
        if not is_object(value):
            raise self._wrong(name, "an object", value)
        return Fields(value, inside=name)

    def token_ids(self, name: str, *, vocab_size: int) -> NDArray[np.int32] | None:
        """Token ids, at least one, each of the vocabulary."""
        value = self.members.get(name)
        if value is None:
            return None
        if not is_array(value) or not value or not all(type(item) is int for item in value):
            raise self._wrong(name, "a flat list of token ids, at least one", value)
        if min(value) < 0 or max(value) >= vocab_size:
            wrong = next(item for item in value if not 0 <= item < vocab_size)
            raise RequestError(f"{name} holds {wrong}, the vocabulary ends at {vocab_size - 1}", param=name)
        return np.array(value, np.int32)

    def _wrong(self, name: str, expected: str, found: Any) -> RequestError:
        path = f"{self._inside}.{name}" if self._inside else name
        return RequestError(f"{path} must be {expected}, got {shorten(repr(found))}", param=path)
