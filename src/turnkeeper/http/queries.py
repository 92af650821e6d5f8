"""The query parameters of the control plane, parsed into values. Pure.

To add a parameter of the list: add a row to `LIST_PARAMETERS`. What is unknown is refused by name, so that a filter
that is misspelled does not list everything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.service.sessions import MAX_PAGE, ListOrder, SessionQuery, SessionStatus
from turnkeeper.telemetry import TurnPhase

Choice = TypeVar("Choice", bound=StrEnum)

METADATA_PREFIX = "metadata."
"""Before the name of a key of the metadata that sessions were created with."""

_TRUE, _FALSE = ("1", "true"), ("0", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter:
    """One row: a parameter of ``GET /sessions``."""

    field: str
    """The field of `SessionQuery` that it sets."""
    parse: Callable[[str, str], Any]
    """Makes the field's value of the parameter's name and text."""
    description: str
    schema: JsonObject


def parse_flag(name: str, text: str) -> bool:
    """Parse a flag.

    Raises:
        RequestError: it is none of 1, true, 0 and false.
    """
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise RequestError(f"{name} must be 1, true, 0 or false, got {text[:64]!r}", param=name)


def parse_page_size(name: str, text: str) -> int:
    """Parse ``limit``: how many sessions a page has at most.

    Raises:
        RequestError: it is no number of the allowed range.
    """
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MAX_PAGE)) or not 1 <= int(text) <= MAX_PAGE:
        raise RequestError(f"{name} must be a number from 1 to {MAX_PAGE}, got {text[:64]!r}", param=name)
    return int(text)


def _parse_seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not isfinite(seconds) or seconds < 0:
        raise RequestError(f"{name} must be a number of seconds from 0 on, got {text[:64]!r}", param=name)
    return seconds


def _parse_text(_: str, text: str) -> str:
    return text


def _parse_choice(choices: type[Choice]) -> Callable[[str, str], Choice]:
    def parse(name: str, text: str) -> Choice:
        found = next((each for each in choices if each == text), None)
        if found is None:
            raise RequestError(f"{name} must be one of {', '.join(choices)}, got {text[:64]!r}", param=name)
        return found

    return parse


LIST_PARAMETERS: Mapping[str, QueryParameter] = {
    "limit": QueryParameter(
        field="limit",
        parse=parse_page_size,
        description="At most so many sessions.",
        schema={"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
    ),
    "after": QueryParameter(
        field="after",
        parse=_parse_text,
        description="`next` of the page before, under the same order.",
        schema={"type": "string"},
    ),
    "order": QueryParameter(
        field="order",
        parse=_parse_choice(ListOrder),
        description="By id; by what has been in flight longest; the oldest, idle longest or largest first.",
        schema={"enum": [str(order) for order in ListOrder]},
    ),
    "state": QueryParameter(
        field="state",
        parse=_parse_choice(SessionStatus),
        description="Whether they take turns.",
        schema={"enum": [str(state) for state in SessionStatus]},
    ),
    "in_flight": QueryParameter(
        field="in_flight",
        parse=parse_flag,
        description="1: with a turn in flight; 0: without one.",
        schema={"enum": [*_TRUE, *_FALSE]},
    ),
    "phase": QueryParameter(
        field="phase",
        parse=_parse_choice(TurnPhase),
        description="With a turn in flight that is in this phase.",
        schema={"enum": [str(phase) for phase in TurnPhase]},
    ),
    "min_age": QueryParameter(
        field="min_age_s",
        parse=_parse_seconds,
        description="With a turn that has been in flight for so many seconds; with `phase`, in that phase.",
        schema={"type": "number", "minimum": 0},
    ),
    "min_idle": QueryParameter(
        field="min_idle_s",
        parse=_parse_seconds,
        description="Without a request for so many seconds.",
        schema={"type": "number", "minimum": 0},
    ),
}
"""The parameters of ``GET /sessions`` beside those of metadata, by name."""


SESSION_FLAGS: Mapping[str, str] = {
    "rows": "1 adds each turn's routing rows to its record.",
    "branches": "1 adds to each turn of the session, on whatever branch, the messages and ids that it added.",
}
"""The flags of ``GET /sessions/{id}``, with what they do."""


def parse_session_query(query: str) -> SessionQuery:
    """Parse the query of ``GET /sessions``; of a parameter that is repeated the last one counts.

    Raises:
        RequestError: a parameter is unknown or has a bad value, by its name.
    """
    fields: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        parameter = LIST_PARAMETERS.get(name)
        if parameter is not None:
            fields[parameter.field] = parameter.parse(name, text)
        elif name.startswith(METADATA_PREFIX):
            metadata[name.removeprefix(METADATA_PREFIX)] = text
        else:
            known = ", ".join([*LIST_PARAMETERS, f"{METADATA_PREFIX}KEY"])
            raise RequestError(f"{name[:64]} is no parameter of the list", hint=f"known: {known}", param=name[:64])
    return SessionQuery(**fields, metadata=metadata)


def parse_session_flags(query: str) -> dict[str, bool]:
    """Parse the flags of ``GET /sessions/{id}``: ``rows`` and ``branches``; other parameters mean nothing there.

    Raises:
        RequestError: a flag has a bad value.
    """
    given = dict(parse_qsl(query, keep_blank_values=True))
    return {name: name in given and parse_flag(name, given[name]) for name in SESSION_FLAGS}
