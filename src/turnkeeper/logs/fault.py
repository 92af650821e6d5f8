"""Exceptions as fields of a line: where they came from and of which kind, without the words they carry.

The message of an exception may quote what an agent sent, a key included: parsers quote the text that they could not
parse, engines the prompt that they refused. So a line has types, codes, places in the code, the operating system's own
words, and those facts of an error of turnkeeper that are numbers or names of ours.
"""

import re
from collections.abc import Iterator
from os import strerror
from traceback import walk_tb

from turnkeeper.errors import EngineError, TurnkeeperError
from turnkeeper.fields import FIELDS
from turnkeeper.logs.event import FieldValue, Scalar

SAFE_FACTS = frozenset({"fault", "hook", "limit", "matcher", "param", "problem", "scope", "url"})
"""The facts whose texts are names that the server or its operator chose."""

_HIDDEN_FACTS = frozenset({"expected", "found"})
# fmt: off
_MEMBERS = frozenset({
    "arguments", "call_id", "content", "description", "encrypted_content", "format", "function", "function_call",
    "id", "index", "input", "input_schema", "is_error", "messages", "metadata", "mode", "name", "namespace",
    "output", "output_config", "parameters", "reasoning", "refusal", "rewards", "role", "sampling_params", "schema",
    "scopes", "signature", "source", "stop_sequences", "summary", "system", "text", "thinking", "tool_calls",
    "tool_choice", "tool_name", "tool_use_id", "tools", "type",
})
# fmt: on
"""The names of members of bodies, beside those of fields, that a parameter may be made of."""
_LONGEST_FACT = 200
_DEEPEST_CAUSE = 5
_LAST_FRAMES = 12


def describe_fault(error: BaseException) -> dict[str, FieldValue]:
    """Describe an exception by the fields ``error`` or ``code``, ``facts``, ``hint``, ``because`` and ``frames``."""
    return {**describe_error(error), "frames": tuple(_list_frames(error)) or None}


def describe_error(error: BaseException) -> dict[str, FieldValue]:
    """Describe an exception as `describe_fault` does, without its place in the code: for errors raised on purpose."""
    fields: dict[str, FieldValue] = {"error": _name(error)}
    if isinstance(error, TurnkeeperError):
        hint = error.hint if isinstance(error, EngineError) else ""  # other hints may name what the agent sent
        fields = {"code": error.code, "facts": _select_facts(error) or None, "hint": hint or None}
    causes = tuple(map(_name, _walk_causes(error)))
    return {**fields, "because": causes or None}


def _select_facts(error: TurnkeeperError) -> dict[str, Scalar]:
    return {name: value for name, value in error.facts.items() if _is_safe(name, value)}


def _is_safe(name: str, value: object) -> bool:
    if isinstance(value, bool | int | float):
        return name not in _HIDDEN_FACTS
    if not isinstance(value, str) or name not in SAFE_FACTS or not 0 < len(value) <= _LONGEST_FACT:
        return False
    return name != "param" or _is_known(value)


def _is_known(param: str) -> bool:
    """True for a parameter such as ``messages[3].content`` that is made of names of ours: any other, its client made
    up."""
    return all(word in _MEMBERS or word in FIELDS for word in re.sub(r"\[\d+\]", "", param).split("."))


def _name(error: BaseException) -> str:
    """The type of an exception, with the operating system's words where it has any."""
    name = type(error).__qualname__
    if isinstance(error, TurnkeeperError):
        return error.code
    if isinstance(error, OSError) and (error.errno or 0) > 0:
        return f"{name}: {strerror(error.errno or 0)}"  # its own words may name a file or an address
    return name


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    for _ in range(_DEEPEST_CAUSE):
        following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if following is None:
            return
        yield following
        error = following


def _list_frames(error: BaseException) -> Iterator[str]:
    frames = [(frame.f_code, number) for frame, number in walk_tb(error.__traceback__)]
    for code, number in frames[-_LAST_FRAMES:]:
        yield f"{_shorten_path(code.co_filename)}:{number} {code.co_name}"


def _shorten_path(path: str) -> str:
    """The path below ``site-packages`` or ``src``: the places of installations say nothing."""
    parts = path.replace("\\", "/").split("/")
    for mark in ("site-packages", "src"):
        if mark in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(mark) :])
    return "/".join(parts[-2:])
