"""Sort the fields of a request for one engine wire: those that the wire has, under its names, and those that it lacks.

Pure. The names stand in the table of `turnkeeper.fields`; grammars have a form of their own for each wire.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.engines.engine import GenerateRequest
from turnkeeper.engines.grammar import find_grammar, render_grammar
from turnkeeper.fields import FIELDS, Use, Wire, find_field
from turnkeeper.jsontypes import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class WireFields:
    """A request's fields, sorted for one wire."""

    sampling: JsonObject
    """The sampler under the wire's names, the token limit included."""
    format: JsonObject
    """Fields about calls, reasoning and reports, under the wire's names."""
    forwarded: JsonObject
    """Fields on no list, which the operator forwards: they stand in the body itself."""
    dropped_fields: tuple[str, ...]
    """Fields that this wire does not have."""


def select_fields(request: GenerateRequest, wire: Wire) -> WireFields:
    """Sort the fields of a request, those of the sampler and all others.

    Raises:
        EngineRefusedError: the request asks for two grammars.
    """
    requested: Mapping[str, Any] = {**request.forwarded, **request.sampling}
    found: dict[Use, JsonObject] = {Use.SAMPLING: {}, Use.FORMAT: {}}
    forwarded: JsonObject = {}
    dropped: list[str] = []
    for name, value in requested.items():
        row = find_field(name)
        if value is None or (row is not None and (row.is_grammar or row is FIELDS["max_tokens"])):
            continue
        if row is None:
            forwarded[name] = value
        elif row.use in found and wire in row.names:
            found[row.use][row.names[wire]] = value
        elif row.use in found and not row.is_neutral(value):
            dropped.append(name)
    budget = request.token_budget
    if budget is not None:
        found[Use.SAMPLING][FIELDS["max_tokens"].names[wire]] = budget
    grammar = find_grammar(requested)
    if grammar is not None:
        rendered = render_grammar(grammar, wire)
        found[Use.SAMPLING] |= rendered or {}
        dropped += [grammar.field] if rendered is None else []
    return WireFields(
        sampling=found[Use.SAMPLING],
        format=found[Use.FORMAT],
        forwarded=forwarded,
        dropped_fields=tuple(sorted(dropped)),
    )


def find_dropped(request: GenerateRequest, wire: Wire) -> tuple[str, ...]:
    """Name the fields of a request that a wire does not have."""
    return select_fields(request, wire).dropped_fields
