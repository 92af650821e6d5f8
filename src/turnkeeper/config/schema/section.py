"""A section of options, the types of their values, and how text becomes such a value."""

from typing import Annotated, Any

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from turnkeeper.errors import ConfigError
from turnkeeper.ids import parse_session_id
from turnkeeper.jsontypes import JsonObject


def _parse_object(value: Any) -> Any:
    try:
        return orjson.loads(value) if isinstance(value, str | bytes) else value
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not a JSON object: {error}") from error


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    return (value,) if isinstance(value, int) else value


def _split_lines(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.replace("\n", ",").split(",") if part.strip())
    return value


def _is_given(value: Any) -> Any:
    return value.lower() not in ("", "0", "false", "no", "off") if isinstance(value, str) else value


def _check_session_id(value: str) -> str:
    if parse_session_id(value) is None:
        raise ValueError("expected the id of a session, 32 lower-case hexadecimal digits")
    return value


def _parse_version(value: Any) -> Any:
    if isinstance(value, bool):
        return "v1" if value else None
    return value


_AGE_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _parse_age(value: Any) -> Any:
    if isinstance(value, str) and (unit := _AGE_UNITS_S.get(value[-1:])) is not None:
        try:
            return float(value[:-1]) * unit
        except ValueError as error:
            raise ValueError("not a number with s, m, h or d behind it") from error
    return value


Age = Annotated[float, BeforeValidator(_parse_age), Field(gt=0, allow_inf_nan=False)]
"""A duration in seconds, or with ``m``, ``h`` or ``d`` behind it in minutes, hours or days."""
Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Grace = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Bytes = Annotated[ByteSize, Field(ge=1)]
Object = Annotated[JsonObject, BeforeValidator(_parse_object)]
"""A JSON object, which may be given as text."""
Words = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Several words; a text has them between commas or spaces."""
Lines = Annotated[tuple[str, ...], BeforeValidator(_split_lines)]
"""Several texts with spaces inside; a text has them between commas or on lines."""
SessionIds = Annotated[tuple[Annotated[str, AfterValidator(_check_session_id)], ...], BeforeValidator(_split)]
"""The ids of several sessions."""
Ports = Annotated[tuple[Annotated[int, Field(ge=0, le=65535)], ...], BeforeValidator(_split)]
"""A port, or several."""
Given = Annotated[bool, BeforeValidator(_is_given)]
"""True for any text but those that say no: a trainer gives such an option a path."""
Version = Annotated[str | None, BeforeValidator(_parse_version)]
"""A version of the session server; a bare switch means v1."""


def read_age(flag: str, text: str) -> float:
    """Read an age that a command was given, in seconds.

    Raises:
        ConfigError: it is none.
    """
    return _read(TypeAdapter(Age), flag, text)


def read_bytes(flag: str, text: str) -> int:
    """Read a number of bytes that a command was given, such as ``50GiB``.

    Raises:
        ConfigError: it is none.
    """
    return int(_read(TypeAdapter(Bytes), flag, text))


def _read(kind: TypeAdapter[Any], flag: str, text: str) -> Any:
    try:
        return kind.validate_python(text)
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{flag} {text}: {told[:1].lower()}{told[1:]}") from error


class ForTests:
    """Marks an option that nobody but tests has reason to change: it works as every other, and no help shows it."""


class SettingsSection(BaseModel):
    """A group of options: a panel of ``--help``, a heading of the docs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)
