"""Tool arguments as JSON values: equality, one canonical spelling, and the kinds of changes between two of them.

Numbers are exact: 1 equals 1.0, and no digit is lost. A text that is no JSON object, repeats a key or holds NaN or
Infinity has no value, and equals only itself.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from enum import StrEnum
from typing import Any, cast

from turnkeeper.jsontypes import parse_strict


class RewriteKind(StrEnum):
    """The kinds of changes that a client made to a reply before sending it back."""

    KEYS_ADDED = "keys_added"
    """Arguments have keys that the model did not write, such as the defaults of a schema."""
    KEYS_REMOVED = "keys_removed"
    """Arguments lack keys that the model wrote."""
    VALUES_RETYPED = "values_retyped"
    """A value was read from a string or written into one: ``"false"`` became ``false``."""
    VALUES_CHANGED = "values_changed"
    """A value of the arguments was changed."""
    ARGUMENTS_REPLACED = "arguments_replaced"
    """Arguments that are no JSON object came back as one, or one as something else."""
    TEXT_TRIMMED = "text_trimmed"
    """The text beside the calls lost white space at its ends."""
    TEXT_LEFT_OUT = "text_left_out"
    """The text beside the calls did not come back."""


def are_arguments_equal(left: str, right: str) -> bool:
    """Return True when two texts spell one JSON object by value and type; an empty text is the empty object.

    1 equals 1.0, and numbers compare exactly, digit for digit. ``true`` is not 1, ``"1"`` is not 1. A text that is no
    JSON object, repeats a key or holds NaN or Infinity equals only itself.
    """
    if left == right:
        return True
    try:
        return next(_compare(_parse_object(left), _parse_object(right)), None) is None
    except _NO_VALUE:
        return False


def find_argument_rewrites(stored: str, replayed: str) -> frozenset[RewriteKind]:
    """Return the kinds of changes from the stored to the replayed arguments; none where they are equal by value."""
    if stored == replayed:
        return frozenset()
    try:
        return frozenset(_compare(_parse_object(stored), _parse_object(replayed)))
    except _NO_VALUE:
        return frozenset({RewriteKind.ARGUMENTS_REPLACED})


def spell_arguments(text: str) -> str:
    """Return the canonical spelling of arguments; a text that is no JSON object stays as it is."""
    try:
        return _spell(_parse_object(text))
    except _NO_VALUE:
        return text


_NO_VALUE = (ValueError, ArithmeticError, RecursionError)
"""The errors of parsing a text that has no value, or a value too deep to compare."""


def _parse_object(text: str) -> dict[str, Any]:
    if not text:
        return {}
    value = _parse(text)
    if not isinstance(value, dict):
        raise ValueError("the arguments of a tool call are a JSON object")
    return cast("dict[str, Any]", value)


def _parse(text: str) -> Any:
    return parse_strict(text, parse_int=Decimal, parse_float=Decimal, with_unique_keys=True)


def _compare(stored: Any, replayed: Any) -> Iterator[RewriteKind]:
    """Yield the kind of every change from one value to the other; nothing for equal values."""
    match stored, replayed:
        case dict(), dict():
            yield from _compare_objects(cast("dict[str, Any]", stored), cast("dict[str, Any]", replayed))
        case (list(), list()) if len(cast("list[Any]", stored)) == len(cast("list[Any]", replayed)):
            for left, right in zip(cast("list[Any]", stored), cast("list[Any]", replayed), strict=True):
                yield from _compare(left, right)
        case _ if type(stored) is not type(replayed):
            yield RewriteKind.VALUES_RETYPED if _is_retyped(stored, replayed) else RewriteKind.VALUES_CHANGED
        case _ if stored != replayed:
            yield RewriteKind.VALUES_CHANGED
        case _:
            pass


def _compare_objects(stored: dict[str, Any], replayed: dict[str, Any]) -> Iterator[RewriteKind]:
    if replayed.keys() - stored.keys():
        yield RewriteKind.KEYS_ADDED
    if stored.keys() - replayed.keys():
        yield RewriteKind.KEYS_REMOVED
    for key, value in stored.items():
        if key in replayed:
            yield from _compare(value, replayed[key])


def _is_retyped(left: Any, right: Any) -> bool:
    """Return True when one of two values of different types is a string that spells the other as JSON."""
    text, value = (left, right) if isinstance(left, str) else (right, left)
    if not isinstance(text, str):
        return False
    try:
        return next(_compare(_parse(text), value), None) is None
    except _NO_VALUE:
        return False


def _spell(value: Any) -> str:
    match value:
        case dict():
            fields = cast("dict[str, Any]", value)
            return "{" + ",".join(f"{json.dumps(key)}:{_spell(fields[key])}" for key in sorted(fields)) + "}"
        case list():
            return "[" + ",".join(map(_spell, cast("list[Any]", value))) + "]"
        case Decimal():
            return _spell_number(value)
        case _:
            return json.dumps(value)


def _spell_number(value: Decimal) -> str:
    """Spell a number by its sign, digits and exponent, without zeros at the end: ``1.0``, ``1`` and ``10e-1`` are
    ``1e0``."""
    if not value:
        return "0"
    sign, digits, exponent = value.as_tuple()
    shown = "".join(map(str, digits)).lstrip("0")
    kept = shown.rstrip("0")
    return f"{'-' * sign}{kept}e{int(exponent) + len(shown) - len(kept)}"
