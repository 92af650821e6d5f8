"""The fields of a request, and pins.

1. Every name of a field is one value; bad values and names that disagree are refused by the name that came.
2. Each row of the table does what its use says; null asks for nothing, whatever the field.
3. What stands on no list is left out and listed, or forwarded where the operator says so.
4. Pins are checked when a session is made, win over the agent's values, and what they override is told. A pin of null
   leaves the agent's value out.
"""

from typing import Any

import pytest

from tablekit import checking_table
from turnkeeper.dialects.sampling import apply_pins, parse_fields, parse_pins
from turnkeeper.errors import FieldNotAllowedError, RequestError
from turnkeeper.fields import FIELDS, Use, find_field, list_fields

LIMITS = ("max_tokens", *FIELDS["max_tokens"].aliases)


def parse(**fields: Any) -> dict[str, Any]:
    return dict(parse_fields(fields).sampling)


@pytest.mark.parametrize("name", LIMITS)
def test_every_name_of_the_token_limit_is_one_value(name: str) -> None:
    assert parse(**{name: 7}) == {"max_tokens": 7}


def test_a_bad_token_limit_is_refused_by_the_name_it_came_under() -> None:
    with checking_table() as table:
        for value in [0, -1, 1.5, "7", True, [7], {}]:
            for name in LIMITS:
                with table.case(name, repr(value)):
                    with pytest.raises(RequestError, match=name) as caught:
                        parse(**{name: value})
                    assert caught.value.facts["param"] == name


def test_names_of_one_field_may_agree_and_may_not_disagree() -> None:
    assert parse(max_tokens=7, max_completion_tokens=7) == {"max_tokens": 7}
    with pytest.raises(RequestError, match="max_tokens=7 and max_completion_tokens=8"):
        parse(max_tokens=7, max_completion_tokens=8)
    with pytest.raises(RequestError, match="one seed is expected, got seed=1 and sampling_seed=2"):
        parse(seed=1, sampling_seed=2)


@pytest.mark.parametrize(("name", "meant"), [("sampling_seed", "seed"), ("min_new_tokens", "min_tokens")])
def test_an_engines_name_for_a_field_is_the_field(name: str, meant: str) -> None:
    assert parse(**{name: 3}) == {meant: 3}


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
    ("stop_regex", 1),
    ("ignore_eos", 1),
    ("logit_bias", []),
    ("response_format", "json"),
    ("regex", 1),
    ("ebnf", {}),
    ("json_schema", 1),
    ("guided_choice", []),
    ("guided_choice", [1]),
    ("structured_outputs", "json"),
    ("allowed_token_ids", ["a"]),
    ("top_logprobs", -1),
    ("top_logprobs", True),
]


def test_a_bad_value_is_refused_by_name() -> None:
    with checking_table() as table:
        for name, value in BAD:
            with table.case(name, repr(value)):
                with pytest.raises(RequestError, match=name) as caught:
                    parse(**{name: value})
                assert caught.value.facts["param"] == name


def test_good_values_are_kept_as_they_came() -> None:
    fields = {"temperature": 0, "top_p": 1, "top_k": -1, "stop": ["a", "b"], "seed": -3, "stop_token_ids": []}
    assert parse(**fields) == fields


def test_fields_about_calls_and_reports_are_forwarded() -> None:
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "reasoning_effort": "low", "top_logprobs": 5}
    found = parse_fields(fields)
    assert (found.forwarded, found.sampling, found.dropped_fields) == (fields, {}, ())


def test_null_asks_for_nothing() -> None:
    with checking_table() as table:
        for name in sorted({"user", "x_new", *FIELDS}):
            with table.case(name):
                found = parse_fields({name: None})
                assert (found.sampling, found.forwarded, found.dropped_fields, found.notes) == ({}, {}, (), ())


def test_a_field_whose_value_is_fixed_is_taken_in_any_value_and_noted() -> None:
    with checking_table() as table:
        for value in [True, False, 3, "x", [1]]:
            for name in [row.name for row in list_fields(Use.FIXED)]:
                with table.case(name, repr(value)):
                    found = parse_fields({name: value})
                    assert (found.sampling, found.forwarded, found.dropped_fields) == ({}, {}, ())
                    assert found.notes == (f"overrode {name}: its value is fixed here",)


def test_what_a_trainer_always_sends_is_served() -> None:
    always = {"no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False}
    found = parse_fields({**always, "temperature": 1.0, "max_new_tokens": 64, "stop": None, "stop_token_ids": None})
    assert found.sampling == {"temperature": 1.0, "max_tokens": 64}
    assert len(found.notes) == len(always)


PLACEMENT = [row.name for row in list_fields(Use.PLACEMENT) if "*" not in row.name]
FAMILIES = [
    "lora_weights",
    "bootstrap_anything",
    "disagg_mode",
    "prefill_dp_rank",
    "data_parallel_hint",
    "x_transfer_params",
]


def test_a_field_that_chooses_weights_addresses_or_priority_is_refused_by_name() -> None:
    with checking_table() as table:
        for value in [0, "x", [None], {}, False]:
            for name in [*PLACEMENT, *FAMILIES]:
                with table.case(name, repr(value)):
                    with pytest.raises(FieldNotAllowedError, match=f"^{name} ") as caught:
                        parse_fields({name: value}, forward_fields=[name])
                    assert (caught.value.code, caught.value.http_status) == ("field_not_allowed", 400)
                    assert caught.value.facts["param"] == name
                    assert name in caught.value.hint


TOKENS: list[tuple[str, Any]] = [
    *((row.name, [1]) for row in list_fields(Use.TOKENS)),
    ("n", 3),
    ("n", True),
    ("n", 0),
    ("best_of", 2),
    ("continue_final_message", True),
    ("add_generation_prompt", False),
    ("echo", True),
    ("logprob_start_len", 0),
    ("truncate_prompt_tokens", 100),
]


def test_a_field_that_takes_tokens_over_is_refused_by_name() -> None:
    with checking_table() as table:
        for name, value in TOKENS:
            with table.case(name, repr(value)):
                with pytest.raises(RequestError, match=f"^{name} ") as caught:
                    parse_fields({name: value}, forward_fields=[name])
                assert caught.value.facts["param"] == name


def test_a_field_that_could_take_tokens_over_passes_under_the_value_that_asks_for_nothing() -> None:
    idle = {row.name: value for row in list_fields(Use.TOKENS) for value in row.neutral}
    assert {"n", "echo", "add_generation_prompt", "logprob_start_len"} <= set(idle)
    found = parse_fields(idle)
    assert (found.sampling, found.forwarded, found.dropped_fields, found.notes) == ({}, {}, (), ())


def test_a_field_on_no_list_is_left_out_and_listed() -> None:
    found = parse_fields({"x_new": [1], "another": {}, "temperature": 1, "user": "u"}, read={"user"})
    assert (found.sampling, found.forwarded) == ({"temperature": 1}, {})
    assert found.dropped_fields == ("another", "x_new")


def test_the_list_of_what_is_left_out_is_bounded() -> None:
    found = parse_fields({"k" * 100_000: 1, **{f"x_{number}": 1 for number in range(1000)}}).dropped_fields
    assert (len(found), max(map(len, found))) == (100, 100)


def test_the_operator_forwards_a_field_on_no_list() -> None:
    found = parse_fields({"x_new": [1], "another": {}}, forward_fields=("x_new", "absent"))
    assert (found.forwarded, found.dropped_fields) == ({"x_new": [1]}, ("another",))


def test_no_name_has_two_rows() -> None:
    rows = [row for use in Use for row in list_fields(use)]
    names = [name for row in rows for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))
    assert all(find_field(row.name) is row for row in rows)


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ([], "must be an object"),
        ({"temperature": "hot"}, "temperature"),
        ({"heat": 1}, "sampling_params.heat"),
        ({"lora_path": "x"}, "sampling_params.lora_path"),
        ({"input_ids": [1]}, "sampling_params.input_ids"),
        ({"n": 2}, "sampling_params.n"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
    ids=["list", "bad value", "unknown name", "weights", "tokens", "two completions", "zero limit"],
)
def test_bad_pins_are_refused(pins: object, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        parse_pins(pins)
    assert caught.value.facts["param"].startswith("sampling_params")


def test_a_trainers_whole_sampling_parameters_are_pins() -> None:
    whole = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 64, "n": 1, "sampling_seed": 5}
    fixed = {"no_stop_trim": True, "skip_special_tokens": False, "spaces_between_special_tokens": False}
    assert parse_pins({**whole, **fixed, "stop": None}) == {
        "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 64, "seed": 5, "stop": None,
    }  # fmt: skip


def test_pins_win_and_what_they_override_is_told() -> None:
    pins = parse_pins({"temperature": 1, "max_completion_tokens": 512})
    pinned = apply_pins(parse(temperature=0.2, max_tokens=512, top_p=0.9), pins)
    assert pinned.sampling == {"temperature": 1, "max_tokens": 512, "top_p": 0.9}
    assert pinned.overridden == {"temperature": 0.2}
    assert pinned.notes == ()


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_pin_of_null_leaves_the_agents_value_out(name: str) -> None:
    pins = parse_pins({name: None, "temperature": None, "tool_choice": None, "seed": None})
    pinned = apply_pins({"max_tokens": 5, "temperature": 0.2, "top_p": 0.5}, pins, {"tool_choice": "required", "x": 1})
    assert (pinned.sampling, pinned.forwarded) == ({"top_p": 0.5}, {"x": 1})
    assert pinned.overridden == {"max_tokens": 5, "temperature": 0.2, "tool_choice": "required"}
    assert pinned.notes == tuple(
        f"left out {name}: the session forbids it" for name in ("max_tokens", "temperature", "tool_choice")
    )
    assert pinned.unpinned == ("top_p",)


def test_fields_about_calls_can_be_pinned() -> None:
    pinned = apply_pins({}, parse_pins({"reasoning_effort": "low"}), {"reasoning_effort": "high"})
    assert (pinned.sampling, pinned.forwarded) == ({}, {"reasoning_effort": "low"})
    assert pinned.overridden == {"reasoning_effort": "high"}


def test_fields_that_change_the_distribution_unpinned_are_told() -> None:
    asked = {"temperature": 0.5, "top_p": 1, "top_k": 20, "presence_penalty": 0.0, "seed": 3, "max_tokens": 5}
    assert apply_pins(asked, {}).unpinned == ("temperature", "top_k")
    assert apply_pins(asked, {"temperature": 1, "top_k": -1}).unpinned == ()
    assert apply_pins({"response_format": {"type": "json_object"}}, {}).unpinned == ("response_format",)
    assert apply_pins({"guided_regex": "a+", "min_tokens": 3}, {}).unpinned == ("min_tokens", "guided_regex")
    assert apply_pins({}, {}, {"tool_choice": "required"}).unpinned == ("tool_choice",)
    assert apply_pins({}, {}, {"tool_choice": "auto"}).unpinned == ()
