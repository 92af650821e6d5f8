"""Texts that are too long for their session.

1. Wherever a text stands that cannot but be over the limit, a turn and a count refuse it with the context error before
   it is tokenized; the session stays as it was.
2. What fits, to the token, is never refused for its length in characters.
3. A count beyond the limit that is not certain without tokenizing is still told.
"""

from typing import Any

import pytest

from servicekit import Kit, assistant, build_kit, build_request, get_renderer, user
from turnkeeper.core.tokens import TokenIds
from turnkeeper.errors import ContextLengthError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Tokenizer

LIMIT = 500
LONG = "x " * 50_000


def _call(arguments: str) -> JsonObject:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


TOOL = {"type": "function", "function": {"name": "f", "description": LONG, "parameters": {}}}
PROPERTIES = {f"p{number}": {"type": "string"} for number in range(2000)}
SCHEMA = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}},
}
CASES: dict[str, tuple[list[JsonObject], dict[str, Any]]] = {
    "one message": ([user(LONG)], {}),
    "text in parts": ([{"role": "user", "content": [{"type": "text", "text": LONG[:50]}] * 2000}], {}),
    "many messages": ([user("x" * 100)] * 1000, {}),
    "a system prompt": ([{"role": "system", "content": LONG}, user("a")], {}),
    "a tool's description": ([user("a")], {"tools": [TOOL]}),
    "a tool's schema": ([user("a")], {"tools": [SCHEMA]}),
    "spaces alone": ([user(" " * 100_000 + "a")], {}),
    "letters that are not ASCII": ([user("é的" * 50_000)], {}),
    "tool arguments": (
        [
            user("a"),
            {"role": "assistant", "content": "", "tool_calls": [_call(f'{{"a": "{LONG}"}}')]},
            {"role": "tool", "tool_call_id": "c", "content": "b"},
        ],
        {},
    ),
    "an appended message": ([user("a"), assistant("b"), user(LONG)], {}),
    "an appended tool result": ([user("a"), assistant("b"), {"role": "tool", "content": LONG}], {}),
    "many appended messages": ([user("a"), assistant("b"), *[user("x" * 100)] * 1000], {}),
}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each text that is encoded."""
    lengths: list[int] = []
    reference = get_renderer().tokenizer.huggingface_encoder

    class Watching:
        def encode(self, text: str) -> TokenIds:
            lengths.append(len(text))
            return reference.encode(text)

    monkeypatch.setattr(get_renderer().tokenizer, "encoder", Watching())
    return lengths


async def _build_talk() -> tuple[Kit, str]:
    kit = build_kit(max_seq_len=LIMIT, max_session_turns=5)
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "b")
    return kit, session_id


@pytest.mark.parametrize(("messages", "fields"), CASES.values(), ids=CASES.keys())
async def test_a_text_that_is_far_too_long_is_refused_untokenized(
    messages: list[JsonObject], fields: dict[str, Any], encoded: list[int]
) -> None:
    kit, session_id = await _build_talk()
    encoded.clear()
    with pytest.raises(ContextLengthError, match="maximum context length is 500") as turn:
        await kit.begin(session_id, messages, **fields)
    with pytest.raises(ContextLengthError):
        await kit.service.count_tokens(session_id, build_request(messages, **fields))
    assert turn.value.facts["prompt_tokens"] > LIMIT
    assert encoded == []
    assert len(kit.look(session_id).forest) == 1
    assert not kit.find_entry(session_id).in_flight


async def test_what_fits_to_the_token_is_taken() -> None:
    tokenizer: Tokenizer = get_renderer().tokenizer
    longest = max((tokenizer.decode_list([number]) for number in range(tokenizer.size)), key=len)
    text = longest * 400
    kit = build_kit(max_seq_len=100_000)
    count = await kit.service.count_tokens(kit.create(), build_request([user(text)]))
    fits = build_kit(max_seq_len=count + 1)
    assert await fits.say(fits.create(), [user(text)], "") == ""
    tight = build_kit(max_seq_len=count)
    with pytest.raises(ContextLengthError, match=f"resulted in {count} tokens"):
        await tight.begin(tight.create(), [user(text)])
    assert await tight.service.count_tokens(tight.create(), build_request([user(text)])) == count
