"""System and developer messages, wherever they stand, in every family on its real chat template.

1. What a format writes where it stands stays there; what it refuses or drops is joined at the head, or becomes a user
   message in reminder tags behind it.
2. Every text of a prompt stands in it once, in the order of the messages, however roles are mixed.
3. A prompt begins with the path before it, whatever is appended, and no later message moves an earlier one.
4. The messages for the engine are those that were written, and a path compares equal with them.
5. What fits nowhere is a 400 by whose first words Claude Code knows what to do; nothing is left out without a 400.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rendering.sampled import extend, parent_ids
from rendering.standins import STABLE, find_template, read_template, standin, tokenizer
from rendering.talk import LOOK, assistant, call, system, tool, user
from rendering.templates.test_any_template import build, sources
from tablekit import checking_table
from turnkeeper.errors import RequestError, RoleNotAppendableError, TemplateError
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import FAMILIES, Checkpoint, MismatchType, ParentContext, Renderer, build_renderer
from turnkeeper.rendering.message import get_role, get_text

REFUSED = "role 'system' is not supported after the first message"


def developer(text: str) -> Message:
    return {"role": "developer", "content": text}


def reminder(text: str) -> Message:
    return user(f"<system-reminder>\n{text}\n</system-reminder>")


CALLED = assistant("", call("look", {"at": 1}), reasoning="r")
HEAD_ONLY = ("qwen35", "qwen36", "qwen38small", "qwen4exp", "minimax_m25", "minimax_m27")
IN_PLACE = ("qwen3", "qwennext", "glm47", "glm53", "nemotron3", "kimi25", "kimi26", "inkling", "default")


@dataclass(frozen=True, kw_only=True)
class Case:
    id: str
    sent: list[Message]
    in_place: list[Message]
    """As the families write it that take system messages anywhere."""
    at_head: list[Message]
    """As those do that take one at the beginning."""


CASES = (
    Case(
        id="one system message leads",
        sent=[system("a"), user("u")],
        in_place=[system("a"), user("u")],
        at_head=[system("a"), user("u")],
    ),
    Case(
        id="two system messages lead",
        sent=[system("a"), system("b"), user("u")],
        in_place=[system("a"), system("b"), user("u")],
        at_head=[system("a\n\nb"), user("u")],
    ),
    Case(
        id="system and developer lead",
        sent=[system("a"), developer("b"), user("u")],
        in_place=[system("a"), system("b"), user("u")],
        at_head=[system("a\n\nb"), user("u")],
    ),
    Case(
        id="a developer leads",
        sent=[developer("a"), user("u")],
        in_place=[system("a"), user("u")],
        at_head=[system("a"), user("u")],
    ),
    Case(
        id="three lead, an empty one among them",
        sent=[developer("a"), system(""), developer("c"), user("u")],
        in_place=[system("a"), system(""), system("c"), user("u")],
        at_head=[system("a\n\nc"), user("u")],
    ),
    Case(
        id="text parts lead",
        sent=[{"role": "system", "content": [{"type": "text", "text": "a"}]}, system("b"), user("u")],
        in_place=[{"role": "system", "content": [{"type": "text", "text": "a"}]}, system("b"), user("u")],
        at_head=[system("a\n\nb"), user("u")],
    ),
    Case(
        id="a system message behind a user message",
        sent=[user("u"), system("a")],
        in_place=[user("u"), system("a")],
        at_head=[user("u"), reminder("a")],
    ),
    Case(
        id="a system message between user messages",
        sent=[system("a"), user("u"), system("b"), user("v")],
        in_place=[system("a"), user("u"), system("b"), user("v")],
        at_head=[system("a"), user("u"), reminder("b"), user("v")],
    ),
    Case(
        id="a system message behind a tool result",
        sent=[user("u"), CALLED, tool("t"), system("a")],
        in_place=[user("u"), CALLED, tool("t"), system("a")],
        at_head=[user("u"), CALLED, tool("t"), reminder("a")],
    ),
    Case(
        id="a system message between tool results",
        sent=[user("u"), CALLED, tool("t"), system("a"), tool("w")],
        in_place=[user("u"), CALLED, tool("t"), system("a"), tool("w")],
        at_head=[user("u"), CALLED, tool("t"), reminder("a"), tool("w")],
    ),
    Case(
        id="two developers behind an answer",
        sent=[user("u"), assistant("x"), developer("a"), developer("b"), user("v")],
        in_place=[user("u"), assistant("x"), system("a"), system("b"), user("v")],
        at_head=[user("u"), assistant("x"), reminder("a"), reminder("b"), user("v")],
    ),
    Case(
        id="a system message behind an answer that leads",
        sent=[assistant("x"), system("a"), user("v")],
        in_place=[assistant("x"), system("a"), user("v")],
        at_head=[assistant("x"), reminder("a"), user("v")],
    ),
    Case(id="a system message alone", sent=[system("a")], in_place=[system("a")], at_head=[system("a")]),
)


def test_each_message_has_its_place() -> None:
    with checking_table() as table:
        for case in CASES:
            for family in [*IN_PLACE, *HEAD_ONLY]:
                with table.case(family, case.id):
                    sent = [*case.sent]
                    assert standin(family).place(case.sent) == (case.in_place if family in IN_PLACE else case.at_head)
                    assert case.sent == sent


@pytest.mark.parametrize(
    ("family", "sent", "placed"),
    [
        ("gptoss", [developer("a"), developer("b"), user("u")], [system("a\n\nb"), user("u")]),
        ("gptoss", [user("u"), developer("a"), system("b")], [user("u"), system("a"), system("b")]),
        ("deepseekv4", [developer("a"), system("b"), user("u")], [system("a"), system("b"), user("u")]),
        ("deepseekv4", [user("u"), system("a"), developer("b")], [user("u"), reminder("a"), developer("b")]),
        ("deepseekv32", [user("u"), system("a"), developer("b")], [user("u"), reminder("a"), developer("b")]),
    ],
)
def test_formats_of_their_own_have_places_of_their_own(family: str, sent: list[Message], placed: list[Message]) -> None:
    assert standin(family).place(sent) == placed


def test_every_family_is_in_one_of_the_tables() -> None:
    assert {*IN_PLACE, *HEAD_ONLY, "gptoss", "deepseekv32", "deepseekv4"} == FAMILIES.keys()


FOUND = {
    "trl/qwen3_5_think": "qwen36",
    "trl/qwen3_6": "qwen36",
    "trl/qwen3_8": "qwen36",
    "llama/Qwen3.5-4B": "qwen36",
    "llama/MiniMax-M2": "minimax_m25",
    "llama/MiniMax-M1": "minimax_m25",
    "trl/qwen3_vl": "minimax_m25",
    "llama/NVIDIA-Nemotron-Nano-v2": "minimax_m25",
    "trl/qwen3": "qwen3",
    "llama/GLM-4.7-Flash": "glm47",
    "llama/Kimi-K3": "qwen3",
}
"""Templates under ``default``, and a declared family that places messages as they must be placed there."""


def test_the_family_default_finds_the_places_of_a_template() -> None:
    with checking_table() as table:
        for case in CASES:
            for template in FOUND:
                with table.case(template, case.id):
                    renderer = find_default(template)
                    assert renderer.place(case.sent) == standin(FOUND[template]).place(case.sent)


@cache
def find_default(template: str) -> Renderer:
    renderer = build(sources()[template])
    assert renderer is not None
    return renderer


@pytest.mark.parametrize(
    ("template", "sent", "placed"),
    [
        ("trl/gptoss", [developer("a"), developer("b"), user("u")], [developer("a\n\nb"), user("u")]),
        ("trl/gptoss", [user("u"), developer("a")], [user("u"), reminder("a")]),
        ("llama/MiniMax-M3", [system("a"), developer("b"), user("u")], [system("a\n\nb"), user("u")]),
        ("trl/llama3", [user("u"), developer("a")], [user("u"), developer("a")]),
        ("llama/deepseek-ai-DeepSeek-V3.1", [system("a"), system("b")], [system("a"), system("b")]),
        ("llama/deepseek-ai-DeepSeek-V3.1", [user("u"), system("b")], [user("u"), reminder("b")]),
    ],
    ids=["gpt-oss joins", "gpt-oss drops", "MiniMax-M3", "any role", "two lead", "one moves to the front"],
)
def test_so_it_does_where_no_declared_family_places_alike(
    template: str, sent: list[Message], placed: list[Message]
) -> None:
    assert find_default(template).place(sent) == placed


LEADS = st.lists(st.sampled_from(["system", "developer"]), max_size=3)
BLOCKS = st.lists(st.sampled_from(["system", "developer", "user"]), max_size=4)


@st.composite
def talks(draw: st.DrawFn) -> list[list[Message]]:
    """Turns: what each request appends, a numbered text in every message; then the reply, the last turn without one."""
    numbers = iter(range(1000))

    def say(role: str) -> Message:
        return {"role": role, "content": f"<text-{next(numbers):03}>"}

    turns: list[list[Message]] = []
    has_called = False
    for _ in range(draw(st.integers(1, 3))):
        roles = draw(BLOCKS) if turns else [*draw(LEADS), "user", *draw(BLOCKS)]
        appended = [say(role) for role in roles]
        if has_called:
            appended.insert(0, tool(f"<text-{next(numbers):03}>"))
        elif not appended:
            appended = [say("user")]
        has_called = draw(st.booleans())
        calls = [call("look", {"at": 1})] if has_called else []
        turns.append([*appended, assistant(f"<text-{next(numbers):03}>", *calls, reasoning="r")])
    return turns


def list_texts(messages: Sequence[Message]) -> Iterator[str]:
    return (get_text(message) for message in messages)


@pytest.mark.parametrize("family", STABLE)
@settings(max_examples=25, deadline=None)
@given(turns=talks(), tools=st.sampled_from([(), (LOOK,)]))
def test_every_text_stands_once_and_in_order_and_prompts_extend_paths(
    family: str, turns: list[list[Message]], tools: Sequence[JsonObject]
) -> None:
    renderer = standin(family)
    path: list[int] = []
    history: list[Message] = []
    for turn in turns:
        appended, reply = turn[:-1], turn[-1]
        whole = renderer.render([*history, *appended], tools, {}).ids
        check_texts(renderer.tokenizer.decode(whole), [*history, *appended])
        joined = extend(renderer, history, appended, tools) if history else whole.tolist()
        assert joined == whole.tolist()
        kept = max(0, len(path) - renderer.max_trim)
        assert joined[:kept] == path[:kept]
        history += [*appended, reply]
        path = parent_ids(renderer, history, tools, user("?")).tolist()


def check_texts(text: str, messages: Sequence[Message]) -> None:
    places = [text.find(each) for each in list_texts(messages)]
    assert all(text.count(each) == 1 for each in list_texts(messages)), text
    assert places == sorted(places), text


@pytest.mark.parametrize("family", STABLE)
@settings(max_examples=15, deadline=None)
@given(turns=talks())
def test_no_later_message_moves_an_earlier_one(family: str, turns: list[list[Message]]) -> None:
    """What is appended is placed alone as it is placed in the whole conversation."""
    renderer = standin(family)
    messages = [message for turn in turns for message in turn]
    stops = [index + 1 for index, message in enumerate(messages) if get_role(message) == "assistant"]
    whole = renderer.place(messages)
    for stop in stops:
        before = renderer.place(messages[:stop])
        assert whole[: len(before)] == before


@pytest.mark.parametrize("family", STABLE)
@settings(max_examples=15, deadline=None)
@given(turns=talks())
def test_a_path_says_what_its_messages_say(family: str, turns: list[list[Message]]) -> None:
    renderer = standin(family)
    messages = [message for turn in turns for message in turn]
    ids = parent_ids(renderer, messages, [LOOK], user("?"))
    types = {mismatch.type for mismatch in renderer.compare(messages, [LOOK], {}, ids)}
    assert types <= {MismatchType.ASSISTANT_TEXT}


@pytest.mark.parametrize("sent", [[user("u"), system("a")], [user("u"), system("a"), user("v")]])
def test_what_fits_nowhere_is_refused_in_the_words_that_claude_code_knows(sent: list[Message]) -> None:
    """Mistral's template takes no system message behind the first, and no two user messages in a row."""
    renderer = find_default("llama/mistralai-Mistral-Nemo-Instruct-2407")
    with pytest.raises(RoleNotAppendableError) as caught:
        renderer.render(sent, [], {})
    assert str(caught.value).startswith(REFUSED)
    assert caught.value.status == 400


def test_so_is_what_cannot_be_appended() -> None:
    renderer = find_default("llama/mistralai-Mistral-Nemo-Instruct-2407")
    parent = ParentContext(messages=[user("u"), assistant("x")], completion_ids=renderer.tokenizer.encode("x</s>"))
    with pytest.raises(RoleNotAppendableError) as caught:
        renderer.extend(parent, [system("a"), user("v")], [], {})
    assert str(caught.value).startswith(REFUSED)
    assert "<system-reminder>" in renderer.tokenizer.decode(renderer.extend(parent, [system("a")], [], {}).ids)


def test_a_refusal_that_no_system_message_caused_does_not_name_it() -> None:
    renderer = find_default("llama/mistralai-Mistral-Nemo-Instruct-2407")
    with pytest.raises(TemplateError, match="alternate"):
        renderer.render([user("u"), user("v"), system("a")], [], {})


DROPPING = """{% for m in messages %}{% if m.role != 'user' or loop.index < 4 %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def build_template(template: str, family: str = "default") -> Renderer:
    return build_renderer(Checkpoint(tokenizer_json=b"", template=template), family, tokenizer=tokenizer())


def test_a_message_of_a_first_prompt_that_the_template_drops_is_refused_by_its_index() -> None:
    renderer = build_template(DROPPING)
    with pytest.raises(TemplateError, match=r"leaves out what messages\[3\] \(user\) says"):
        renderer.render([user("one"), user("two"), user("three"), user("four")], [], {})


@pytest.mark.parametrize(
    ("family", "template"), [("qwen3", ("trl", "qwen3_vl")), ("nemotron3", ("llama", "MiniMax-M2"))]
)
def test_a_template_that_drops_what_its_family_promises_is_found_out(family: str, template: tuple[str, str]) -> None:
    """The family says that two system messages may lead; this template writes one."""
    renderer = build_template(read_template(*template), family)
    with pytest.raises(TemplateError, match=r"leaves out what messages\[1\] \(system\) says"):
        renderer.render([system("a-text"), system("b-text"), user("u")], [], {})


def test_calls_that_the_template_drops_are_refused() -> None:
    renderer = find_default("trl/llama3")
    with pytest.raises(TemplateError, match=r"messages\[1\] \(assistant\)"):
        renderer.render([user("u"), assistant("", call("find_it", {})), tool("t"), user("v")], [], {})


@pytest.mark.parametrize(
    "text",
    ["", "  ", " a \n", "two\nlines", 'a "quoted" \\ text', "中", "</think>\nb", "<think>c</think>"],
)
@pytest.mark.parametrize("family", STABLE)
def test_no_text_is_taken_for_lost(family: str, text: str) -> None:
    """Formats strip texts, quote them and split them at thinking tags; none of that loses one."""
    sent = [system(text), user(text), assistant(text, reasoning="r"), user(text), CALLED, tool(text), system(text)]
    standin(family).render([*sent, user("last")], [LOOK], {})


def test_every_template_writes_a_head_and_a_system_message_behind_it_or_refuses_them() -> None:
    """Whatever a template does: each text once and in order, or a 400."""
    heads = [[role(f"<head-{number}>") for number, role in enumerate(roles)] for roles in HEADS]
    tails = [[], [system("<late>")], [developer("<late>"), user("<last>")]]
    written = 0
    for name in sources():
        renderer = build(sources()[name])
        for sent in [[*head, user("<asked>"), *tail] for head in heads for tail in tails] if renderer else []:
            try:
                text = renderer.tokenizer.decode(renderer.render(sent, [], {}).ids)  # type: ignore[union-attr]
            except RequestError:
                continue
            written += 1
            assert all(each in text for each in list_texts(sent)), name
    assert written > 1000


HEADS = ([], [system], [developer], [system, system], [system, developer], [developer, system], [developer, developer])


def test_templates_of_declared_families_are_those_of_the_checkpoints() -> None:
    assert "System message must be at the beginning" in (find_template("qwen36") or "")
