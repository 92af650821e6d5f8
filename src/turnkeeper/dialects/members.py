"""Typed reads of a body's members, for every dialect. Null counts as left out."""

from collections.abc import Mapping
from typing import Any

from turnkeeper.dialects.jsonbody import describe_json
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, is_array, is_object

DEFAULT_MODEL = "policy"
"""What a reply calls the model when the request does not name one."""


def get_flag(fields: Mapping[str, Any], name: str) -> bool:
    """A boolean field that may be left out or null.

    Raises:
        RequestError: it is something else.
    """
    value = fields.get(name)
    if not isinstance(value, bool | None):
        raise RequestError(f"{name} must be true or false, got {describe_json(value)}", param=name)
    return bool(value)


def get_model(fields: Mapping[str, Any]) -> str:
    """The model that is asked for; empty where the request names none.

    Raises:
        RequestError: it is no string.
    """
    value = fields.get("model")
    if not isinstance(value, str | None):
        raise RequestError(f"model must be a string, got {describe_json(value)}", param="model")
    return value or ""


def choose_model(fields: Mapping[str, Any]) -> str:
    """The name that the reply echoes.

    Raises:
        RequestError: the model that is asked for is no string.
    """
    return get_model(fields) or DEFAULT_MODEL


def get_object(value: Any, where: str) -> JsonObject:
    """The value, if it is an object.

    Raises:
        RequestError: it is something else.
    """
    if not is_object(value):
        raise RequestError(f"{where} must be an object, got {describe_json(value)}", param=where)
    return value


def get_optional_object(value: Any, where: str) -> JsonObject:
    """The same for a member that may be left out; then it is empty."""
    return {} if value is None else get_object(value, where)


def get_list(value: Any, where: str) -> list[Any]:
    """The value, if it is a list; empty where it is left out.

    Raises:
        RequestError: it is something else.
    """
    if value is None:
        return []
    if not is_array(value):
        raise RequestError(f"{where} must be a list, got {describe_json(value)}", param=where)
    return value


def get_text(value: Any, where: str) -> str:
    """The value, if it is a string.

    Raises:
        RequestError: it is something else.
    """
    if not isinstance(value, str):
        raise RequestError(f"{where} must be a string, got {describe_json(value)}", param=where)
    return value


def get_optional_text(value: Any, where: str) -> str:
    """The same for a member that may be left out; then it is empty."""
    return "" if value is None else get_text(value, where)


def get_name(value: Any, where: str) -> str:
    """A string that is not empty.

    Raises:
        RequestError: it is something else.
    """
    if not get_text(value, where):
        raise RequestError(f"{where} must not be empty", param=where)
    return str(value)


NESTED_FIELDS = ("extra_body", "sampling_params")
"""Members that hold further fields of the body: some clients send what an SDK would have merged."""


def merge_nested(body: JsonObject) -> tuple[JsonObject, tuple[str, ...]]:
    """The body with the fields of its nested forms in it, as OpenAI's SDK merges them, and a note of each form.

    The nested value wins. What is no object is left alone, as any field on no list.
    """
    notes: list[str] = []
    while name := next((name for name in NESTED_FIELDS if is_object(body.get(name))), None):
        inner: JsonObject = body[name]
        body = {**{key: value for key, value in body.items() if key != name}, **inner}
        notes.append(f"read the fields of {name} as the body's own")
    return body, tuple(dict.fromkeys(notes))
