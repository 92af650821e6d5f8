"""Typed access to the members of a body, for every dialect. A member that is null counts as left out."""

from collections.abc import Mapping
from typing import Any

from turnkeeper.dialects.jsonbody import describe_json
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, is_array, is_object

DEFAULT_MODEL = "policy"
"""The model's name that a reply shows where the request names none."""


def get_flag(fields: Mapping[str, Any], name: str) -> bool:
    """Get a boolean; a member that is left out is false.

    Raises:
        RequestError: it is something else.
    """
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(f"{name} must be true or false, got {describe_json(value)}", param=name)
    return bool(value)


def get_model(fields: Mapping[str, Any]) -> str:
    """Get the name of the model; empty where the request names none.

    Raises:
        RequestError: it is no string.
    """
    value = fields.get("model")
    if not isinstance(value, str | None):
        raise RequestError(f"model must be a string, got {describe_json(value)}", param="model")
    return value or ""


def choose_model(fields: Mapping[str, Any]) -> str:
    """Choose the model's name that the reply shows.

    Raises:
        RequestError: the name of the model is no string.
    """
    return get_model(fields) or DEFAULT_MODEL


def get_object(value: Any, where: str) -> JsonObject:
    """Check that a value is an object; ``where`` is its path in error messages.

    Raises:
        RequestError: it is something else.
    """
    if not is_object(value):
        raise RequestError(f"{where} must be an object, got {describe_json(value)}", param=where)
    return value


def get_optional_object(value: Any, where: str) -> JsonObject:
    """Check that a value is an object or left out; what is left out is an empty object."""
    return {} if value is None else get_object(value, where)


def get_list(value: Any, where: str) -> list[Any]:
    """Check that a value is a list or left out; what is left out is an empty list.

    Raises:
        RequestError: it is something else.
    """
    if value is None:
        return []
    if not is_array(value):
        raise RequestError(f"{where} must be a list, got {describe_json(value)}", param=where)
    return value


def get_text(value: Any, where: str) -> str:
    """Check that a value is a string; ``where`` is its path in error messages.

    Raises:
        RequestError: it is something else.
    """
    if not isinstance(value, str):
        raise RequestError(f"{where} must be a string, got {describe_json(value)}", param=where)
    return value


def get_optional_text(value: Any, where: str) -> str:
    """Check that a value is a string or left out; what is left out is an empty string."""
    return "" if value is None else get_text(value, where)


def get_name(value: Any, where: str) -> str:
    """Check that a value is a string and not empty.

    Raises:
        RequestError: it is something else.
    """
    if not get_text(value, where):
        raise RequestError(f"{where} must not be empty", param=where)
    return str(value)


NESTED_FIELDS = ("extra_body", "sampling_params")
"""The members whose own members are fields of the body: some clients send them where an SDK would merge them."""


def merge_nested(body: JsonObject) -> tuple[JsonObject, tuple[str, ...]]:
    """Merge the fields of nested members into the body, as OpenAI's SDK does, and note each such member.

    Where a field stands in both, the nested one wins. A nested member that is no object stays where it is, as any
    unknown field.
    """
    notes: list[str] = []
    while name := next((name for name in NESTED_FIELDS if is_object(body.get(name))), None):
        inner: JsonObject = body[name]
        body = {**{key: value for key, value in body.items() if key != name}, **inner}
        notes.append(f"read the fields of {name} as the body's own")
    return body, tuple(dict.fromkeys(notes))
