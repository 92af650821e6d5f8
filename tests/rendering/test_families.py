"""Every family on its real chat template, where a registry carries it.

1. What is appended to a sampled path gives exactly the ids of the whole conversation, for any conversation.
2. Within one tool cycle an own rule writes what the checkpoint's template writes; past it, thinking is kept.
3. A first prompt holds exactly the BOS that the format has.
4. Every role is appended, in every family.
5. A path that was cut anywhere is kept id for id, and closed.
"""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendering.sampled import extend, parent_ids
from rendering.standins import OWN_RULE, STABLE, WITHOUT_TEMPLATE, find_template, standin
from rendering.strategies import conversations
from rendering.talk import LOOK, assistant, call, system, tool, user
from turnkeeper.core.tokens import TokenIds
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import FAMILIES, ParentContext, Renderer
from turnkeeper.rendering.templates import ChatTemplate

CYCLE: list[Message] = [
    system("Be brief."),
    user("Hi"),
    assistant("", call("look", {"at": 1, "to": "x", "if": True}), reasoning="first"),
    tool("seven"),
    assistant("So", call("look", {"at": None}, 1), call("look", {"at": [1.5, "z"]}, 2), reasoning="second"),
    tool("eight", 1),
    tool("nine", 2),
    assistant("Done.", reasoning="third"),
]


def check_every_turn(renderer: Renderer, messages: list[Message], tools: list[JsonObject]) -> None:
    """Each turn's path and prompt, by difference, are the ids of the whole conversation up to there."""
    roles = [message["role"] for message in messages]
    turns = [index for index, role in enumerate(roles) if role == "assistant"]
    for turn, stop in pairwise([*turns, len(messages)]):
        whole = renderer.render(messages[:stop], tools, {}).ids.tolist()
        assert extend(renderer, messages[: turn + 1], messages[turn + 1 : stop], tools) == whole


@pytest.mark.parametrize("family", STABLE)
@settings(max_examples=12, deadline=None)
@given(messages=conversations(), has_tools=st.booleans())
def test_an_extension_gives_the_ids_of_the_whole(family: str, messages: list[Message], has_tools: bool) -> None:
    check_every_turn(standin(family), messages, [LOOK] if has_tools else [])


@settings(max_examples=25, deadline=None)
@given(messages=conversations())
def test_so_it_does_on_the_real_tokenizer_of_qwen3(qwen3: Renderer, messages: list[Message]) -> None:
    check_every_turn(qwen3, messages, [LOOK])


IN_ONE_CYCLE = [
    (family, stop) for family in OWN_RULE for stop in (3, 4, 7) if family != "gptoss" and (family, stop) != ("qwen3", 3)
]
"""Own rules, and where the conversation stops. Harmony is followed where gpt-oss's template strays from it, and Qwen3
writes the last message of a conversation otherwise than the same message in its middle."""


@pytest.mark.parametrize(("family", "stop"), IN_ONE_CYCLE)
def test_an_own_rule_writes_what_the_template_writes_in_one_cycle(family: str, stop: int) -> None:
    renderer = standin(family)
    template = ChatTemplate(find_template(family) or "", {})
    messages, add_generation_prompt = CYCLE[:stop], CYCLE[stop - 1]["role"] != "assistant"
    arguments = renderer.validate(messages, [LOOK], {})
    written = renderer.text_renderer.render(messages, [LOOK], arguments, add_generation_prompt=add_generation_prompt)
    assert written == template.render(messages, [LOOK], arguments, add_generation_prompt=add_generation_prompt)


@pytest.mark.parametrize("family", STABLE)
def test_thinking_is_kept_past_a_user_message(family: str) -> None:
    renderer = standin(family)
    text = renderer.tokenizer.decode(renderer.render([*CYCLE, user("More.")], [LOOK], {}).ids)
    assert all(thought in text for thought in ("first", "second", "third"))


BOS = {
    "deepseekv32": "<｜begin▁of▁sentence｜>",
    "deepseekv4": "<｜begin▁of▁sentence｜>",
    "glm47": "[gMASK]",
    "glm53": "[gMASK]",
}


@pytest.mark.parametrize("family", STABLE)
def test_a_first_prompt_has_the_formats_bos_once(family: str) -> None:
    renderer = standin(family)
    ids = renderer.render([user("Hi")], [], {}).ids.tolist()
    wanted = renderer.tokenizer.find_id(BOS[family]) if family in BOS else None
    known = {renderer.tokenizer.find_id(marker) for marker in {*BOS.values(), "<s>"}}
    assert [token for token in ids if token in known] == ([] if wanted is None else [wanted])


TAKEN = {"user": user("mark"), "system": system("mark"), "developer": {"role": "developer", "content": "mark"}}


@pytest.mark.parametrize("family", STABLE)
@pytest.mark.parametrize("role", TAKEN)
def test_each_role_is_appended(family: str, role: str) -> None:
    renderer = standin(family)
    message = TAKEN[role]
    ids = parent_ids(renderer, CYCLE, [LOOK], message)
    parent = ParentContext(messages=CYCLE, completion_ids=ids)
    for appended in ([message], [message, user("go")]):
        assert "mark" in renderer.tokenizer.decode(renderer.extend(parent, appended, [LOOK], {}).ids)


@pytest.mark.parametrize("family", STABLE)
def test_a_given_assistant_is_appended_in_place(family: str) -> None:
    appended = [user("a"), assistant("given", reasoning="why"), user("b")]
    renderer = standin(family)
    whole = renderer.render([*CYCLE, *appended], [LOOK], {}).ids.tolist()
    assert extend(renderer, CYCLE, appended, [LOOK]) == whole


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["text", "thinking", "call"])
def test_a_path_that_was_cut_is_kept_and_closed(family: str, kind: str) -> None:
    renderer = standin(family)
    history = CYCLE[:2]
    prompt = renderer.render(history, [LOOK], {}).ids
    whole = cut(renderer, history, kind)
    parent = ParentContext(messages=[*history, assistant("x")], completion_ids=whole, prompt_ids=prompt)
    extension = renderer.extend(parent, [user("more")], [LOOK], {})
    assert extension.trim == 0
    added = renderer.tokenizer.decode(extension.ids)
    question = renderer.text_renderer.render_suffix(
        parent.messages, [user("more")], [LOOK], extension.chat_template_kwargs
    )
    end = added.removesuffix(question)
    assert end != added
    close = renderer.family.turn_end
    assert end.endswith("<|im_end|>\n" if close is None else close)
    if kind == "thinking" and renderer.family.thinking is not None:
        assert end.count(renderer.family.thinking.closing) == 1
    elif kind == "text":
        assert "</think>" not in end


def cut(renderer: Renderer, history: list[Message], kind: str) -> TokenIds:
    """A completion that ends inside text, thinking or a call."""
    message = {
        "text": assistant("the answer is not finish", reasoning="why"),
        "thinking": assistant("", reasoning="the thought is not finish"),
        "call": assistant("", call("look", {"at": "the argument is not finish"}), reasoning="why"),
    }[kind]
    arguments = renderer.validate(history, [LOOK], {})
    opened = renderer.text_renderer.render(history, [LOOK], arguments, add_generation_prompt=True)
    text = renderer.text_renderer.render([*history, message], [LOOK], arguments, add_generation_prompt=False)
    completion = text.removeprefix(opened)
    assert completion != text
    return renderer.tokenizer.encode(completion[: completion.index("not finish") + 3])


def test_the_encoders_need_no_template() -> None:
    assert all(FAMILIES[name].message_encoder is not None for name in WITHOUT_TEMPLATE)


@pytest.mark.parametrize("family", STABLE)
@pytest.mark.parametrize("role", ["user", "tool"])
def test_control_tokens_in_texts_are_control_tokens_and_no_refusal(family: str, role: str) -> None:
    """One policy for all: the markers in a text are what the model's tokenizer makes of them."""
    renderer = standin(family)
    close, reply = renderer.turn_end or "<|user|>", renderer.family.reply_marker or ""
    text = f"before{close}{reply}<think>after"
    history = [user("Hi"), assistant("", call("look", {"at": 1}), reasoning="first")]
    appended = [tool(text)] if role == "tool" else [tool("7"), user(text)]
    ids = extend(renderer, history, appended, [LOOK])
    assert ids == renderer.render([*history, *appended], [LOOK], {}).ids.tolist()
    marker = renderer.tokenizer.find_id(close.rstrip("\n"))
    plain = extend(renderer, history, [tool("t")] if role == "tool" else [tool("7"), user("t")], [LOOK])
    assert ids.count(marker) == plain.count(marker) + 1
