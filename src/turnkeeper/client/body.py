"""The request bodies of the client: JSON of the caller's values, among them arrays and numbers of numpy and torch."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, encode_json

_PLAIN = (str, int, type(None))


def encode_body(body: JsonObject) -> bytes:
    """Write a body as JSON.

    A number, array or tensor of numpy or torch becomes a number or a list, wherever it stands. Neither library is
    imported for it.

    Raises:
        RequestError: a number is not finite, or a value cannot be written as JSON; the message names its place.
    """
    try:
        return encode_json(_spell(body, ""))
    except RecursionError as error:
        raise RequestError("the body is nested too deep, or holds itself") from error
    except (TypeError, ValueError) as error:
        raise RequestError(f"the body cannot be written as JSON: {error}") from error


def spell_value(value: Any) -> str:
    """Write a value as a parameter of a URL: a text as it is, any other value as JSON.

    Raises:
        RequestError: the value cannot be written as JSON.
    """
    return value if isinstance(value, str) else encode_json(_spell(value, "the value")).decode()


def _spell(value: Any, place: str) -> Any:
    """Replace arrays and tensors by lists, and refuse what JSON cannot say by its place."""
    if isinstance(value, float):  # numpy's float64 is one, and is written as it stands
        if isfinite(value):
            return float(value)
        raise RequestError(f"{place} is {value}, which is no number in JSON", hint="give a finite number", param=place)
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Mapping):
        return {key: _spell(item, f"{place}.{key}" if place else str(key)) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - the caller's own
    if isinstance(value, list | tuple):
        return [_spell(item, f"{place}[{index}]") for index, item in enumerate(value)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - likewise
    if hasattr(value, "tolist"):  # an array, a tensor, or one number of either
        return _spell(value.tolist(), place)
    try:
        encode_json(value)  # dates, enums and the like
    except (TypeError, ValueError) as error:
        raise RequestError(
            f"{place} cannot be written as JSON: {type(value).__name__}",
            hint="give numbers, texts, lists and objects, or arrays of numpy and torch",
            param=place,
        ) from error
    return value


def drop_none(fields: Mapping[str, Any]) -> JsonObject:
    """Leave out the fields that are None."""
    return {name: value for name, value in fields.items() if value is not None}
