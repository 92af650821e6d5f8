"""The types of parsed JSON: where ``Any`` is allowed to begin, since bodies of clients and engines are foreign."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeGuard

JsonObject: TypeAlias = dict[str, Any]
"""A parsed JSON object whose members nobody has checked yet."""

Message: TypeAlias = Mapping[str, Any]
"""One chat message in the chat-completions form: ``role``, ``content``, ``reasoning_content``, ``tool_calls``, ...

Canonical: produced by a dialect, never changed afterwards. Tool-call arguments stay the string that came.
"""


def is_object(value: Any) -> TypeGuard[JsonObject]:
    """Whether a parsed JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    """Whether a parsed JSON value is an array."""
    return isinstance(value, list)
