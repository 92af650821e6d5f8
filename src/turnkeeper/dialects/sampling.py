"""The fields of a request and the pins of a session, read by the table of `turnkeeper.fields` in every dialect.

Pure. What a body asks for becomes a sampler under the names of chat completions; everything else is forwarded,
overridden, left out or refused as its row says.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from turnkeeper.errors import FieldNotAllowedError, RequestError
from turnkeeper.fields import FIELDS, Field, Use, find_field, is_reaching, is_same, list_fields
from turnkeeper.jsontypes import is_object
from turnkeeper.texts import shorten

TOKEN_LIMIT = FIELDS["max_tokens"]
"""The row of the field that limits a completion, under any of its aliases."""


_ADAPTER_HINT = "; the server's option --lora-name names the adapter that all turns are sampled with"

MAX_DROPPED = 100
"""How many fields that were left out a turn lists at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFields:
    """The fields of a body that do not belong to its conversation."""

    sampling: Mapping[str, Any]
    """The sampling fields, under the names of chat completions."""
    forwarded: Mapping[str, Any]
    """The other fields that reach the engine: those about calls and reports, and those that the operator forwards."""
    dropped_fields: tuple[str, ...]
    """The names of the fields that were left out, since they stand in no row."""
    notes: tuple[str, ...]
    """The fields that were overridden, a sentence each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedSampling:
    """A request's fields after a session's pins were laid over them."""

    sampling: Mapping[str, Any]
    """The sampling fields that go to the engine."""
    forwarded: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The other fields that go to the engine."""
    overridden: Mapping[str, Any]
    """The agent's own values that a pin replaced, by field; only those that differ from the pin."""
    unpinned: tuple[str, ...]
    """The fields by which the agent changes the distribution and which no pin fixes."""
    notes: tuple[str, ...] = ()
    """The fields that a pin of null left out, a sentence each."""


def parse_fields(
    body: Mapping[str, Any], *, read: Collection[str] = (), forward_fields: Collection[str] = ()
) -> RequestedFields:
    """Sort the fields of a body by their rows; a field that is null counts as left out.

    Args:
        body: the fields under the names of chat completions.
        read: names that the dialect reads or leaves out itself.
        forward_fields: names on no list that the operator forwards.

    Raises:
        FieldNotAllowedError: a field chooses weights, addresses or priority.
        RequestError: a field would take tokens out of the server's hands, a value is of another kind or out of range,
            or two names of one field disagree.
    """
    given = {name: value for name, value in body.items() if value is not None and name not in read}
    rows = {name: find_field(name) for name in given}
    check_allowed(body)
    requested = _parse_reaching({name: given[name] for name, row in rows.items() if is_reaching(row)})
    unknown = sorted(name for name, row in rows.items() if row is None)
    fixed = sorted(name for name, row in rows.items() if row is not None and row.use is Use.FIXED)
    return RequestedFields(
        sampling={name: value for name, value in requested.items() if FIELDS[name].use is Use.SAMPLING},
        forwarded={
            **{name: value for name, value in requested.items() if FIELDS[name].use is Use.FORMAT},
            **{name: given[name] for name in unknown if name in forward_fields},
        },
        dropped_fields=tuple(shorten(name, 100) for name in unknown if name not in forward_fields)[:MAX_DROPPED],
        notes=tuple(f"overrode {name}: its value is fixed here" for name in fixed),
    )


def check_allowed(body: Mapping[str, Any]) -> None:
    """Refuse the fields that are not for agents.

    Raises:
        FieldNotAllowedError: a field chooses weights, addresses or priority.
        RequestError: a field would take tokens out of the server's hands.
    """
    for name, value in body.items():
        row = find_field(name)
        if value is None or row is None:
            continue
        if row.use is Use.PLACEMENT:
            raise FieldNotAllowedError(
                f"{name} is not for agents: weights, addresses and priorities are the operator's choice",
                hint=f"leave {name} out" + (_ADAPTER_HINT if "lora" in name or "adapter" in name else ""),
                param=name,
            )
        if row.use is Use.TOKENS and not row.is_neutral(value):
            wanted = f"; the one value that is served is {quote(row.neutral[0])}" if row.neutral else ""
            raise RequestError(
                f"{name} is not for agents: the server owns the tokens of a session, got {quote(value)}",
                hint=f"leave {name} out{wanted}",
                param=name,
            )


def _parse_reaching(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the fields that reach the engine, and bring each to the name of its row."""
    requested: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for name, value in given.items():
        row = FIELDS[name]
        if row.check is not None and not row.check.accepts(value):
            raise RequestError(f"{name} must be {row.check.expected}, got {quote(value)}", param=name)
        if row.name in requested and not is_same(requested[row.name], value):
            first = spelled[row.name]
            values = f"{first}={quote(requested[row.name])} and {name}={quote(value)}"
            what = "token limit" if row is TOKEN_LIMIT else row.name
            raise RequestError(f"one {what} is expected, got {values}", param=first)
        requested.setdefault(row.name, value)
        spelled.setdefault(row.name, name)
    return requested


def parse_pins(value: Any) -> dict[str, Any]:
    """Parse the pins of a new session; each is checked like a field of a body. A pin of null forbids its field.

    Fields whose value the server fixes are taken and left out, since a trainer's sampling parameters hold some.

    Raises:
        RequestError: not an object, an unknown name, or a bad value.
    """
    if not is_object(value):
        raise RequestError(f"sampling_params must be an object, got {quote(value)}", param="sampling_params")
    for name, pin in value.items():
        row = find_field(name)
        is_idle = row is not None and (row.use is Use.FIXED or (row.use is Use.TOKENS and row.is_neutral(pin)))
        if not is_reaching(row) and not is_idle:
            known = sorted(known for known, row in FIELDS.items() if is_reaching(row))
            raise RequestError(
                f"sampling_params.{name} is not a sampling field",
                hint=f"known: {', '.join(known)}",
                param=f"sampling_params.{name}",
            )
    pinned = {name: pin for name, pin in value.items() if is_reaching(FIELDS.get(name))}
    try:
        requested = _parse_reaching({name: pin for name, pin in pinned.items() if pin is not None})
    except RequestError as error:
        raise RequestError(
            f"sampling_params: {error.message}", param=f"sampling_params.{error.facts['param']}"
        ) from None
    return {**{FIELDS[name].name: None for name, pin in pinned.items() if pin is None}, **requested}


def parse_sampling_field(name: str, value: Any) -> Any:
    """Check one sampling field that stands alone, like a field of a body.

    Raises:
        RequestError: a bad value.
    """
    return _parse_reaching({name: value})[name]


def apply_pins(
    sampling: Mapping[str, Any], pins: Mapping[str, Any], forwarded: Mapping[str, Any] | None = None
) -> PinnedSampling:
    """Replace the agent's fields by the session's pins; a pin of null leaves the field out."""
    requested = {**(forwarded or {}), **sampling}
    overridden = {
        name: requested[name] for name in pins if name in requested and not is_same(requested[name], pins[name])
    }
    laid = {name: value for name, value in {**requested, **pins}.items() if value is not None}
    return PinnedSampling(
        sampling={name: value for name, value in laid.items() if _is_sampling(name)},
        forwarded={name: value for name, value in laid.items() if not _is_sampling(name)},
        overridden=overridden,
        unpinned=tuple(
            row.name
            for row in _SHAPING
            if row.name in requested and row.name not in pins and not row.is_neutral(requested[row.name])
        ),
        notes=tuple(f"left out {name}: the session forbids it" for name in overridden if pins[name] is None),
    )


_SHAPING: tuple[Field, ...] = tuple(row for use in (Use.SAMPLING, Use.FORMAT) for row in list_fields(use) if row.shapes)


def _is_sampling(name: str) -> bool:
    row = FIELDS.get(name)
    return row is not None and row.use is Use.SAMPLING


def quote(value: Any) -> str:
    """Quote a value for an error message, cut to 60 characters."""
    return shorten(repr(value))
