"""What a session is created with: the optional body of ``POST /sessions``, checked field by field. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.choices import HistoryKind
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject, is_number, is_object
from turnkeeper.service.sampling import parse_pins

FIELDS = ("sampling_params", "metadata", "ttl_s", "history", "max_seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """What whoever creates a session may ask for; None leaves it to the server's options."""

    pins: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Sampling fields that win over what the agent sends, under chat-completions names."""
    metadata: JsonObject = field(default_factory=dict[str, Any])
    """The creator's own data; given back as it came."""
    ttl_s: float | None = None
    """Seconds without a request after which the session expires."""
    history: HistoryKind | None = None
    """linear or tree."""
    max_seq_len: int | None = None
    """Token limit of a path, prompt and completion together."""


def parse_new_session(body: JsonObject) -> NewSession:
    """Read the body of ``POST /sessions``; every field may be left out or null.

    Raises:
        RequestError: an unknown key or a bad value, by its name.
    """
    for name in body:
        if name not in FIELDS:
            raise RequestError(f"{name} is not a field of a session", hint=f"known: {', '.join(FIELDS)}", param=name)
    given = {name: value for name, value in body.items() if value is not None}
    return NewSession(
        pins=parse_pins(given["sampling_params"]) if "sampling_params" in given else {},
        metadata=_read_metadata(given.get("metadata", {})),
        ttl_s=_read_ttl(given.get("ttl_s")),
        history=_read_history(given.get("history")),
        max_seq_len=parse_length(given.get("max_seq_len"), "max_seq_len"),
    )


def parse_length(value: Any, name: str) -> int | None:
    """A token limit that may be left out.

    Raises:
        RequestError: it is no whole number of at least 1.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{name} must be a whole number of at least 1, got {value!r}", param=name)
    return value


def _read_metadata(value: Any) -> JsonObject:
    if not is_object(value):
        raise RequestError(f"metadata must be an object, got {value!r}", param="metadata")
    return value


def _read_ttl(value: Any) -> float | None:
    if value is None:
        return None
    if not is_number(value) or value <= 0:
        raise RequestError(f"ttl_s must be a number of seconds above 0, got {value!r}", param="ttl_s")
    return float(value)


def _read_history(value: Any) -> HistoryKind | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in set(HistoryKind):
        raise RequestError(f"history must be {' or '.join(HistoryKind)}, got {value!r}", param="history")
    return HistoryKind(value)
