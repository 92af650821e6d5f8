"""JSON bodies of strangers: strict where it must be, forgiving where clients are known to slip.

* ``NaN`` and ``Infinity`` are refused: they are not JSON, and a strict parser further on would choke on them.
* A lone surrogate escape (``"\\ud83d"`` without its partner) becomes U+FFFD, the replacement character. It cannot be
  written as UTF-8, and refusing it would end a conversation for one broken emoji in a tool result.
* What is nested deeper than any conversation is refused: nothing behind could walk or write it.
* Whole numbers keep all their digits; a double would round those of 17 digits and more. Numbers that no double holds
  are refused: many readers cannot take them.
"""

from typing import Any

import orjson

from turnkeeper.dialects.jsonscan import JsonShape, scan_json
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import (
    MAX_DEPTH,
    JsonObject,
    encode_json,
    is_number,
    is_object,
    is_too_deep,
    iter_levels,
    parse_finite,
    parse_strict,
    replace_surrogates,
)

__all__ = ["describe_json", "encode_json", "parse_json", "parse_object", "parse_optional_object"]

LARGE_BYTES = 512 << 10
"""From this size on a body is looked through before it is parsed, and parsed in a thread. A conversation of 128,000
tokens stays below, where a thread and a second pass would cost a quarter of its turn. The worst body below, of 175,000
empty lists, holds the event loop for 80 ms, an ordinary one for 2."""

MAX_VALUES = 500_000
"""How many values a large body may hold: a conversation of 10,000 messages has some 100,000."""

_EXACT = float(1 << 63)
"""A double of this size or more may be a whole number that was too long for orjson."""


def parse_object(body: bytes) -> JsonObject:
    """Parse a body that must be a JSON object.

    Raises:
        RequestError: the body is no JSON, or another JSON value.
    """
    value = parse_json(body)
    if not is_object(value):
        raise RequestError(f"the body must be a JSON object, got {describe_json(value)}")
    return value


def parse_optional_object(body: bytes) -> JsonObject:
    """Parse a body that may be left out: an empty one is an empty object."""
    return {} if not body or body.isspace() else parse_object(body)


def parse_json(body: bytes) -> Any:
    """Parse a body of any JSON value.

    Raises:
        RequestError: the body is empty, no JSON, no UTF-8, nested too deep, or holds a number JSON does not have.
    """
    if not body or body.isspace():
        raise RequestError("the body is empty; a JSON object is expected")
    if len(body) > LARGE_BYTES:
        _check_shape(scan_json(body))
    try:
        value = orjson.loads(body)
        if not _holds_rounded(value):
            return value
    except orjson.JSONDecodeError:  # a lone surrogate, if nothing else
        pass
    return _parse_slowly(body)


def _check_shape(shape: JsonShape) -> None:
    if shape.depth > MAX_DEPTH:
        raise _build_depth_error()
    if shape.values > MAX_VALUES:
        raise RequestError(
            f"the body holds more than {MAX_VALUES} values: {shape.values} commas, arrays and objects were counted",
            hint="no conversation has as many; long texts are one value each",
        )


def _build_depth_error() -> RequestError:
    return RequestError(f"the body is nested deeper than {MAX_DEPTH} levels")


def _parse_slowly(body: bytes) -> Any:
    """Parse a body that orjson refuses or rounds a number of."""
    try:
        value = replace_surrogates(parse_strict(body.decode(), parse_int=_parse_whole, parse_float=parse_finite))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if is_too_deep(value):
        raise _build_depth_error()
    return value


def _holds_rounded(value: Any) -> bool:
    """Tell whether a number is so large that orjson may have rounded a whole number to it.

    All levels are walked through once, for their number too. Looking for large numbers in the bytes beforehand takes
    longer than reading them: 0.25 ms for 150 KB, 0.07 to read.

    Raises:
        RequestError: the value is nested too deep.
    """
    is_rounded = False
    for depth, level in enumerate(iter_levels(value)):
        if depth == MAX_DEPTH and any(isinstance(item, dict | list) for item in level):
            raise _build_depth_error()
        is_rounded = is_rounded or any(not -_EXACT < item < _EXACT for item in level if type(item) is float)
    return is_rounded


def describe_json(value: Any) -> str:
    """Name the kind of a JSON value for an error message."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    kinds = ((int | float, "a number"), (str, "a string"), (list, "a list"), (dict, "an object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "another value")


def _parse_whole(digits: str) -> int:
    value = int(digits)
    if not is_number(value):
        raise ValueError(f"{digits[:40]}... does not fit a double")
    return int(value)
