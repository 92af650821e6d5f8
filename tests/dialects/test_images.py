"""Images in requests, in every dialect.

1. Without further ado an image is a 400 that names its field and the option.
2. Under ``--on-image omit`` each image in what a user says or a tool gives is one fixed text, and one note says so.
3. The text stands in the image's place; everything else stays as it was.
4. What an assistant or a system message holds is no image that a policy asked for, and stays refused; so do files.
"""

from typing import Any

import pytest

from turnkeeper.choices import OnImage
from turnkeeper.dialects import CHAT, MESSAGES, RESPONSES, Dialect, ParseContext
from turnkeeper.dialects.images import IMAGE_NOTE, IMAGE_PLACEHOLDER
from turnkeeper.errors import RequestError
from turnkeeper.jsontypes import JsonObject

USER: JsonObject = {"role": "user", "content": "hi"}
URL: JsonObject = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
BLOCK: JsonObject = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
PART: JsonObject = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
USE: JsonObject = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
CALLED: JsonObject = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
ITEM: JsonObject = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def text(value: str, kind: str = "text") -> JsonObject:
    return {"type": kind, "text": value}


def result(*blocks: JsonObject) -> JsonObject:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": list(blocks)}]}


def output(kind: str, *parts: JsonObject) -> JsonObject:
    return {"type": kind, "call_id": "c", "output": list(parts)}


def parse(dialect: Dialect, messages: list[JsonObject], on_image: OnImage, **fields: Any) -> Any:
    context = ParseContext(decode_token=str, on_image=on_image)
    name = "input" if dialect is RESPONSES else "messages"
    limit: JsonObject = {"max_tokens": 5} if dialect is MESSAGES else {}
    return dialect.parse_request({name: messages, **limit, **fields}, context).request


def read_last(request: Any) -> str:
    content = request.messages[-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


OMITTED: dict[str, tuple[Dialect, list[JsonObject], str]] = {
    "chat, a tool's": (
        CHAT,
        [USER, CALLED, {"role": "tool", "tool_call_id": "c", "content": [URL]}],
        IMAGE_PLACEHOLDER,
    ),
    "chat, a user message that shows a tool's": (
        CHAT,
        [USER, CALLED, {"role": "tool", "tool_call_id": "c", "content": "ok"}, {"role": "user", "content": [URL]}],
        IMAGE_PLACEHOLDER,
    ),
    "chat, amid text": (
        CHAT,
        [{"role": "user", "content": [text("a "), URL, text(" b "), URL]}],
        f"a {IMAGE_PLACEHOLDER} b {IMAGE_PLACEHOLDER}",
    ),
    "chat, as Responses spells it": (CHAT, [{"role": "user", "content": [PART]}], IMAGE_PLACEHOLDER),
    "messages, a tool's": (MESSAGES, [USER, USE, result(BLOCK)], IMAGE_PLACEHOLDER),
    "messages, a tool's amid text": (MESSAGES, [USER, USE, result(text("a "), BLOCK)], f"a {IMAGE_PLACEHOLDER}"),
    "messages, by url": (
        MESSAGES,
        [USER, USE, result({"type": "image", "source": {"type": "url", "url": "https://x"}})],
        IMAGE_PLACEHOLDER,
    ),
    "messages, with a cache mark": (
        MESSAGES,
        [USER, USE, result({**BLOCK, "cache_control": {"type": "ephemeral"}})],
        IMAGE_PLACEHOLDER,
    ),
    "messages, a user's": (MESSAGES, [{"role": "user", "content": [text("see "), BLOCK]}], f"see {IMAGE_PLACEHOLDER}"),
    "responses, a tool's": (RESPONSES, [USER, ITEM, output("function_call_output", PART)], IMAGE_PLACEHOLDER),
    "responses, a tool's amid text": (
        RESPONSES,
        [USER, ITEM, output("function_call_output", text("a ", "input_text"), PART)],
        f"a {IMAGE_PLACEHOLDER}",
    ),
    "responses, a custom tool's": (RESPONSES, [USER, ITEM, output("custom_tool_call_output", PART)], IMAGE_PLACEHOLDER),
    "responses, a user's": (RESPONSES, [{"role": "user", "content": [PART]}], IMAGE_PLACEHOLDER),
    "responses, without its address": (
        RESPONSES,
        [USER, ITEM, output("function_call_output", {"type": "input_image", "file_id": "f"})],
        IMAGE_PLACEHOLDER,
    ),
}


@pytest.mark.parametrize(("dialect", "messages", "said"), OMITTED.values(), ids=OMITTED.keys())
def test_an_image_is_left_out_for_one_text_and_a_note(dialect: Dialect, messages: list[JsonObject], said: str) -> None:
    request = parse(dialect, messages, OnImage.OMIT)
    assert read_last(request) == said
    assert request.notes.count(IMAGE_NOTE) == 1
    assert request == parse(dialect, messages, OnImage.OMIT)


@pytest.mark.parametrize(("dialect", "messages", "said"), OMITTED.values(), ids=OMITTED.keys())
def test_an_image_is_refused_unless_told_otherwise(dialect: Dialect, messages: list[JsonObject], said: str) -> None:
    assert ParseContext(decode_token=str).on_image is OnImage.REFUSE
    with pytest.raises(RequestError, match="--on-image omit") as refused:
        parse(dialect, messages, OnImage.REFUSE)
    assert str(refused.value.facts["param"]).endswith("].type")


KEPT: dict[str, tuple[Dialect, list[JsonObject], JsonObject]] = {
    "chat, an assistant's": (CHAT, [USER, {"role": "assistant", "content": [URL]}, USER], {}),
    "chat, a system message's": (CHAT, [{"role": "system", "content": [URL]}, USER], {}),
    "chat, a file": (CHAT, [{"role": "user", "content": [{"type": "file", "file": {}}]}], {}),
    "chat, a list for a type": (CHAT, [{"role": "user", "content": [{"type": ["image"]}]}], {}),
    "messages, an object for a type": (MESSAGES, [USER, USE, result({"type": {"a": 1}})], {}),
    "responses, a list for a type": (RESPONSES, [{"role": "user", "content": [{"type": []}]}], {}),
    "chat, audio": (CHAT, [{"role": "user", "content": [{"type": "input_audio"}]}], {}),
    "messages, an assistant's": (MESSAGES, [{"role": "assistant", "content": [BLOCK]}, USER], {}),
    "messages, the system prompt's": (MESSAGES, [USER], {"system": [BLOCK]}),
    "messages, a document": (MESSAGES, [USER, USE, result({"type": "document", "source": {}})], {}),
    "responses, an assistant's": (RESPONSES, [{"role": "assistant", "content": [PART]}, USER], {}),
    "responses, a developer's": (RESPONSES, [{"role": "developer", "content": [PART]}, USER], {}),
    "responses, a file": (RESPONSES, [USER, ITEM, output("function_call_output", {"type": "input_file"})], {}),
}


@pytest.mark.parametrize(("dialect", "messages", "fields"), KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("on_image", OnImage)
def test_what_is_no_image_of_a_user_or_a_tool_stays_refused(
    dialect: Dialect, messages: list[JsonObject], fields: JsonObject, on_image: OnImage
) -> None:
    with pytest.raises(RequestError, match="type"):
        parse(dialect, messages, on_image, **fields)


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
def test_a_request_without_images_is_the_same_under_both(dialect: Dialect) -> None:
    assert parse(dialect, [USER], OnImage.OMIT) == parse(dialect, [USER], OnImage.REFUSE)
