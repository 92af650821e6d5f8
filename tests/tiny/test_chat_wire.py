"""Chat completions on SGLang's wire.

1. With input_ids the prompt is those ids; without, the checkpoint's template renders it. messages is needed anyway.
2. Field by field: choices[0], meta_info only on request, logprobs in OpenAI's form, usage, the abort.
3. Text becomes reasoning, content and tool calls; content is a string, tool_calls absent when there are none.
4. The stop token or text is cut from the text alone; no_stop_trim keeps it.
5. A stream joins to the whole reply, whatever the pieces; return_meta_info with stream is a 400.
6. What is missing, malformed or not offered is a 400 that names it.
"""

import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny.builders import TOKENIZER, VOCABULARY
from tiny.conftest import Served
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.tiny.codec import ChatCodec
from turnkeeper.tiny.model import TinyShape
from turnkeeper.tiny.scheduler import Delta, Finish, FinishKind, OutputTokens, Result
from turnkeeper.tiny.server.chat import TinyChatCall, build_chat_reply, parse_chat
from turnkeeper.tiny.server.chat_stream import ChunkWriter
from turnkeeper.tiny.server.fields import Fields

CODEC = ChatCodec(shipped_checkpoint())
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
CALL_TEXT = '<tool_call>\n{"name": "add", "arguments": {"a":  1}}\n</tool_call>'


def _parse(**fields: Any) -> TinyChatCall:
    return parse_chat(Fields({"messages": HI, **fields}), TinyShape(), CODEC, model="m", created=7)


def _result(text: str, *, finish: Finish | None = None, rest: str | None = None) -> Result:
    ids = tuple(TOKENIZER.encode(text).ids)
    tokens = OutputTokens(ids=ids, logprobs=(-0.5,) * len(ids), tops=((),) * len(ids))
    return Result(
        rid="r",
        finish=finish or Finish(kind=FinishKind.STOP, matched=2),
        text=text,
        rest=text if rest is None else rest,
        tokens=tokens,
        rest_tokens=OutputTokens(),
        prompt_tokens=3,
        weight_version="v",
        spans=(),
        num_retractions=0,
        cached_tokens=1,
        experts=None,
    )


def _choice(text: str, *, finish: Finish | None = None, **fields: Any) -> dict[str, Any]:
    reply = build_chat_reply(_parse(**fields), _result(text, finish=finish), CODEC, VOCABULARY, 0.1)
    return reply["choices"][0]


async def test_ids_are_the_prompt_and_the_reply_names_all_it_holds(served: Served) -> None:
    reply = await served.chat(
        input_ids=[5, 6, 7], rid="mine", model="x", logprobs=True, return_meta_info=True, return_routed_experts=True
    )
    assert (reply["id"], reply["model"], reply["object"]) == ("mine", "x", "chat.completion")
    assert reply["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (choice,) = reply["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "matched_stop", "meta_info"}
    assert (choice["index"], choice["finish_reason"], choice["matched_stop"]) == (0, "length", None)
    meta = choice["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["id"]) == (3, 4, "mine")
    assert len(meta["output_token_logprobs"]) == 4
    assert len(meta["routed_experts"]) == 4 * (6 * 2 * 2 * 4) // 3
    entries = choice["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == [pair[0] for pair in meta["output_token_logprobs"]]
    for entry, (_, token, _) in zip(entries, meta["output_token_logprobs"], strict=True):
        assert bytes(entry["bytes"]) == VOCABULARY.get_bytes(token)


async def test_nothing_more_comes_than_was_asked_for(served: Served) -> None:
    (choice,) = (await served.chat())["choices"]
    assert "meta_info" not in choice
    assert choice["logprobs"] is None
    assert choice["message"] == {
        "role": "assistant",
        "content": choice["message"]["content"],
        "reasoning_content": None,
    }


async def test_without_ids_the_checkpoints_template_renders_the_prompt(served: Served) -> None:
    reply = await served.chat(return_meta_info=True)
    ids = TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").ids
    assert reply["choices"][0]["meta_info"]["prompt_tokens"] == len(ids)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({}, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", id="messages"),
        pytest.param(
            {"messages": [*HI, {"role": "assistant", "content": "Well,"}], "continue_final_message": True},
            "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nWell,",
            id="a begun reply",
        ),
    ],
)
def test_the_prompt_is_the_templates_text(fields: dict[str, Any], text: str) -> None:
    assert _parse(**fields).request.prompt_ids.tolist() == TOKENIZER.encode(text).ids


def test_tools_are_in_the_prompt_unless_they_are_switched_off() -> None:
    with_tools, without = _parse(tools=[TOOL]), _parse(tools=[TOOL], tool_choice="none")
    assert '"name": "add"' in TOKENIZER.decode(with_tools.request.prompt_ids.tolist())
    assert without.request.prompt_ids.tolist() == _parse().request.prompt_ids.tolist()


@pytest.mark.parametrize(
    ("text", "fields", "message", "finish"),
    [
        pytest.param("4", {}, {"content": "4", "reasoning_content": None}, "stop", id="an answer"),
        pytest.param(
            "<think>\nhm\n</think>\n\n4", {}, {"content": "4", "reasoning_content": "hm"}, "stop", id="a thought"
        ),
        pytest.param(
            "<think>\nhm\n</think>\n\n4",
            {"separate_reasoning": False},
            {"content": "<think>\nhm\n</think>\n\n4", "reasoning_content": None},
            "stop",
            id="a thought left in place",
        ),
        pytest.param(
            f"So\n{CALL_TEXT}",
            {"tools": [TOOL]},
            {"content": "So", "calls": [("add", '{"a":  1}')]},
            "tool_calls",
            id="a call, spelled as sampled",
        ),
        pytest.param(CALL_TEXT, {}, {"content": CALL_TEXT}, "stop", id="a call nobody can take stays text"),
        pytest.param("", {}, {"content": ""}, "stop", id="nothing is an empty string"),
    ],
)
def test_text_becomes_a_message(text: str, fields: dict[str, Any], message: dict[str, Any], finish: str) -> None:
    choice = _choice(text, **fields)
    found = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in found.get("tool_calls", [])]
    assert calls == message.pop("calls", [])
    assert ("tool_calls" in found) == bool(calls)
    assert {key: found[key] for key in message} == message
    assert (choice["finish_reason"], choice["matched_stop"]) == (finish, 2)


def test_tool_calls_are_numbered_and_named_apart() -> None:
    calls = _choice(f"{CALL_TEXT}\n{CALL_TEXT}", tools=[TOOL])["message"]["tool_calls"]
    assert [call["index"] for call in calls] == [0, 1]
    assert len({call["id"] for call in calls}) == 2
    assert {call["type"] for call in calls} == {"function"}


def test_a_truncated_call_does_not_end_by_tool_calls() -> None:
    choice = _choice(f"{CALL_TEXT}\n<tool_call>", tools=[TOOL], finish=Finish(kind=FinishKind.LENGTH))
    assert choice["finish_reason"] == "length"


async def test_an_abort_is_a_200_with_what_there_is(served: Served) -> None:
    await served.post("/pause_generation", {"mode": "in_place"})

    call = asyncio.create_task(served.chat(rid="gone", return_meta_info=True, logprobs=True))
    await served.wait_for(0, 1)
    await served.post("/abort_request", {"rid": "gone"})
    (choice,) = (await call)["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("abort", "")
    assert choice["meta_info"]["output_token_logprobs"] == []
    assert not {"prompt_tokens", "cached_tokens", "routed_experts"} & set(choice["meta_info"])


@pytest.mark.parametrize(
    ("fields", "content", "matched"),
    [
        ({"stop": "aaa"}, "", "aaa"),
        ({"stop": ["aaa"], "no_stop_trim": True}, "aaa", "aaa"),
        ({"stop_token_ids": True}, "", True),
        ({"stop_token_ids": True, "no_stop_trim": True}, "a", True),
    ],
)
async def test_a_stop_is_cut_from_the_text_alone(
    served: Served, fields: dict[str, Any], content: str, matched: str | bool
) -> None:
    letter = TOKENIZER.token_to_id("a")
    if "stop_token_ids" in fields:
        fields = {**fields, "stop_token_ids": [letter]}
    reply = await served.chat(logit_bias={str(letter): 1000}, logprobs=True, return_meta_info=True, **fields)
    (choice,) = reply["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["matched_stop"] == (letter if matched is True else matched)
    assert choice["message"]["content"] == content
    count = 1 if matched is True else 3
    assert len(choice["meta_info"]["output_token_logprobs"]) == count == reply["usage"]["completion_tokens"]


async def test_a_stream_joins_to_the_whole_reply(served: Served) -> None:
    fields: dict[str, Any] = {"input_ids": [5, 6, 7], "seed": 1, "max_tokens": 40, "logprobs": True}
    whole = (await served.chat(**fields))["choices"][0]
    body = {"messages": HI, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, **fields}
    reply = await served.post("/v1/chat/completions", body)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done, rest = reply.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    *chunks, usage = [json.loads(event.removeprefix("data: ")) for event in events]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 40
    assert {chunk["id"] for chunk in chunks} == {usage["id"]}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["message"]["content"]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert [entry["bytes"] for entry in entries] == [entry["bytes"] for entry in whole["logprobs"]["content"]]
    expected = [entry["logprob"] for entry in whole["logprobs"]["content"]]
    assert [entry["logprob"] for entry in entries] == pytest.approx(expected, abs=1e-4), "the prompt is cached now"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]


parts = st.lists(
    st.sampled_from(["4", " so", "\n", "<think>\n", "\n</think>\n\n", CALL_TEXT, "<tool_call>", "é", "<"]), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(parts=parts, cuts=st.lists(st.integers(0, 60), max_size=4), separate=st.booleans())
def test_pieces_of_any_size_join_to_the_same_message(parts: list[str], cuts: list[int], separate: bool) -> None:
    ids = TOKENIZER.encode("".join(parts)).ids
    text = TOKENIZER.decode(ids, skip_special_tokens=False)
    call = _parse(tools=[TOOL], stream=True, separate_reasoning=separate)
    writer = ChunkWriter(call, CODEC, VOCABULARY)
    bounds = [0, *sorted({cut for cut in cuts if cut < len(ids)}), len(ids)]
    pieces = [TOKENIZER.decode(ids[a:b], skip_special_tokens=False) for a, b in pairwise(bounds)]
    if "".join(pieces) != text:
        return  # a cut through a character: the engine never gives out half of one
    deltas: list[dict[str, Any]] = []
    for piece in pieces[:-1]:
        update = Delta(text=piece, tokens=OutputTokens(), weight_version="v", cached_tokens=0)
        deltas += [chunk["choices"][0]["delta"] for chunk in writer.write(update)]
    deltas += [chunk["choices"][0]["delta"] for chunk in writer.write(_result(text, rest=pieces[-1]))]
    whole = _choice(text, tools=[TOOL], separate_reasoning=separate)["message"]
    assert "".join(delta.get("content", "") for delta in deltas) == whole["content"]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == (whole["reasoning_content"] or "")
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    expected = whole.get("tool_calls", [])
    assert [(c["index"], c["function"]) for c in calls] == [(c["index"], c["function"]) for c in expected]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"messages": None}, "messages", id="no messages"),
        pytest.param({"messages": [], "input_ids": [1]}, "messages", id="none beside ids"),
        pytest.param({"messages": "hi"}, "messages", id="messages that are text"),
        pytest.param({"messages": ["hi"]}, "messages", id="a message that is text"),
        pytest.param({"messages": [{"role": "judge", "content": "x"}]}, "judge", id="an unknown role"),
        pytest.param({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages", id="a call that is no call"),
        pytest.param({"input_ids": []}, "input_ids", id="no ids"),
        pytest.param({"stream": True, "return_meta_info": True}, "return_meta_info", id="meta info of a stream"),
        pytest.param({"routed_experts_start_len": 99, "input_ids": [1]}, "routed_experts_start_len", id="rows beyond"),
        pytest.param({"n": 2}, "n=2", id="two choices"),
        pytest.param({"tools": [1]}, "tools", id="a tool that is no object"),
        pytest.param({"tool_choice": "required", "tools": [TOOL]}, "tool_choice", id="a forced call"),
        pytest.param({"response_format": {"type": "json_object"}}, "response_format", id="a grammar"),
        pytest.param({"max_tokens": -1}, "max_new_tokens", id="a negative limit"),
        pytest.param({"max_tokens": 66_000}, "context length", id="more than the context"),
        pytest.param({"chat_template_kwargs": []}, "chat_template_kwargs", id="template arguments as a list"),
        pytest.param({"continue_final_message": True}, "continue_final_message", id="no reply to continue"),
        pytest.param({"top_p": 2}, "top_p", id="sampling out of range"),
    ],
)
async def test_what_cannot_be_served_is_a_400_that_names_it(served: Served, change: dict[str, Any], named: str) -> None:
    reply = await served.post("/v1/chat/completions", {"messages": HI, **change})
    assert reply.status_code == 400
    error = reply.json()
    assert (error["object"], error["type"], error["code"]) == ("error", "BadRequestError", 400)
    assert named in error["message"]
    assert await served.count_requests() == (0, 0)


async def test_unknown_fields_are_ignored(served: Served) -> None:
    await served.chat(return_indexer_topk=True, priority=3, lora_path=None, whatever={"x": 1})
