"""What a session is created with: the optional body of ``POST /sessions`` as one validated model. Pure.

To add a key: add a field with its type and the text beneath it. A key that may be left out may be null as well, and
null means left out.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from turnkeeper.access import GRANTABLE, Right
from turnkeeper.choices import HistoryKind, OnTruncated
from turnkeeper.dialects.sampling import parse_pins, parse_sampling_field
from turnkeeper.errors import RequestError
from turnkeeper.ids import SessionId, parse_session_id
from turnkeeper.jsontypes import JsonObject, is_array
from turnkeeper.texts import shorten

PINNED_FIELDS = ("temperature", "top_p", "top_k")
"""Pins that may also stand beside ``sampling_params``, where trainers write them."""


def _parse_pins(value: Any) -> dict[str, Any]:
    return {} if value is None else parse_pins(value)


def _parse_pin(value: Any, info: ValidationInfo) -> Any:
    return None if value is None else parse_sampling_field(info.field_name or "", value)


def _read_false(value: Any) -> Any:
    return False if value is None else value


def _read_empty(value: Any) -> Any:
    return {} if value is None else value


def _parse_id(value: Any) -> SessionId | None:
    session_id = parse_session_id(value) if isinstance(value, str) else None
    if session_id is None and value is not None:
        raise RequestError(
            f"session_id must be 32 lower-case hexadecimal digits, got {shorten(repr(value))}",
            hint="draw it at random: secrets.token_hex(16)",
            param="session_id",
        )
    return session_id


def _parse_scopes(value: Any) -> frozenset[Right]:
    if value is None:
        return frozenset()
    choices = ", ".join(GRANTABLE)
    if not is_array(value):
        raise RequestError(f"scopes must be a list, got {value!r}"[:200], hint=f"known: {choices}", param="scopes")
    for name in value:
        if name not in GRANTABLE:
            shown = repr(name)[:64]
            raise RequestError(f"scopes: {shown} is no scope", hint=f"known: {choices}", param="scopes")
    return frozenset(map(Right, value))


class NewSession(BaseModel):
    """What whoever creates a session may ask for; None leaves it to the server's options."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    sampling_params: Annotated[Mapping[str, Any], PlainValidator(_parse_pins)] = Field(default_factory=dict[str, Any])
    """Pins: sampling fields that win over what the agent sends, under chat-completions names."""
    temperature: Annotated[Any, PlainValidator(_parse_pin)] = None
    """A pin, as in sampling_params."""
    top_p: Annotated[Any, PlainValidator(_parse_pin)] = None
    """A pin, as in sampling_params."""
    top_k: Annotated[Any, PlainValidator(_parse_pin)] = None
    """A pin, as in sampling_params."""
    evaluation: Annotated[bool, BeforeValidator(_read_false)] = False
    """Whether the session measures the policy and nothing of it is trained: its turns ask for no rows."""
    metadata: Annotated[JsonObject, BeforeValidator(_read_empty)] = Field(default_factory=dict[str, Any])
    """The creator's own data; given back as it came."""
    ttl_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Seconds without a request after which the session expires."""
    history: Annotated[HistoryKind, Field(strict=False)] | None = None
    """How the session's turns are read: linear or tree."""
    max_seq_len: Annotated[int, Field(ge=1)] | None = None
    """Token limit of a path, prompt and completion together."""
    on_truncated: Annotated[OnTruncated, Field(strict=False)] | None = None
    """What a request that extends a turn which ended by length does: close refuses it, bridge goes on."""

    session_id: Annotated[SessionId | None, PlainValidator(_parse_id, json_schema_input_type=str | None)] = None
    """The id of the session, 32 hexadecimal digits that its creator draws, whose repeated request then opens no second
    session."""
    scopes: Annotated[
        frozenset[Right], PlainValidator(_parse_scopes, json_schema_input_type=list[Literal[GRANTABLE]] | None)
    ] = frozenset()
    """What the key of the session opens beside turns: read, collect, delete."""

    @property
    def granted(self) -> frozenset[Right]:
        """All that the key of the session opens."""
        return self.scopes | {Right.TURN}

    @property
    def pins(self) -> Mapping[str, Any]:
        """The pinned sampling fields of both places; empty where nothing is pinned."""
        return {**self.sampling_params, **self._beside}

    @property
    def _beside(self) -> dict[str, Any]:
        return {name: value for name in PINNED_FIELDS if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _check_pins(self) -> Self:
        for name, value in self._beside.items():
            if name in self.sampling_params and self.sampling_params[name] != value:
                raise RequestError(
                    f"one {name} is expected, got {value!r} and sampling_params.{name}={self.sampling_params[name]!r}",
                    hint="leave one of the two out",
                    param=name,
                )
        return self


def parse_new_session(body: JsonObject) -> NewSession:
    """Read the body of ``POST /sessions``.

    Raises:
        RequestError: an unknown key or a bad value, by its name. An unknown key comes first, since it may be a known
            one misspelled, and the first of them is enough: validation would describe each of half a million.
    """
    unknown = next((name for name in body if name not in NewSession.model_fields), None)
    if unknown is not None:
        known, shown = ", ".join(NewSession.model_fields), unknown[:64]
        raise RequestError(f"{shown} is not a field of a session", hint=f"known: {known}", param=shown)
    try:
        return NewSession.model_validate(body)
    except ValidationError as error:
        raise _refuse(error) from error


def parse_length(value: Any, name: str) -> int | None:
    """Parse a token limit that may be left out.

    Raises:
        RequestError: it is no whole number of at least 1.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{name} must be a whole number of at least 1, got {value!r}", param=name)
    return value


def _refuse(error: ValidationError) -> RequestError:
    """Build the refusal of the first value that is wrong."""
    errors = error.errors(include_url=False, include_context=False)
    name, found = str(errors[0]["loc"][0]), repr(errors[0]["input"])
    expected = errors[0]["msg"].replace("Input should be", "must be").replace("a valid dictionary", "an object")
    return RequestError(f"{name} {expected}, got {shorten(found)}", param=name)
