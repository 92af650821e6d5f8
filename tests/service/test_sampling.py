"""Sampling fields.

1. Every spelling of the token limit is one value; 0, negatives, non-numbers and disagreeing spellings are refused.
2. A field of another kind or out of range is refused by name; null means left out.
3. Fields that would take tokens out of the server's hands are refused by name.
4. Pins are checked when a session is made, win over the agent's values, and what they override is told.
"""

from typing import Any

import pytest

from turnkeeper.errors import RequestError
from turnkeeper.service.sampling import (
    OWNED_FIELDS,
    TOKEN_LIMIT_SPELLINGS,
    apply_pins,
    check_owned_fields,
    parse_pins,
    parse_sampling,
)


@pytest.mark.parametrize("name", TOKEN_LIMIT_SPELLINGS)
def test_every_spelling_of_the_token_limit_is_one_value(name: str) -> None:
    assert parse_sampling({name: 7}) == {"max_tokens": 7}


@pytest.mark.parametrize("name", TOKEN_LIMIT_SPELLINGS)
@pytest.mark.parametrize("value", [0, -1, 1.5, "7", True, [7], {}])
def test_a_bad_token_limit_is_refused_by_the_name_it_came_under(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        parse_sampling({name: value})
    assert caught.value.facts["param"] == name


def test_equal_spellings_agree() -> None:
    assert parse_sampling({"max_tokens": 7, "max_completion_tokens": 7}) == {"max_tokens": 7}


def test_spellings_that_disagree_are_refused() -> None:
    with pytest.raises(RequestError, match="max_tokens=7 and max_completion_tokens=8"):
        parse_sampling({"max_tokens": 7, "max_completion_tokens": 8})


BAD: list[tuple[str, Any]] = [
    ("temperature", "hot"),
    ("temperature", -0.1),
    ("temperature", True),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", 0),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", 2),
    ("min_tokens", -1),
    ("presence_penalty", 3),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("seed", "x"),
    ("stop", 3),
    ("stop", [""]),
    ("stop", [1]),
    ("stop_token_ids", 3),
    ("stop_token_ids", [-1]),
    ("ignore_eos", 1),
    ("logit_bias", []),
    ("response_format", "json"),
    ("regex", 1),
    ("ebnf", {}),
    ("json_schema", 1),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value}" for name, value in BAD])
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        parse_sampling({name: value})
    assert caught.value.facts["param"] == name


def test_good_values_are_kept_as_they_came() -> None:
    fields = {"temperature": 0, "top_p": 1, "top_k": -1, "stop": ["a", "b"], "seed": -3, "stop_token_ids": []}
    assert parse_sampling(fields) == fields


def test_null_and_other_fields_are_left_out() -> None:
    assert parse_sampling({"temperature": None, "max_tokens": None, "user": "x"}) == {}


@pytest.mark.parametrize("name", sorted(OWNED_FIELDS))
def test_a_field_that_takes_tokens_over_is_refused_by_name(name: str) -> None:
    with pytest.raises(RequestError, match=f"^{name} "):
        check_owned_fields({name: None})


FIXED: list[tuple[str, Any]] = [
    ("n", 3),
    ("n", True),
    ("n", 0),
    ("continue_final_message", True),
    ("no_stop_trim", True),
    ("skip_special_tokens", False),
    ("top_logprobs", 5),
]


@pytest.mark.parametrize(("name", "value"), FIXED, ids=[f"{name}={value}" for name, value in FIXED])
def test_a_field_with_one_meaning_is_refused_under_another(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name} must be"):
        check_owned_fields({name: value})


def test_fixed_fields_pass_under_their_one_meaning() -> None:
    check_owned_fields({"n": 1, "continue_final_message": False, "top_logprobs": 0, "no_stop_trim": None})


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ([], "must be an object"),
        ({"temperature": "hot"}, "temperature"),
        ({"heat": 1}, "sampling_params.heat"),
        ({"temperature": None}, "sampling_params.temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
    ids=["list", "bad value", "unknown name", "null", "zero limit"],
)
def test_bad_pins_are_refused(pins: object, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse_pins(pins)


def test_pins_win_and_what_they_override_is_told() -> None:
    pins = parse_pins({"temperature": 1, "max_completion_tokens": 512})
    asked = parse_sampling({"temperature": 0.2, "max_tokens": 512, "top_p": 0.9})
    pinned = apply_pins(asked, pins)
    assert pinned.sampling == {"temperature": 1, "max_tokens": 512, "top_p": 0.9}
    assert pinned.overridden == {"temperature": 0.2}


def test_fields_that_change_the_distribution_unpinned_are_told() -> None:
    asked = {"temperature": 0.5, "top_p": 1, "top_k": 20, "presence_penalty": 0.0, "seed": 3, "max_tokens": 5}
    assert apply_pins(asked, {}).unpinned == ("temperature", "top_k")
    assert apply_pins(asked, {"temperature": 1, "top_k": -1}).unpinned == ()
    assert apply_pins({"response_format": {"type": "json_object"}}, {}).unpinned == ("response_format",)
