"""What of a request's fields each wire takes.

1. A field goes out under the wire's own name; one that the wire does not have is left out and named, unless its value
   asks for nothing.
2. A grammar reaches every wire that can express it, whatever the client calls it; two at once are refused.
3. Fields that the operator forwards stand in the body itself, and never replace what turnkeeper decides.
4. The adapter is chosen in each wire's own form.
"""

import json
from typing import Any

import pytest

from engines.builders import make_request
from tablekit import checking_table
from turnkeeper.engines.sglang.chat import render_chat_body
from turnkeeper.engines.sglang.generate import render_generate_body
from turnkeeper.engines.vllm.generate import render_completions_body
from turnkeeper.engines.vllm.generate import render_generate_body as render_vllm_body
from turnkeeper.engines.wire_fields import find_dropped, select_fields
from turnkeeper.errors import EngineRefusedError
from turnkeeper.fields import FIELDS, Use, Wire, list_fields

SAMPLES: dict[str, Any] = {
    "allowed_token_ids": [3],
    "bad_words": ["x"],
    "custom_params": {"a": 1},
    "ignore_eos": True,
    "logit_bias": {"3": 1.0},
    "repetition_detection": {"min_count": 3},
    "stop": ["x"],
    "stop_regex": "x+",
    "stop_token_ids": [3],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "low",
}
ROWS = [row for use in (Use.SAMPLING, Use.FORMAT) for row in list_fields(use) if not row.is_grammar]


def test_a_field_goes_out_under_the_wires_name_or_is_named_as_left_out() -> None:
    with checking_table() as table:
        for name in [row.name for row in ROWS]:
            for wire in Wire:
                with table.case(wire, name):
                    row, value = FIELDS[name], SAMPLES.get(name, 3)
                    fields = select_fields(make_request(sampling={name: value}), wire)
                    sent = {**fields.sampling, **fields.format}
                    if wire in row.names:
                        assert (sent, fields.dropped_fields) == ({row.names[wire]: value}, ())
                    else:
                        assert (sent, fields.dropped_fields) == ({}, (name,))
                    assert fields.forwarded == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("tool_choice", "auto"), ("parallel_tool_calls", True), ("bad_words", [])],
    ids=str,
)
def test_a_value_that_asks_for_nothing_is_not_named(name: str, value: object) -> None:
    assert all(find_dropped(make_request(forwarded={name: value}), wire) == () for wire in Wire)


SCHEMA = {"type": "object"}
TAG_TEXT = '{"type":"structural_tag","structures":[],"triggers":[]}'
TAG = {"type": "structural_tag", "structures": [], "triggers": []}
FORMAT = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}
CHOICE = r"(yes|a\.b)"

GRAMMARS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "response_format schema": (
        {"response_format": FORMAT},
        {"response_format": FORMAT},
        {"json_schema": '{"type":"object"}'},
        {"structured_outputs": {"json": SCHEMA}},
    ),
    "response_format object": (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
        {"json_schema": '{"type": "object"}'},
        {"structured_outputs": {"json_object": True}},
    ),
    "json_schema as text": (
        {"json_schema": '{"type":"object"}'},
        {"response_format": FORMAT},
        {"json_schema": '{"type":"object"}'},
        {"structured_outputs": {"json": '{"type":"object"}'}},
    ),
    "guided_json": (
        {"guided_json": SCHEMA},
        {"response_format": FORMAT},
        {"json_schema": '{"type":"object"}'},
        {"structured_outputs": {"json": SCHEMA}},
    ),
    "regex": ({"regex": "a+"}, {"regex": "a+"}, {"regex": "a+"}, {"structured_outputs": {"regex": "a+"}}),
    "guided_regex": (
        {"guided_regex": "a+"}, {"regex": "a+"}, {"regex": "a+"}, {"structured_outputs": {"regex": "a+"}}
    ),
    "ebnf": ({"ebnf": "root ::= x"}, {"ebnf": "root ::= x"}, {"ebnf": "root ::= x"},
             {"structured_outputs": {"grammar": "root ::= x"}}),
    "guided_grammar": ({"guided_grammar": "root ::= x"}, {"ebnf": "root ::= x"}, {"ebnf": "root ::= x"},
                       {"structured_outputs": {"grammar": "root ::= x"}}),
    "guided_choice": ({"guided_choice": ["yes", "a.b"]}, {"regex": CHOICE}, {"regex": CHOICE},
                      {"structured_outputs": {"choice": ["yes", "a.b"]}}),
    "structured_outputs": ({"structured_outputs": {"regex": "a+", "whitespace_pattern": "x"}}, {"regex": "a+"},
                           {"regex": "a+"}, {"structured_outputs": {"regex": "a+", "whitespace_pattern": "x"}}),
    "structured_outputs object": ({"structured_outputs": {"json_object": True}},
                                  {"response_format": {"type": "json_object"}},
                                  {"json_schema": '{"type": "object"}'}, {"structured_outputs": {"json_object": True}}),
    "structural tag": ({"response_format": TAG}, {"response_format": TAG}, {"structural_tag": TAG_TEXT},
                       {"structured_outputs": {"structural_tag": TAG_TEXT}}),
    "structural_tag as text": ({"structural_tag": TAG_TEXT}, {"response_format": TAG},
                               {"structural_tag": TAG_TEXT},
                               {"structured_outputs": {"structural_tag": TAG_TEXT}}),
    "text": ({"response_format": {"type": "text"}}, {}, {}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "chat", "generate", "vllm"), GRAMMARS.values(), ids=GRAMMARS.keys())
def test_a_grammar_reaches_every_wire_in_its_own_words(
    asked: dict[str, Any], chat: dict[str, Any], generate: dict[str, Any], vllm: dict[str, Any]
) -> None:
    request = make_request(sampling=asked)
    found = [select_fields(request, wire) for wire in (Wire.CHAT, Wire.GENERATE, Wire.VLLM)]
    assert [fields.sampling for fields in found] == [chat, generate, vllm]
    assert [fields.dropped_fields for fields in found] == [()] * 3


def test_a_grammar_that_a_wire_cannot_express_is_named_as_left_out() -> None:
    asked = {"response_format": {"type": "grammar", "grammar": "x"}}
    assert select_fields(make_request(sampling=asked), Wire.CHAT).sampling == asked
    assert find_dropped(make_request(sampling=asked), Wire.GENERATE) == ("response_format",)
    assert find_dropped(make_request(sampling=asked), Wire.VLLM) == ("response_format",)
    assert find_dropped(make_request(sampling={"structured_outputs": {}}), Wire.CHAT) == ("structured_outputs",)


@pytest.mark.parametrize("wire", Wire)
def test_two_grammars_are_refused(wire: Wire) -> None:
    asked = {"regex": "a", "response_format": {"type": "json_object"}}
    with pytest.raises(EngineRefusedError, match="response_format and regex") as caught:
        select_fields(make_request(sampling=asked), wire)
    assert caught.value.http_status == 400


BODIES = {
    "chat": render_chat_body,
    "generate": lambda request: render_generate_body(request, is_stream=False),
    "vllm generate": render_vllm_body,
    "vllm completions": lambda request: render_completions_body(request, "base", 100),
}


@pytest.mark.parametrize("render", BODIES.values(), ids=BODIES.keys())
def test_a_forwarded_field_stands_in_the_body_and_replaces_nothing(render: Any) -> None:
    plain = json.loads(render(make_request()))
    hostile = dict.fromkeys(plain, "x")
    assert json.loads(render(make_request(forwarded={"x_new": [1], **hostile}))) == {**plain, "x_new": [1]}


@pytest.mark.parametrize(
    ("kind", "chosen"),
    [
        ("chat", {"lora_path": "mine"}),
        ("generate", {"lora_path": "mine"}),
        ("vllm generate", {"model": "mine"}),
        ("vllm completions", {"model": "mine"}),
    ],
)
def test_the_adapter_is_chosen_in_the_wires_own_form(kind: str, chosen: dict[str, Any]) -> None:
    render: Any = BODIES[kind]
    plain = json.loads(render(make_request()))
    assert json.loads(render(make_request(lora_name="mine"))) == {**plain, **chosen}
    assert json.loads(render(make_request(lora_name="mine", forwarded={"lora_path": "other"}))) == {**plain, **chosen}
