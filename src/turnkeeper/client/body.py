"""The request bodies of the client: JSON of the caller's values, among them arrays and numbers of numpy and torch."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, encode_json


def encode_body(body: JsonObject) -> bytes:
    """Write a body as JSON.

    Raises:
        RequestError: a number is not finite, or a value cannot be written as JSON; the message names its place.
    """
    spelled = _spell(body, "")
    try:
        return encode_json(spelled)
    except (TypeError, ValueError) as error:
        raise RequestError(f"the body cannot be written as JSON: {error}") from error


def _spell(value: Any, place: str) -> Any:
    """Replace arrays and tensors by lists, and refuse numbers that are not finite, which orjson would write as null."""
    if hasattr(value, "tolist"):  # an array, a tensor, or one number of either
        return _spell(value.tolist(), place)
    if isinstance(value, float) and not isfinite(value):
        raise RequestError(f"{place} is {value}, which is no number in JSON", hint="give a finite number", param=place)
    if isinstance(value, Mapping):
        return {key: _spell(item, f"{place}.{key}" if place else str(key)) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - the caller's own
    if isinstance(value, list | tuple):
        return [_spell(item, f"{place}[{index}]") for index, item in enumerate(value)]  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType] - likewise
    return value
