"""Prompts by difference.

1. A first prompt is the checkpoint's own rendering, with exactly the BOS that the template writes.
2. What is appended is what the text would be in place: tool results grouped, user after user, system, given assistants.
3. A message is closed exactly once, whether it ended by its stop token, without it, or cut inside anything.
4. The stored ids stand: an extension depends on the parent's last turn alone.
5. Template arguments merge with the pinned ones; contradictions and changes that rewrite the path are refused.
"""

from dataclasses import dataclass

import pytest

from rendering.talk import LOOK, assistant, call, system, tool, user
from turnkeeper.core.tokens import TokenIds
from turnkeeper.errors import ConfigError, RequestError, RoleNotAppendableError, TemplateError
from turnkeeper.jsontypes import Message
from turnkeeper.rendering import Checkpoint, ParentContext, Renderer, build_renderer

OPENING = "<|im_start|>assistant\n"


def parent_of(renderer: Renderer, sampled: str, message: Message, *, prompt: str = OPENING) -> ParentContext:
    """A path whose last turn sampled this text."""
    return ParentContext(
        messages=(user("Hi"), message),
        completion_ids=renderer.tokenizer.encode(sampled),
        prompt_ids=renderer.tokenizer.encode(prompt),
    )


def text_of(renderer: Renderer, ids: TokenIds) -> str:
    return renderer.tokenizer.decode(ids)


def test_a_first_prompt_is_the_checkpoints_rendering(qwen3: Renderer) -> None:
    prompt = qwen3.render([system("Be brief."), user("Hi")], [], {})
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n" + OPENING
    assert prompt.trim == 0
    assert text_of(qwen3, prompt.ids) == expected


def test_a_first_prompt_keeps_the_thinking_of_given_assistants(qwen3: Renderer) -> None:
    prompt = qwen3.render([user("a"), assistant("b", reasoning="because"), user("c")], [], {})
    assert "<think>\nbecause\n</think>\n\nb<|im_end|>" in text_of(qwen3, prompt.ids)


def test_string_and_object_arguments_render_to_the_same_ids_and_stay_as_they_were(qwen3: Renderer) -> None:
    spelled = call("look", '{"a":3,"t":"\\u4e2d"}')
    parsed = {**spelled, "function": {"name": "look", "arguments": {"a": 3, "t": "中"}}}
    history = [user("x"), assistant("", spelled), tool("y")]
    other = [user("x"), assistant("", parsed), tool("y")]
    assert qwen3.render(history, [LOOK], {}).ids.tolist() == qwen3.render(other, [LOOK], {}).ids.tolist()
    assert spelled["function"]["arguments"] == '{"a":3,"t":"\\u4e2d"}'


@dataclass(frozen=True, kw_only=True)
class Append:
    id: str
    messages: list[Message]
    text: str


APPENDS = (
    Append(
        id="one tool result",
        messages=[tool("7")],
        text="<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n",
    ),
    Append(
        id="two tool results share a message",
        messages=[tool("7"), tool("8", 1)],
        text="<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response><|im_end|>\n",
    ),
    Append(
        id="a user message after a tool result",
        messages=[tool("7"), user("go on")],
        text="<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n",
    ),
    Append(
        id="user after user",
        messages=[user("a"), user("b")],
        text="<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n",
    ),
    Append(id="system", messages=[system("s")], text="<|im_start|>system\ns<|im_end|>\n"),
    Append(
        id="developer is written as system",
        messages=[{"role": "developer", "content": "s"}],
        text="<|im_start|>system\ns<|im_end|>\n",
    ),
    Append(
        id="a given assistant",
        messages=[assistant("g"), user("u")],
        text="<|im_start|>assistant\ng<|im_end|>\n<|im_start|>user\nu<|im_end|>\n",
    ),
    Append(
        id="content parts are one text",
        messages=[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        text="<|im_start|>user\nab<|im_end|>\n",
    ),
)


@pytest.mark.parametrize("family", ["qwen3", "default"])
@pytest.mark.parametrize("case", APPENDS, ids=lambda case: case.id)
def test_appended_messages_are_written_as_in_place(request: pytest.FixtureRequest, family: str, case: Append) -> None:
    renderer: Renderer = request.getfixturevalue(family)
    message = assistant("", call("look", {"at": 1}), call("look", {"at": 2}, 1))
    parent = parent_of(renderer, "calls<|im_end|>", message)
    prompt = renderer.extend(parent, case.messages, [LOOK], {})
    assert prompt.trim == 0
    assert text_of(renderer, prompt.ids) == "\n" + case.text + OPENING


@dataclass(frozen=True, kw_only=True)
class Ending:
    id: str
    sampled: str
    added: str
    prompt: str = OPENING


ENDINGS = (
    Ending(id="the stop token", sampled="Hello<|im_end|>", added="\n"),
    Ending(id="no stop token, as after a stop string", sampled="Hello", added="<|im_end|>\n"),
    Ending(id="text that ends like the layout behind the close", sampled="Hello\n", added="<|im_end|>\n"),
    Ending(id="another stop token", sampled="Hello<|endoftext|>", added="<|im_end|>\n"),
    Ending(id="cut inside thinking", sampled="<think>\nlet me", added="\n</think>\n\n<|im_end|>\n"),
    Ending(id="cut inside thinking, behind a newline", sampled="<think>\nlet\n", added="</think>\n\n<|im_end|>\n"),
    Ending(
        id="cut inside thinking that the prompt opened",
        prompt=OPENING + "<think>\n",
        sampled="let me",
        added="\n</think>\n\n<|im_end|>\n",
    ),
    Ending(
        id="thinking that the prompt opened and closed",
        prompt=OPENING + "<think>\n\n</think>\n\n",
        sampled="Hel",
        added="<|im_end|>\n",
    ),
    Ending(id="cut after thinking", sampled="<think>\na\n</think>\n\nHel", added="<|im_end|>\n"),
    Ending(id="cut inside a tool call", sampled='<tool_call>\n{"name": "lo', added="<|im_end|>\n"),
    Ending(
        id="cut inside a call drafted in thinking",
        sampled="<think>\n<tool_call>{",
        added="\n</think>\n\n<|im_end|>\n",
    ),
)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda case: case.id)
def test_a_message_is_closed_exactly_once(qwen3: Renderer, ending: Ending) -> None:
    parent = parent_of(qwen3, ending.sampled, assistant("Hello"), prompt=ending.prompt)
    prompt = qwen3.extend(parent, [user("more")], [], {})
    assert prompt.trim == 0
    assert text_of(qwen3, prompt.ids) == ending.added + "<|im_start|>user\nmore<|im_end|>\n" + OPENING


def test_an_extension_is_the_tail_of_the_whole(qwen3: Renderer) -> None:
    history = [user("a"), assistant("b", reasoning="r")]
    whole = qwen3.render([*history, user("c")], [LOOK], {}).ids.tolist()
    first = qwen3.render([user("a")], [LOOK], {}).ids
    completion = qwen3.tokenizer.encode("<think>\nr\n</think>\n\nb<|im_end|>")
    parent = ParentContext(messages=history, completion_ids=completion, prompt_ids=first)
    extension = qwen3.extend(parent, [user("c")], [LOOK], {}).ids
    assert [*first.tolist(), *completion.tolist(), *extension.tolist()] == whole


def test_pinned_arguments_merge_and_reach_the_prompt(qwen3_checkpoint: Checkpoint) -> None:
    renderer = build_renderer(qwen3_checkpoint, "qwen3", chat_template_kwargs={"enable_thinking": False})
    prompt = renderer.render([user("a")], [], {"x": 1})
    assert prompt.chat_template_kwargs == {"enable_thinking": False, "x": 1}
    assert text_of(renderer, prompt.ids).endswith(OPENING + "<think>\n\n</think>\n\n")


def test_an_argument_that_only_opens_the_reply_otherwise_may_change(qwen3: Renderer) -> None:
    parent = ParentContext(
        messages=(user("a"), assistant("b")),
        completion_ids=qwen3.tokenizer.encode("b<|im_end|>"),
        chat_template_kwargs={},
    )
    prompt = qwen3.extend(parent, [user("c")], [], {"enable_thinking": False})
    assert text_of(qwen3, prompt.ids).endswith("<think>\n\n</think>\n\n")


def test_an_argument_that_would_rewrite_the_path_is_refused(qwen3_checkpoint: Checkpoint) -> None:
    template = "{% for m in messages %}{{ m.role }}{{ mark }}:{{ m.content }}<|im_end|>{% endfor %}"
    renderer = build_renderer(Checkpoint(tokenizer_json=qwen3_checkpoint.tokenizer_json, template=template), "default")
    parent = ParentContext(
        messages=(user("a"), assistant("b")),
        completion_ids=renderer.tokenizer.encode("b<|im_end|>"),
        chat_template_kwargs={"mark": "-"},
    )
    with pytest.raises(RequestError, match="mark"):
        renderer.extend(parent, [user("c")], [], {"mark": "+"})


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "tools"])
def test_what_is_no_template_argument_is_refused(qwen3: Renderer, name: str) -> None:
    with pytest.raises(RequestError, match=name):
        qwen3.render([user("a")], [], {name: True})


@pytest.mark.parametrize(
    ("messages", "said"), [([], "empty"), ([{"role": "boss", "content": ""}], "boss"), ([{"content": ""}], "None")]
)
def test_messages_that_are_none_are_refused(qwen3: Renderer, messages: list[Message], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        qwen3.render(messages, [], {})


TERSE = """{% for m in messages %}{% if m.role == 'assistant' and loop.index > 2 %}{{ raise_exception('no more') }}\
{% elif m.role != 'tool' %}<|im_start|>{{ m.role }}: {{ m.content }}<|im_end|>{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"""


@pytest.mark.parametrize(
    ("appended", "role", "why"),
    [([assistant("g"), user("u")], "assistant", "no more"), ([tool("t")], "tool", "leaves such a message out")],
    ids=["the template raises", "the template says nothing"],
)
def test_a_role_that_the_template_does_not_take_is_refused_by_name(
    qwen3_checkpoint: Checkpoint, appended: list[Message], role: str, why: str
) -> None:
    renderer = build_renderer(Checkpoint(tokenizer_json=qwen3_checkpoint.tokenizer_json, template=TERSE), "default")
    parent = parent_of(renderer, "x<|im_end|>", assistant("x"))
    with pytest.raises(RoleNotAppendableError, match=rf"default cannot append an? {role} .*{why}"):
        renderer.extend(parent, appended, [], {})


def test_a_template_that_raises_is_a_400_that_says_what_it_said(qwen3_checkpoint: Checkpoint) -> None:
    template = "{{ raise_exception('never') }}"
    checkpoint = Checkpoint(tokenizer_json=qwen3_checkpoint.tokenizer_json, template=template)
    with pytest.raises(TemplateError, match="never"):
        build_renderer(checkpoint, "qwen3").render([user("a")], [], {})


def test_a_folder_without_template_is_refused_at_start_by_its_option(qwen3_checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError) as caught:
        build_renderer(Checkpoint(tokenizer_json=qwen3_checkpoint.tokenizer_json), "qwen3")
    assert "--chat-template-path" in str(caught.value)


def test_a_tokenizer_that_merges_across_the_end_of_a_message_is_refused_at_start(qwen3_checkpoint: Checkpoint) -> None:
    """Without a control token at the end, the full stop and the newline behind it are one piece."""
    template = (
        "{% for m in messages %}{{ m.content }}."
        "{% if not loop.last or add_generation_prompt %}\n{% endif %}{% endfor %}"
    )
    with pytest.raises(ConfigError, match="merges text across the end"):
        build_renderer(Checkpoint(tokenizer_json=qwen3_checkpoint.tokenizer_json, template=template), "default")


def test_arguments_that_no_probe_can_try_may_not_change(qwen3_checkpoint: Checkpoint) -> None:
    template = (
        "{% if messages | length > 2 and messages[0].content != 'a' %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    renderer = build_renderer(Checkpoint(tokenizer_json=qwen3_checkpoint.tokenizer_json, template=template), "default")
    parent = ParentContext(
        messages=(user("a"), assistant("b")),
        completion_ids=renderer.tokenizer.encode("b<|im_end|>"),
        chat_template_kwargs={"x": 1},
    )
    with pytest.raises(RequestError, match="changes x"):
        renderer.extend(parent, [user("c")], [], {"x": 2})


def test_an_unknown_family_is_refused_with_the_nearest_names(qwen3_checkpoint: Checkpoint) -> None:
    with pytest.raises(ConfigError, match="did you mean qwen3"):
        build_renderer(qwen3_checkpoint, "qwen-3")


def test_stop_ids_and_trim_are_the_familys(qwen3: Renderer) -> None:
    assert qwen3.max_trim == 0
    assert qwen3.stop_token_ids == (151643, 151645)
