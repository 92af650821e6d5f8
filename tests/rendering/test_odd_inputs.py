"""What is odd, refused, or only rarely met.

1. Arguments that contradict the family, at start and in a request, are refused by name.
2. What a format cannot write is a 400 that says what to send instead; nothing is left out without a word.
3. Messages in odd forms are read as what they mean.
4. What a block format does not expect is still text.
5. However much of a close was sampled, all of it or nothing, the prompt that goes on closes the message once.
"""

from typing import Any

import pytest

from rendering.sampled import extend
from rendering.standins import find_template, standin, tokenizer, tokenizer_json
from rendering.talk import LOOK, assistant, call, system, tool, user
from turnkeeper.core.tokens import NO_TOKENS
from turnkeeper.errors import ConfigError, RequestError, TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import Checkpoint, ParentContext, ParsedReply, Renderer, build_renderer, parse_completion
from turnkeeper.rendering.checks import CheckOutcome, verify


def build(family: str, template: str, **options: Any) -> Renderer:
    checkpoint = Checkpoint(tokenizer_json=b"", template=template)
    return build_renderer(checkpoint, family, tokenizer=tokenizer(), **options)


def parse(family: str, text: str) -> ParsedReply:
    renderer = standin(family)
    prompt = renderer.render([user("Hi")], [], {}).ids
    return parse_completion(renderer.parser(prompt), renderer.tokenizer.encode(text))


def test_a_server_argument_that_contradicts_the_family_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="preserve_thinking=False contradicts"):
        build("qwen36", find_template("qwen36") or "", chat_template_kwargs={"preserve_thinking": False})


def test_a_server_argument_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="add_generation_prompt"):
        build("qwen36", find_template("qwen36") or "", chat_template_kwargs={"add_generation_prompt": True})


def test_a_request_that_contradicts_a_pinned_argument_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="reasoning_effort='low'"):
        standin("qwen38small").render([user("a")], [], {"reasoning_effort": "low"})


def test_a_request_may_repeat_a_pinned_argument() -> None:
    prompt = standin("qwen38small").render([user("a")], [], {"reasoning_effort": "xhigh"})
    assert prompt.chat_template_kwargs["reasoning_effort"] == "xhigh"


@pytest.mark.parametrize(
    ("given", "is_on"),
    [
        ({}, True),
        ({"thinking": False}, False),
        ({"enable_thinking": False}, False),
        ({"thinking_mode": "chat"}, False),
        ({"thinking_mode": "thinking"}, True),
    ],
)
def test_thinking_has_one_name_in_the_effective_arguments(given: JsonObject, is_on: bool) -> None:
    prompt = standin("deepseekv4").render([user("a")], [], given)
    assert prompt.chat_template_kwargs == {"drop_thinking": False, "thinking": is_on}
    end = "<think>" if is_on else "</think>"
    assert standin("deepseekv4").tokenizer.decode(prompt.ids).endswith(f"<｜Assistant｜>{end}")


@pytest.mark.parametrize("family", ["deepseekv32", "deepseekv4"])
def test_what_the_encoders_do_not_write_is_refused(family: str) -> None:
    with pytest.raises(TemplateError, match="reasoning_effort='max'"):
        standin(family).render([user("a")], [], {"reasoning_effort": "max"})


def test_nothing_opens_a_reply_behind_a_system_message_of_v32() -> None:
    with pytest.raises(TemplateError, match="behind a system message"):
        standin("deepseekv32").render([system("s")], [], {})


def test_v4_writes_results_in_the_order_of_their_calls() -> None:
    history = [user("a"), assistant("", call("look", {}, 1), call("look", {}, 2), reasoning="r")]
    renderer = standin("deepseekv4")
    swapped = extend(renderer, history, [tool("second", 2), tool("first", 1)], [])
    assert swapped == extend(renderer, history, [tool("first", 1), tool("second", 2)], [])


@pytest.mark.parametrize(("effort", "line"), [("low", "0.2"), (0.5, "0.5"), ("none", "0"), (None, "0.9")])
def test_inkling_writes_its_effort(effort: Any, line: str) -> None:
    prompt = standin("inkling").render([user("a")], [], {"reasoning_effort": effort})
    assert f"Thinking effort level: {line}<|end_message|>" in standin("inkling").tokenizer.decode(prompt.ids)


@pytest.mark.parametrize("effort", ["huge", 2.0, True])
def test_an_effort_that_inkling_has_not_is_refused(effort: Any) -> None:
    with pytest.raises(TemplateError, match="Inkling has no reasoning_effort"):
        standin("inkling").render([user("a")], [], {"reasoning_effort": effort})


@pytest.mark.parametrize("family", ["qwen35", "minimax_m25", "deepseekv4", "inkling"])
def test_arguments_that_a_format_cannot_write_are_refused(family: str) -> None:
    history = [user("a"), assistant("", call("look", "not JSON")), tool("b")]
    with pytest.raises(TemplateError, match="not a JSON object"):
        standin(family).render(history, [], {})


@pytest.mark.parametrize("family", ["qwen3", "kimi25", "gptoss"])
def test_arguments_that_are_no_object_stand_as_they_came_where_they_can(family: str) -> None:
    history = [user("a"), assistant("", call("look", "not JSON")), tool("b")]
    renderer = standin(family)
    assert "not JSON" in renderer.tokenizer.decode(renderer.render(history, [], {}).ids)


@pytest.mark.parametrize(
    "content",
    ["ab", ["a", "b"], [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]],
    ids=["a string", "strings", "parts"],
)
def test_content_in_any_form_is_its_text(content: Any) -> None:
    renderer = standin("qwen3")
    message: Message = {"role": "user", "content": content}
    assert renderer.render([message], [], {}).ids.tolist() == renderer.render([user("ab")], [], {}).ids.tolist()


def test_reasoning_in_the_content_is_reasoning() -> None:
    renderer = standin("qwen3")
    inline = [user("a"), assistant("<think>\nwhy\n</think>\n\nb"), user("c")]
    apart = [user("a"), assistant("b", reasoning="why"), user("c")]
    assert renderer.render(inline, [], {}).ids.tolist() == renderer.render(apart, [], {}).ids.tolist()


def test_reasoning_has_two_names() -> None:
    renderer = standin("qwen3")
    named = {"role": "assistant", "content": "b", "reasoning": "why"}
    other = assistant("b", reasoning="why")
    prompts = [renderer.render([user("a"), one, user("c")], [], {}).ids.tolist() for one in (named, other)]
    assert prompts[0] == prompts[1]


def test_empty_and_missing_arguments_are_the_empty_object() -> None:
    renderer = standin("qwen3")
    prompts = [
        renderer.render([user("a"), assistant("", call("look", spelled)), tool("b")], [], {}).ids.tolist()
        for spelled in ("", "{}")
    ]
    assert prompts[0] == prompts[1]


def test_a_conversation_may_begin_with_an_assistant() -> None:
    """The template is lent a question for the head, which is taken back."""
    renderer = standin("qwen35")
    text = renderer.tokenizer.decode(renderer.render([assistant("b", reasoning="r"), user("c")], [LOOK], {}).ids)
    assert "turnkeeper" not in text
    assert text.endswith(
        "<|im_start|>assistant\n<think>\nr\n</think>\n\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_a_completion_without_any_token_is_closed() -> None:
    renderer = standin("qwen3")
    prompt = renderer.render([user("a")], [], {}).ids
    parent = ParentContext(messages=[user("a"), assistant("")], completion_ids=NO_TOKENS, prompt_ids=prompt)
    text = renderer.tokenizer.decode(renderer.extend(parent, [user("b")], [], {}).ids)
    assert text.startswith("<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize(
    ("sampled", "appended", "trim", "first"),
    [
        ("<|user|>", user("b"), 0, "b"),
        ("<|observation|>", user("b"), 1, "<|user|>"),
        ("<|observation|>", tool("t"), 0, "<tool_response>"),
        ("<|user|>", tool("t"), 1, "<|observation|>"),
        ("<|endoftext|>", user("b"), 1, "<|user|>"),
        ("", user("b"), 0, "<|user|>"),
    ],
    ids=["equal", "replaced", "equal result", "replaced by a result", "end of text", "no stop token"],
)
def test_a_stop_token_that_opens_the_next_message_is_kept_or_trimmed(
    sampled: str, appended: Message, trim: int, first: str
) -> None:
    renderer = standin("glm47")
    message = assistant("x", call("look", {}))
    parent = ParentContext(
        messages=[user("a"), message], completion_ids=renderer.tokenizer.encode(f"x</tool_call>{sampled}")
    )
    prompt = renderer.extend(parent, [appended], [], {})
    assert prompt.trim == trim
    assert renderer.tokenizer.decode(prompt.ids).startswith(first)


@pytest.mark.parametrize("family", ["qwen3", "qwennext", "qwen35", "qwen36", "nemotron3", "minimax_m25", "default"])
@pytest.mark.parametrize("sampled", ["all", "stop token", "nothing"])
def test_a_message_is_closed_once_however_much_of_the_close_was_sampled(family: str, sampled: str) -> None:
    renderer = standin(family)
    close = "[e~[\n" if family == "minimax_m25" else "<|im_end|>\n"
    said = "</think>\n\nYes" + {"all": close, "stop token": close.rstrip(), "nothing": ""}[sampled]
    ids = renderer.tokenizer.encode(said)
    parent = ParentContext(messages=[user("a"), assistant("Yes")], completion_ids=ids)
    prompt = renderer.extend(parent, [user("b")], [], {})
    text = renderer.tokenizer.decode(ids) + renderer.tokenizer.decode(prompt.ids)
    head, _, rest = text.partition(close)
    assert (prompt.trim, head.endswith("Yes")) == (0, True)
    assert not rest.startswith("\n")
    assert close.rstrip() not in rest.partition("b")[0]


def test_text_that_only_looks_like_a_close_closes_nothing() -> None:
    renderer = standin("qwen3")
    for said in ("<|im_end|>\n\n", "<|im_end|> and on\n", "\n"):
        ids = renderer.tokenizer.encode(said)
        parent = ParentContext(messages=[user("a"), assistant("x")], completion_ids=ids)
        prompt = renderer.extend(parent, [user("b")], [], {})
        assert renderer.tokenizer.decode(prompt.ids).startswith("<|im_end|>\n<|im_start|>user")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Hello", "Hello"),
        ("<|channel|>final<|message|>Hi<|end|>stray", "Histray"),
        ("<|channel|>commentary to=functions.look<|message|>no JSON<|call|>", "no JSON"),
        ("<|channel|>final<|message|>a<|message|>b<|return|>", "a<|message|>b"),
    ],
    ids=["no header at all", "text behind a block", "a malformed call", "a marker inside a body"],
)
def test_what_harmony_does_not_expect_is_text(text: str, content: str) -> None:
    assert parse("gptoss", text).content == content


def test_a_malformed_call_of_inkling_is_text() -> None:
    reply = parse("inkling", 'look<|content_invoke_tool_json|>{"name":"look"}<|end_message|>')
    assert (reply.content, reply.tool_calls) == ('{"name":"look"}', ())


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("deepseekv32", '<｜DSML｜parameter name="a" string="false">no JSON</｜DSML｜parameter>'),
        ("deepseekv32", '<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>' * 2),
    ],
    ids=["a value that is no JSON", "a key that comes twice"],
)
def test_dsml_that_is_not_well_formed_stays_text(family: str, text: str) -> None:
    body = (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="look">\n{text}\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    )
    reply = parse(family, f"</think>{body}")
    assert (reply.content, reply.tool_calls) == (body, ())


def test_a_tag_that_comes_twice_stays_text() -> None:
    pair = "<arg_key>at</arg_key><arg_value>1</arg_value>"
    assert parse("glm47", f"</think><tool_call>look{pair}{pair}</tool_call>").tool_calls == ()


def test_a_template_that_is_no_jinja_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="not valid Jinja"):
        build("default", "{% for %}")


def test_a_template_that_asks_for_the_date_says_that_there_is_none() -> None:
    renderer = build("qwen3", "{{ strftime_now('%Y') }}")
    with pytest.raises(TemplateError, match="asks for the date"):
        renderer.render([user("a")], [], {})


def test_the_generation_tag_is_transparent_and_lists_may_grow() -> None:
    template = (
        "{% set seen = [] %}{% for m in messages %}{% set _ = seen.append(m.content) %}{% endfor %}"
        "{% generation %}{{ seen | join('<|im_end|>') }}<|im_end|>{% endgeneration %}"
    )
    renderer = build("default", template)
    assert renderer.tokenizer.decode(renderer.render([user("a"), user("b")], [], {}).ids) == "a<|im_end|>b<|im_end|>"


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    renderer = build("qwen3", "{{ messages.__class__.__mro__ }}")
    with pytest.raises(TemplateError, match="unsafe"):
        renderer.render([user("a")], [], {})


def test_another_models_opening_is_found_out() -> None:
    """The stand-in has every family's markers, so that only the template can tell."""
    report = verify(Checkpoint(tokenizer_json=tokenizer_json(), template=find_template("glm47")), "nemotron3")
    outcomes = {finding.case: finding for finding in report.results}
    assert outcomes["the reply's opening"].outcome is CheckOutcome.DIFFERS
    assert any("--tito-model glm47" in finding.fixes for finding in report.results)
    assert report.to_json()["is_sound"] is False


def test_a_template_that_refuses_everything_fails_by_name() -> None:
    template = "{{ raise_exception('never') }}"
    report = verify(Checkpoint(tokenizer_json=tokenizer_json(), template=template), "qwen3")
    assert {finding.outcome for finding in report.results} == {CheckOutcome.FAILS}
    assert any("never" in note for note in report.notes)
