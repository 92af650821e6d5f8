"""Fields of a body, one way in all three dialects.

1. What reaches engines, what is overridden, what is left out and what is refused is the same under every API.
2. Fields in ``extra_body`` and ``sampling_params`` are the body's own, however deep; what is no object there is a field
   on no list.
"""

from typing import Any

import pytest

from turnkeeper.core import TurnRequest
from turnkeeper.dialects import CHAT, MESSAGES, RESPONSES, ParseContext
from turnkeeper.errors import FieldNotAllowedError, RequestError
from turnkeeper.fields import Use, list_fields
from turnkeeper.jsontypes import JsonObject

CONTEXT = ParseContext(decode_token=str, forward_fields=("opened",))
USER: JsonObject = {"role": "user", "content": "hi"}
DIALECTS: dict[str, tuple[Any, JsonObject]] = {
    "chat": (CHAT, {"messages": [USER]}),
    "messages": (MESSAGES, {"messages": [USER]}),
    "responses": (RESPONSES, {"input": "hi"}),
}
EVERYWHERE = pytest.mark.parametrize("name", DIALECTS)


def parse(name: str, **fields: Any) -> TurnRequest:
    dialect, body = DIALECTS[name]
    return dialect.parse_request({**body, **fields}, CONTEXT).request


@EVERYWHERE
def test_fields_go_by_their_rows(name: str) -> None:
    found = parse(name, top_k=20, guided_regex="a", reasoning_effort="low", x_new=1, opened=2, no_stop_trim=True)
    assert found.sampling == {"top_k": 20, "guided_regex": "a"}
    assert found.forwarded == {"reasoning_effort": "low", "opened": 2}
    assert found.dropped_fields == ("x_new",)
    assert found.notes == ("overrode no_stop_trim: its value is fixed here",)


@EVERYWHERE
@pytest.mark.parametrize("field", [row.name for row in list_fields(Use.PLACEMENT) if "*" not in row.name])
def test_a_field_that_is_not_for_agents_is_refused_wherever_it_stands(name: str, field: str) -> None:
    for body in ({field: "x"}, {"extra_body": {field: "x"}}, {"sampling_params": {"extra_body": {field: "x"}}}):
        with pytest.raises(FieldNotAllowedError, match=f"^{field} ") as caught:
            parse(name, **body)
        assert caught.value.facts["param"] == field


@EVERYWHERE
@pytest.mark.parametrize("field", [row.name for row in list_fields(Use.TOKENS)])
def test_a_field_that_takes_tokens_over_is_refused_wherever_it_stands(name: str, field: str) -> None:
    for body in ({field: [7]}, {"extra_body": {field: [7]}}):
        with pytest.raises(RequestError, match=f"^{field} "):
            parse(name, **body)


NESTED: dict[str, JsonObject] = {
    "extra_body": {"extra_body": {"top_k": 5, "x_new": 1}},
    "sampling_params": {"sampling_params": {"top_k": 5, "x_new": 1}},
    "both": {"extra_body": {"top_k": 5}, "sampling_params": {"x_new": 1}},
    "one in the other": {"extra_body": {"sampling_params": {"top_k": 5}, "x_new": 1}},
    "in itself": {"extra_body": {"extra_body": {"extra_body": {"top_k": 5, "x_new": 1}}}},
    "over the body's own": {"top_k": 9, "extra_body": {"top_k": 5, "x_new": 1}},
}


@EVERYWHERE
@pytest.mark.parametrize("body", NESTED.values(), ids=NESTED.keys())
def test_nested_fields_are_the_bodys_own(name: str, body: JsonObject) -> None:
    found = parse(name, **body)
    assert (found.sampling, found.dropped_fields) == ({"top_k": 5}, ("x_new",))
    assert all(note.startswith("read the fields of ") for note in found.notes)
    assert found.notes


@EVERYWHERE
def test_template_arguments_may_be_nested(name: str) -> None:
    found = parse(name, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert found.chat_template_kwargs == {"enable_thinking": False}
    assert found.dropped_fields == ()


@EVERYWHERE
@pytest.mark.parametrize("value", ["x", 3, [1], True], ids=repr)
def test_a_nested_form_that_is_no_object_is_left_out(name: str, value: object) -> None:
    assert parse(name, extra_body=value).dropped_fields == ("extra_body",)
    assert parse(name, extra_body=None).dropped_fields == ()
