"""Sampling fields: one name and one meaning for each, whatever the client calls it.

Pure. Used for the bodies of every dialect and for the pins of a session, which use the names of chat completions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import is_array, is_number, is_object

TOKEN_LIMIT_SPELLINGS = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens")
"""All mean ``max_tokens``."""

OWNED_FIELDS: frozenset[str] = frozenset(
    {
        "input_ids", "input_embeds", "prompt", "prompt_embeds", "prompt_token_ids", "prompt_logprobs", "token_ids",
        "logprob_start_len", "token_ids_logprob", "return_logprob", "return_token_ids", "return_tokens_as_token_ids",
        "return_hidden_states", "return_routed_experts", "routed_experts_start_len", "return_indexer_topk", "rid",
        "session_params", "custom_logit_processor", "chat_template", "add_generation_prompt", "add_special_tokens",
        "echo", "best_of", "use_beam_search", "prompt_cache_retention_ids",
    }
)  # fmt: skip
"""Fields that would take tokens out of the server's hands; refused by name, whatever their value."""

FIXED_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "n": (1, None),
    "continue_final_message": (False, None),
    "no_stop_trim": (False, None),
    "skip_special_tokens": (True, None),
    "top_logprobs": (0, None),
    "return_meta_info": (True, False, None),
}
"""Fields that only have one meaning here, with the values that say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What one sampling field may hold."""

    expected: str
    """For the error message."""
    accepts: Callable[[Any], bool]
    """Whether a value is fine."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(expected: str, accepts: Callable[[float], bool]) -> Rule:
    return Rule(expected=expected, accepts=lambda value: is_number(value) and accepts(value))


def _whole(expected: str, accepts: Callable[[int], bool]) -> Rule:
    return Rule(expected=expected, accepts=lambda value: _is_whole(value) and accepts(value))


def _is_stop(value: Any) -> bool:
    return all(isinstance(text, str) and text for text in (value if is_array(value) else [value]))


def _is_id_list(value: Any) -> bool:
    return is_array(value) and all(_is_whole(item) and item >= 0 for item in value)


_OBJECT = Rule(expected="an object", accepts=is_object)
_BOOLEAN = Rule(expected="true or false", accepts=lambda value: isinstance(value, bool))
_TEXT = Rule(expected="a string", accepts=lambda value: isinstance(value, str))

SAMPLING_RULES: Mapping[str, Rule] = {
    "max_tokens": _whole("a whole number of at least 1", lambda value: value >= 1),
    "temperature": _number("a number of at least 0", lambda value: value >= 0),
    "top_p": _number("a number in (0, 1]", lambda value: 0 < value <= 1),
    "top_k": _whole("a whole number of at least 1, or -1 for all", lambda value: value >= 1 or value == -1),
    "min_p": _number("a number in [0, 1]", lambda value: 0 <= value <= 1),
    "min_tokens": _whole("a whole number of at least 0", lambda value: value >= 0),
    "presence_penalty": _number("a number in [-2, 2]", lambda value: -2 <= value <= 2),
    "frequency_penalty": _number("a number in [-2, 2]", lambda value: -2 <= value <= 2),
    "repetition_penalty": _number("a number above 0", lambda value: value > 0),
    "seed": _whole("a whole number", lambda value: True),
    "stop": Rule(expected="a string or a list of strings, none empty", accepts=_is_stop),
    "stop_token_ids": Rule(expected="a list of token ids", accepts=_is_id_list),
    "ignore_eos": _BOOLEAN,
    "logit_bias": _OBJECT,
    "response_format": _OBJECT,
    "regex": _TEXT,
    "ebnf": _TEXT,
    "json_schema": Rule(expected="a string or an object", accepts=lambda value: isinstance(value, (str, dict))),
}
"""The fields that shape the distribution or the end of a completion."""


NEUTRAL_VALUES: Mapping[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_p": (1,),
    "top_k": (-1,),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
}
"""The fields that change the distribution which tokens are drawn from, with the values under which they do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedSampling:
    """A sampler after a session's pins were laid over it."""

    sampling: Mapping[str, Any]
    """What the engine is asked for."""
    overridden: Mapping[str, Any]
    """What the agent had asked for instead, by field; only where it differs."""
    unpinned: tuple[str, ...]
    """Fields by which the agent changes the distribution, since no pin says otherwise."""


def parse_sampling(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling fields of a body under their chat-completions names; null means left out.

    Raises:
        RequestError: a value is of another kind or out of range, or two spellings of the token limit disagree.
    """
    sampling: dict[str, Any] = {}
    limit = parse_token_limit(fields)
    if limit is not None:
        sampling["max_tokens"] = limit
    for name, rule in SAMPLING_RULES.items():
        value = fields.get(name)
        if value is None or name == "max_tokens":
            continue
        if not rule.accepts(value):
            raise RequestError(f"{name} must be {rule.expected}, got {_show(value)}", param=name)
        sampling[name] = value
    return sampling


def parse_token_limit(fields: Mapping[str, Any]) -> int | None:
    """The one value that all spellings of the token limit give; None when none is there.

    Raises:
        RequestError: it is no whole number of at least 1, or two spellings differ.
    """
    given = {name: fields[name] for name in TOKEN_LIMIT_SPELLINGS if fields.get(name) is not None}
    for name, value in given.items():
        if not SAMPLING_RULES["max_tokens"].accepts(value):
            raise RequestError(f"{name} must be a whole number of at least 1, got {_show(value)}", param=name)
    if len(set(given.values())) > 1:
        spelled = " and ".join(f"{name}={value}" for name, value in given.items())
        raise RequestError(f"one token limit is expected, got {spelled}", param=next(iter(given)))
    return next(iter(given.values()), None)


def check_owned_fields(fields: Mapping[str, Any]) -> None:
    """Refuse what would take tokens out of the server's hands.

    Raises:
        RequestError: names the field.
    """
    for name in fields:
        if name in OWNED_FIELDS:
            raise RequestError(
                f"{name} is not for agents: the server owns the tokens of a session",
                hint=f"leave {name} out",
                param=name,
            )
    for name, allowed in FIXED_FIELDS.items():
        if name in fields and not any(fields[name] is value or _equals(fields[name], value) for value in allowed):
            raise RequestError(f"{name} must be {_show(allowed[0])} here, got {_show(fields[name])}", param=name)


def parse_pins(value: Any) -> dict[str, Any]:
    """The pins of a new session, checked as a body's fields would be.

    Raises:
        RequestError: not an object, an unknown name, or a bad value.
    """
    if not is_object(value):
        raise RequestError("sampling_params must be an object", param="sampling_params")
    pins = value
    known = {*SAMPLING_RULES, *TOKEN_LIMIT_SPELLINGS}
    for name in pins:
        if name not in known:
            raise RequestError(
                f"sampling_params.{name} is not a sampling field",
                hint=f"known: {', '.join(sorted(known))}",
                param=f"sampling_params.{name}",
            )
        if pins[name] is None:
            raise RequestError(f"sampling_params.{name} is null; leave it out instead", param=f"sampling_params.{name}")
    return parse_sampling(pins)


def apply_pins(sampling: Mapping[str, Any], pins: Mapping[str, Any]) -> PinnedSampling:
    """Lay a session's pins over what the agent asked for; pins win."""
    overridden = {name: sampling[name] for name in pins if name in sampling and not _equals(sampling[name], pins[name])}
    unpinned = tuple(
        name
        for name, neutral in NEUTRAL_VALUES.items()
        if name in sampling and name not in pins and not any(_equals(sampling[name], value) for value in neutral)
    )
    return PinnedSampling(sampling={**sampling, **pins}, overridden=overridden, unpinned=unpinned)


def _equals(left: Any, right: Any) -> bool:
    """Equality that keeps 1 and true apart."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
