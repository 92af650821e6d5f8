"""The fields of a turn's request, each declared once: what a field does, and what each engine wire calls it.

A field that stands in no row reaches no engine, unless the operator forwards it (``--forward-field``). Knows no
dialect: the members that only one API has (``messages``, ``tools``, ``input``, ...) are that dialect's own.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase, translate
from typing import Any

from turnkeeper.jsontypes import is_array, is_number, is_object


class Use(StrEnum):
    """What becomes of a field."""

    SAMPLING = "sampling"
    """Reaches the engine: it shapes the distribution of tokens, or the end of a completion."""
    FORMAT = "format"
    """Reaches the engine: it shapes calls, reasoning or what is reported."""
    FIXED = "fixed"
    """The server decides its value. Any value is taken, overridden and noted."""
    PLACEMENT = "placement"
    """Chooses weights, addresses or priority, or runs code in the engine. Refused: `field_not_allowed`."""
    TOKENS = "tokens"
    """Would take a turn's tokens out of the server's hands. Refused, unless its value asks for nothing."""


class Wire(StrEnum):
    """Where a request goes. Both of vLLM's routes take the same names."""

    CHAT = "chat"
    """SGLang's `/v1/chat/completions`."""
    GENERATE = "generate"
    """SGLang's `/generate`."""
    VLLM = "vllm"
    """vLLM's `/inference/v1/generate` and `/v1/completions`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a field may hold."""

    expected: str
    """For the error message."""
    accepts: Callable[[Any], bool]
    """Whether a value is fine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One row of the table."""

    name: str
    """As chat completions call it."""
    use: Use
    check: Check | None = None
    """What its value may be; None leaves that to the engine."""
    names: Mapping[Wire, str] = field(default_factory=dict[Wire, str])
    """What each wire calls it. On a wire that is missing here the field is left out and listed."""
    neutral: tuple[Any, ...] = ()
    """The values that ask for nothing."""
    shapes: bool = False
    """Whether it changes the distribution that tokens are drawn from, unless its value is neutral."""
    is_grammar: bool = False
    """Whether it constrains what may be sampled. Each wire has its own form of that: `turnkeeper.engines.grammar`."""
    aliases: tuple[str, ...] = ()
    """Other names that mean the same."""

    def is_neutral(self, value: Any) -> bool:
        """Return True when the value asks for nothing."""
        return value is None or any(is_same(value, each) for each in self.neutral)


def is_same(left: Any, right: Any) -> bool:
    """Equality that keeps 1 and true apart."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(expected: str, accepts: Callable[[float], bool]) -> Check:
    return Check(expected=expected, accepts=lambda value: is_number(value) and accepts(value))


def _whole(expected: str, accepts: Callable[[int], bool]) -> Check:
    return Check(expected=expected, accepts=lambda value: _is_whole(value) and accepts(value))


def _is_text_list(value: Any) -> bool:
    return all(isinstance(text, str) and text for text in (value if is_array(value) else [value]))


def _is_id_list(value: Any) -> bool:
    return is_array(value) and all(_is_whole(item) and item >= 0 for item in value)


_OBJECT = Check(expected="an object", accepts=is_object)
_BOOLEAN = Check(expected="true or false", accepts=lambda value: isinstance(value, bool))
_TEXT = Check(expected="a string", accepts=lambda value: isinstance(value, str))
_TEXTS = Check(expected="a string or a list of strings, none empty", accepts=_is_text_list)
_CHOICES = Check(
    expected="a list of strings, none empty",
    accepts=lambda value: is_array(value) and bool(value) and _is_text_list(value),
)
_IDS = Check(expected="a list of token ids", accepts=_is_id_list)
_SCHEMA = Check(expected="a string or an object", accepts=lambda value: isinstance(value, str) or is_object(value))
_PENALTY = _number("a number in [-2, 2]", lambda value: -2 <= value <= 2)
_LIMIT = _whole("a whole number of at least 1", lambda value: value >= 1)
_COUNT = _whole("a whole number of at least 0", lambda value: value >= 0)


def _everywhere(name: str, *, generate: str = "") -> dict[Wire, str]:
    return {Wire.CHAT: name, Wire.GENERATE: generate or name, Wire.VLLM: name}


def _shaping(name: str, check: Check, *neutral: Any, names: Mapping[Wire, str] | None = None) -> Field:
    found = names or _everywhere(name)
    return Field(name=name, use=Use.SAMPLING, check=check, names=found, neutral=neutral, shapes=True)


def _ending(
    name: str, check: Check, *neutral: Any, names: Mapping[Wire, str] | None = None, aliases: tuple[str, ...] = ()
) -> Field:
    found = names or _everywhere(name)
    return Field(name=name, use=Use.SAMPLING, check=check, names=found, neutral=neutral, aliases=aliases)


def _grammar(name: str, check: Check, *neutral: Any) -> Field:
    names = _everywhere(name)
    return Field(name=name, use=Use.SAMPLING, check=check, names=names, neutral=neutral, shapes=True, is_grammar=True)


_REACHING: tuple[Field, ...] = (
    _ending(
        "max_tokens",
        _LIMIT,
        names=_everywhere("max_tokens", generate="max_new_tokens"),
        aliases=("max_completion_tokens", "max_new_tokens", "max_output_tokens"),
    ),
    _shaping("temperature", _number("a number of at least 0", lambda value: value >= 0), 1),
    _shaping("top_p", _number("a number in (0, 1]", lambda value: 0 < value <= 1), 1),
    _shaping(
        "top_k",
        _whole("a whole number of at least 1, or -1 for all", lambda value: value >= 1 or value == -1),
        -1,
    ),
    _shaping("min_p", _number("a number in [0, 1]", lambda value: 0 <= value <= 1), 0),
    _shaping("presence_penalty", _PENALTY, 0),
    _shaping("frequency_penalty", _PENALTY, 0),
    _shaping("repetition_penalty", _number("a number above 0", lambda value: value > 0), 1),
    _shaping("logit_bias", _OBJECT, {}),
    Field(
        name="min_tokens",
        use=Use.SAMPLING,
        check=_COUNT,
        names=_everywhere("min_tokens", generate="min_new_tokens"),
        neutral=(0,),
        shapes=True,
        aliases=("min_new_tokens",),
    ),
    _shaping("allowed_token_ids", _IDS, [], names={Wire.VLLM: "allowed_token_ids"}),
    _shaping("bad_words", _TEXTS, [], names={Wire.VLLM: "bad_words"}),
    _shaping(
        "thinking_token_budget",
        _whole("a whole number", lambda _: True),
        -1,
        names={Wire.VLLM: "thinking_token_budget"},
    ),
    _shaping("custom_params", _OBJECT, {}, names={Wire.CHAT: "custom_params", Wire.GENERATE: "custom_params"}),
    _ending(
        "seed",
        _whole("a whole number", lambda _: True),
        names=_everywhere("seed", generate="sampling_seed"),
        aliases=("sampling_seed",),
    ),
    _ending("stop", _TEXTS, []),
    _ending("stop_token_ids", _IDS, []),
    _ending("stop_regex", _TEXTS, [], names={Wire.CHAT: "stop_regex", Wire.GENERATE: "stop_regex"}),
    _ending("ignore_eos", _BOOLEAN, False),
    _ending("repetition_detection", _OBJECT, names={Wire.VLLM: "repetition_detection"}),
    _grammar("response_format", _OBJECT, {"type": "text"}),
    _grammar("json_schema", _SCHEMA),
    _grammar("regex", _TEXT),
    _grammar("ebnf", _TEXT),
    _grammar("structural_tag", _SCHEMA),
    _grammar("guided_json", _SCHEMA),
    _grammar("guided_regex", _TEXT),
    _grammar("guided_grammar", _TEXT),
    _grammar("guided_choice", _CHOICES),
    _grammar("structured_outputs", _OBJECT),
    Field(name="tool_choice", use=Use.FORMAT, names={Wire.CHAT: "tool_choice"}, neutral=("auto",), shapes=True),
    Field(name="parallel_tool_calls", use=Use.FORMAT, names={Wire.CHAT: "parallel_tool_calls"}, neutral=(True,)),
    Field(name="reasoning_effort", use=Use.FORMAT, names={Wire.CHAT: "reasoning_effort"}),
    Field(
        name="top_logprobs",
        use=Use.FORMAT,
        check=_COUNT,
        names={Wire.CHAT: "top_logprobs", Wire.GENERATE: "top_logprobs_num", Wire.VLLM: "logprobs"},
        neutral=(0,),
    ),
)
"""What reaches an engine."""


def _list(use: Use, names: Iterable[str]) -> tuple[Field, ...]:
    return tuple(Field(name=name, use=use) for name in names)


_FIXED = _list(
    Use.FIXED,
    (
        "no_stop_trim",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output",
        "detokenize",
        "separate_reasoning",
        "stream_reasoning",
        "include_reasoning",
        "stream_interval",
        "output_kind",
        "rid",
        "request_id",
        "return_logprob",
        "return_text_in_logprobs",
        "return_meta_info",
        "return_hidden_states",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "return_prompt_token_ids",
        "return_prompt_text",
        "return_token_offsets",
        "return_cached_tokens_details",
        "return_routed_experts",
        "return_indexer_topk",
        "return_sampling_mask",
        "sampling_logprobs_mode",
        "return_weight_versions",
        "routed_experts_start_len",
        "routed_experts_prompt_start",
        "prompt_logprobs",
        "top_logprobs_num",
        "token_ids_logprob",
        "logprob_token_ids",
        "flat_logprobs",
        "output_mode",
        "parse_context",
    ),
)

_PLACEMENT = _list(
    Use.PLACEMENT,
    (
        "lora_path",
        "lora_name",
        "lora_id",
        "lora_adapter",
        "lora_request",
        "adapter_id",
        "adapter_source",
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "bootstrap_pair_key",
        "routed_dp_rank",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "decode_tp_size",
        "kv_transfer_params",
        "ec_transfer_params",
        "priority",
        "extra_key",
        "cache_salt",
        "session_params",
        "custom_logit_processor",
        "logits_processors",
        "vllm_xargs",
        "extra_args",
        # Whole families of names, as engines add to them.
        "lora_*",
        "adapter_*",
        "bootstrap_*",
        "disagg_*",
        "data_parallel_*",
        "*_dp_rank",
        "*_transfer_params",
    ),
)


def _token(name: str, *neutral: Any) -> Field:
    return Field(name=name, use=Use.TOKENS, neutral=neutral)


_TOKENS: tuple[Field, ...] = (
    _token("input_ids"),
    _token("input_embeds"),
    _token("prompt"),
    _token("prompt_ids"),
    _token("prompt_embeds"),
    _token("prompt_token_ids"),
    _token("token_ids"),
    _token("trace_decode_token_ids"),
    _token("prompt_cache_retention_ids"),
    _token("chat_template"),
    _token("n", 1),
    _token("best_of", 1),
    _token("use_beam_search", False),
    _token("continue_final_message", False),
    _token("add_generation_prompt", True),
    _token("add_special_tokens", False),
    _token("echo", False),
    _token("logprob_start_len", -1),
    _token("truncate_prompt_tokens", -1),
)

TABLE: tuple[Field, ...] = (*_REACHING, *_FIXED, *_PLACEMENT, *_TOKENS)
"""Every row, in the order of the docs."""

FIELDS: Mapping[str, Field] = {name: row for row in TABLE for name in (row.name, *row.aliases)}
"""Every row by its name and by each of its aliases."""

_PATTERNS = tuple(row for row in TABLE if "*" in row.name)
_IS_IN_FAMILY = re.compile("|".join(translate(row.name) for row in _PATTERNS)).match
"""One look at a name for all families: most names of a body belong to none."""


def find_field(name: str) -> Field | None:
    """Find the row of a field; None for a field on no list."""
    if name in FIELDS or not _IS_IN_FAMILY(name):
        return FIELDS.get(name)
    return next(row for row in _PATTERNS if fnmatchcase(name, row.name))


def is_reaching(row: Field | None) -> bool:
    """Return True when the row's field reaches engines."""
    return row is not None and row.use in (Use.SAMPLING, Use.FORMAT)


def list_fields(use: Use) -> tuple[Field, ...]:
    """List the rows of the fields of one use."""
    return tuple(row for row in TABLE if row.use is use)
