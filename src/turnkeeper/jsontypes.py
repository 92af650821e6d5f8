"""JSON of strangers: the types of what was parsed, how deep it may be, the strict reader, and the one writer.

``Any`` is allowed to begin here, since bodies of clients and engines are foreign.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from sys import float_info
from typing import Any, NoReturn, TypeAlias, TypeGuard

import orjson

MAX_DEPTH = 128
"""How many objects and arrays may lie in each other. Writers and walkers of JSON give up at a few hundred, some by
ending the process; no conversation needs a tenth of it."""

JsonObject: TypeAlias = dict[str, Any]
"""A parsed JSON object whose members nobody has checked yet."""

Message: TypeAlias = Mapping[str, Any]
"""One chat message in the chat-completions form: ``role``, ``content``, ``reasoning_content``, ``tool_calls``, ...

Canonical: produced by a dialect, never changed afterwards. Tool-call arguments stay the string that came.
"""


def is_object(value: Any) -> TypeGuard[JsonObject]:
    """Return True when a parsed JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Return True when a parsed JSON value is an array."""
    return isinstance(value, list)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return True when a parsed JSON value is a number that a double holds; ``true`` is none, nor are 400 digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max


_HOLDERS = (dict, list)  # a constant, since ``dict | list`` would be built anew for each value that is looked at


def iter_levels(value: Any) -> Iterator[list[Any]]:
    """Yield the values inside objects and arrays level by level: first the value alone, then its members, then
    theirs."""
    level: list[Any] = [value]
    while level:
        yield level
        holders: list[Any] = [item for item in level if isinstance(item, _HOLDERS)]
        level = [member for each in holders for member in list_members(each)]


def is_too_deep(value: Any) -> bool:
    """Return True when objects and arrays lie in each other more than `MAX_DEPTH` times."""
    deepest = next(islice(iter_levels(value), MAX_DEPTH, None), ())
    return any(isinstance(item, _HOLDERS) for item in deepest)


def parse_strict(
    text: str,
    *,
    parse_int: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
    with_unique_keys: bool = False,
) -> Any:
    """Parse JSON as its standard has it: ``NaN`` and ``Infinity``, which Python's own reader takes, are refused.

    Args:
        text: one JSON value.
        parse_int: makes a whole number of its digits; None makes an int.
        parse_float: makes any other number of its digits; None makes a float, which may be infinite.
        with_unique_keys: whether an object that repeats a key is refused; otherwise its last value counts.

    Raises:
        ValueError: the text is no JSON, or is refused.
        RecursionError: the value is nested too deep to be parsed.
    """
    return json.loads(
        text,
        object_pairs_hook=_build_unique if with_unique_keys else None,
        parse_int=parse_int,
        parse_float=parse_float,
        parse_constant=_refuse_constant,
    )


def parse_finite(digits: str) -> float:
    """Make a float of digits.

    Raises:
        ValueError: the number is beyond the range of a double.
    """
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} does not fit a double")
    return value


def encode_json(value: Any) -> bytes:
    """Write a JSON value; whole numbers beyond 64 bits too, a lone surrogate as U+FFFD, an array of numbers as a list.

    Raises:
        ValueError: the value holds a number that JSON cannot say.
        TypeError: the value holds what is no JSON.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:
        mended = replace_surrogates(value)
    return json.dumps(
        mended, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_spell_numbers
    ).encode()


def spell_value(value: Any) -> str:
    """Spell a JSON value in a line of text: a text as it is, any other value as JSON."""
    return value if isinstance(value, str) else encode_json(value).decode()


def encode_for_digest(value: Any) -> bytes:
    """Encode a JSON value for a digest: equal values give equal bytes, in whatever order their keys stand. Python
    objects that are no JSON are written as their ``repr``."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits, lone surrogates, foreign objects
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr).encode()


def replace_surrogates(value: Any) -> Any:
    """Replace each lone surrogate in a JSON value by U+FFFD, in keys too; a pair becomes its character."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if is_array(value):
        return [replace_surrogates(item) for item in value]
    if is_object(value):
        return {replace_surrogates(key): replace_surrogates(item) for key, item in value.items()}
    return value


def list_members(value: Any) -> Iterable[Any]:
    """List what an object or an array holds; nothing for any other value."""
    if is_object(value):
        return value.values()
    return value if is_array(value) else ()


def _spell_numbers(value: Any) -> Any:
    """Return the plain list or number that a value of numpy stands for."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def _build_unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    built = dict(pairs)
    if len(built) != len(pairs):
        raise ValueError("a key is repeated")
    return built


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
