"""Tools in the prompt.

1. ``as_sent`` keeps each tool as the client sent it: its keys, in its order.
2. ``engine`` writes what SGLang's chat route hands to the template: four fields in one order, defaults filled in.
3. Every family takes both, and a comparison is made in the form in which the prompt was written.
4. A tool needs no description in any family: a template that cannot do without one is given an empty one.
"""

import json
from dataclasses import dataclass

import pytest

from rendering.standins import STABLE, find_template, standin, tokenizer
from rendering.talk import assistant, user
from turnkeeper.choices import RenderTools
from turnkeeper.core.tokens import join_ids
from turnkeeper.errors import TemplateError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import FAMILIES, Checkpoint, Renderer, build_renderer
from turnkeeper.rendering.templates import ChatTemplate

SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}


def build(family: str, form: RenderTools) -> Renderer:
    checkpoint = Checkpoint(tokenizer_json=b"", template=find_template(family))
    return build_renderer(
        checkpoint, family, format_time=lambda pattern: "2026-11-30", render_tools=form, tokenizer=tokenizer()
    )


def write(family: str, form: RenderTools, tools: list[JsonObject]) -> str:
    renderer = build(family, form)
    return renderer.tokenizer.decode(renderer.render([user("Hi")], tools, {}).ids)


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    sent: JsonObject
    as_sent: str
    engine: str


CASES = (
    Case(
        id="name first",
        sent={"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}},
        as_sent='{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}',
        engine='{"type": "function", "function": {"description": "Look.", "name": "look", "parameters": SCHEMA, '
        '"strict": false}}',
    ),
    Case(
        id="a name alone",
        sent={"type": "function", "function": {"name": "look"}},
        as_sent='{"type": "function", "function": {"name": "look"}}',
        engine='{"type": "function", "function": {"description": null, "name": "look", "parameters": null, '
        '"strict": false}}',
    ),
    Case(
        id="strict, and keys that SGLang does not know",
        sent={"function": {"strict": True, "x": 1, "name": "look", "parameters": {}}, "type": "function", "y": 2},
        as_sent='{"function": {"strict": true, "x": 1, "name": "look", "parameters": {}}, "type": "function", "y": 2}',
        engine='{"type": "function", "function": {"description": null, "name": "look", "parameters": {}, '
        '"strict": true}}',
    ),
    Case(
        id="the flat form, strict null",
        sent={"name": "look", "description": "Look.", "parameters": SCHEMA, "strict": None},
        as_sent='{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA, '
        '"strict": null}}',
        engine='{"type": "function", "function": {"description": "Look.", "name": "look", "parameters": SCHEMA, '
        '"strict": false}}',
    ),
)


@pytest.mark.parametrize("form", RenderTools)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_tool_is_spelled_in_the_form_that_was_chosen(case: Case, form: RenderTools) -> None:
    wanted = (case.as_sent if form is RenderTools.AS_SENT else case.engine).replace("SCHEMA", json.dumps(SCHEMA))
    assert f"\n{wanted}\n</tools>" in write("qwen3", form, [case.sent])


def test_as_sent_is_what_nobody_chose() -> None:
    renderer = standin("qwen3")
    assert '{"name": "look"}' in renderer.tokenizer.decode(
        renderer.render([user("Hi")], [{"type": "function", "function": {"name": "look"}}], {}).ids
    )


@pytest.mark.parametrize("family", STABLE)
@pytest.mark.parametrize("form", RenderTools)
def test_every_family_takes_both_forms_and_compares_in_the_one_it_wrote(family: str, form: RenderTools) -> None:
    renderer, tools = build(family, form), [CASES[0].sent]
    asked, reply = [user("Hi")], assistant("Hello.", reasoning="r")
    arguments = renderer.validate(asked, (), {})
    opened = renderer.text_renderer.render(asked, (), arguments, add_generation_prompt=True)
    said = renderer.text_renderer.render([*asked, reply], (), arguments, add_generation_prompt=False).removeprefix(
        opened
    )
    path = join_ids([renderer.render(asked, tools, {}).ids, renderer.tokenizer.encode(said)])
    assert renderer.compare([*asked, reply], tools, {}, path) == ()


@pytest.mark.parametrize("family", ["gptoss", "inkling"])
def test_a_format_that_writes_some_keys_only_reads_alike_under_both(family: str) -> None:
    texts = {write(family, form, [CASES[0].sent]) for form in RenderTools}
    assert len(texts) == 1


UNDESCRIBED: dict[str, JsonObject] = {
    "left out": {"type": "function", "function": {"name": "look", "parameters": SCHEMA}},
    "null": {"type": "function", "function": {"name": "look", "description": None, "parameters": SCHEMA}},
    "a name alone": {"type": "function", "function": {"name": "look"}},
    "in flat form": {"type": "function", "name": "look", "parameters": SCHEMA},
}


@pytest.mark.parametrize("form", RenderTools)
@pytest.mark.parametrize("family", [*FAMILIES])
@pytest.mark.parametrize("tool", UNDESCRIBED.values(), ids=UNDESCRIBED)
def test_a_tool_needs_no_description(tool: JsonObject, family: str, form: RenderTools) -> None:
    described: JsonObject = {
        "type": "function",
        "function": {"name": "see", "description": "See.", "parameters": SCHEMA},
    }
    text = write(family, form, [described, tool])
    assert "look" in text
    assert "See." in text


def test_a_template_that_takes_no_description_is_given_none() -> None:
    """What a template renders of a tool as it was sent stays as it is."""
    source = "{{ tools[0].function.keys() | list }}{{ messages[0].content }}"
    [left_out, null, *_] = UNDESCRIBED.values()
    assert render_text(source, left_out) == "['name', 'parameters']Hi"
    assert render_text(source, null) == "['name', 'description', 'parameters']Hi"


@pytest.mark.parametrize("tool", UNDESCRIBED.values(), ids=UNDESCRIBED)
def test_a_refusal_for_another_reason_is_told(tool: JsonObject) -> None:
    with pytest.raises(TemplateError, match="no tools here"):
        render_text("{{ raise_exception('no tools here') }}", tool)


def render_text(source: str, tool: JsonObject) -> str:
    return ChatTemplate(source, {}).render([user("Hi")], [tool], add_generation_prompt=True)
