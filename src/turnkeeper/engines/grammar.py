"""Grammars (structured outputs): a constraint on the sampled text, under the names of each client and wire.

Pure. A client names the grammar as the engine does that it was written for; each wire gets it under its own name. A
grammar that came in a wire's own form is sent as it came.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from turnkeeper.errors import EngineRefusedError
from turnkeeper.fields import FIELDS, Wire
from turnkeeper.jsontypes import JsonObject, encode_json, is_object


class GrammarKind(StrEnum):
    """The notation of a grammar."""

    JSON = "json"
    """A JSON schema."""
    JSON_OBJECT = "json_object"
    """Any JSON object."""
    REGEX = "regex"
    EBNF = "ebnf"
    CHOICE = "choice"
    """The completion is one of several given texts."""
    TAG = "structural_tag"
    """Grammars between tags."""
    OTHER = "other"
    """A notation that only the engine may know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A grammar as a request gave it."""

    kind: GrammarKind
    value: Any
    field: str
    """The request's field that held the grammar."""
    given: Any
    """The value of that field."""


_SIMPLE: Mapping[str, GrammarKind] = {
    "json_schema": GrammarKind.JSON,
    "guided_json": GrammarKind.JSON,
    "regex": GrammarKind.REGEX,
    "guided_regex": GrammarKind.REGEX,
    "ebnf": GrammarKind.EBNF,
    "guided_grammar": GrammarKind.EBNF,
    "guided_choice": GrammarKind.CHOICE,
    "structural_tag": GrammarKind.TAG,
}
"""Fields whose whole value is the grammar."""

_OUTPUTS: Mapping[str, GrammarKind] = {
    "json": GrammarKind.JSON,
    "json_object": GrammarKind.JSON_OBJECT,
    "regex": GrammarKind.REGEX,
    "grammar": GrammarKind.EBNF,
    "choice": GrammarKind.CHOICE,
    "structural_tag": GrammarKind.TAG,
}
"""The members of vLLM's ``structured_outputs``."""

_GRAMMAR_FIELDS = tuple(name for name, row in FIELDS.items() if row.is_grammar)

_NATIVE: Mapping[Wire, frozenset[str]] = {
    Wire.CHAT: frozenset({"response_format", "regex", "ebnf"}),
    Wire.GENERATE: frozenset({"regex", "ebnf"}),
    Wire.VLLM: frozenset({"structured_outputs"}),
}
"""The fields of clients that a wire has itself."""

_METACHARACTERS = re.compile(r"[\\^$.|?*+()\[\]{}]")


def find_grammar(requested: Mapping[str, Any]) -> Grammar | None:
    """Find the grammar that a request asks for.

    Raises:
        EngineRefusedError: the request asks for two grammars.
    """
    found = [
        _read(name, requested[name])
        for name in _GRAMMAR_FIELDS
        if name in requested and not FIELDS[name].is_neutral(requested[name])
    ]
    if len(found) > 1:
        raise EngineRefusedError(
            f"one grammar is expected, got {' and '.join(grammar.field for grammar in found)}",
            hint="an engine samples by one grammar at a time",
            engine_status=400,
        )
    return found[0] if found else None


def _read(name: str, value: Any) -> Grammar:
    if name in _SIMPLE:
        return Grammar(kind=_SIMPLE[name], value=value, field=name, given=value)
    if name == "structured_outputs":
        for member, kind in _OUTPUTS.items():
            if value.get(member) is not None:
                return Grammar(kind=kind, value=value[member], field=name, given=value)
        return Grammar(kind=GrammarKind.OTHER, value=value, field=name, given=value)
    inner = value.get("json_schema")
    match value.get("type"):
        case "json_object":
            return Grammar(kind=GrammarKind.JSON_OBJECT, value=True, field=name, given=value)
        case "json_schema" if is_object(inner):
            return Grammar(kind=GrammarKind.JSON, value=inner.get("schema"), field=name, given=value)
        case "structural_tag":
            return Grammar(kind=GrammarKind.TAG, value=value, field=name, given=value)
        case _:
            return Grammar(kind=GrammarKind.OTHER, value=value, field=name, given=value)


def render_grammar(grammar: Grammar, wire: Wire) -> JsonObject | None:
    """Write a grammar in a wire's own fields; None where the wire has no field for it."""
    if grammar.field in _NATIVE[wire]:
        return {grammar.field: grammar.given}
    match wire:
        case Wire.CHAT:
            return _render_chat(grammar)
        case Wire.GENERATE:
            return _render_generate(grammar)
        case Wire.VLLM:
            return _render_vllm(grammar)


def _render_chat(grammar: Grammar) -> JsonObject | None:
    match grammar.kind:
        case GrammarKind.JSON:
            inner = {"name": "output", "schema": _as_object(grammar.value)}
            return {"response_format": {"type": "json_schema", "json_schema": inner}}
        case GrammarKind.JSON_OBJECT:
            return {"response_format": {"type": "json_object"}}
        case GrammarKind.TAG:
            return {"response_format": _as_object(grammar.value)}
        case _:
            return _render_plain(grammar)


def _render_generate(grammar: Grammar) -> JsonObject | None:
    match grammar.kind:
        case GrammarKind.JSON:
            return {"json_schema": _as_text(grammar.value)}
        case GrammarKind.JSON_OBJECT:
            return {"json_schema": '{"type": "object"}'}
        case GrammarKind.TAG:
            return {"structural_tag": _as_text(grammar.value)}
        case _:
            return _render_plain(grammar)


def _render_plain(grammar: Grammar) -> JsonObject | None:
    """Write a grammar in the fields that both routes of SGLang have."""
    match grammar.kind:
        case GrammarKind.REGEX:
            return {"regex": grammar.value}
        case GrammarKind.EBNF:
            return {"ebnf": grammar.value}
        case GrammarKind.CHOICE:
            escaped = (_METACHARACTERS.sub(r"\\\g<0>", text) for text in grammar.value)
            return {"regex": f"({'|'.join(escaped)})"}
        case _:
            return None


def _render_vllm(grammar: Grammar) -> JsonObject | None:
    if grammar.kind is GrammarKind.OTHER:
        return None
    member = next(member for member, kind in _OUTPUTS.items() if kind is grammar.kind)
    value = _as_text(grammar.value) if grammar.kind is GrammarKind.TAG else grammar.value
    return {"structured_outputs": {member: value}}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else encode_json(value).decode()


def _as_object(value: Any) -> Any:
    """Parse a schema that came as text. Text that is no JSON stays as it is, for the engine to refuse."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
