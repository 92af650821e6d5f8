"""What the SDKs of Anthropic and OpenAI send beside plain turns, against the whole server, streamed and whole.

1. anthropic: a set of deferred tools that grows by references leaves one path; engine, records and counts know what is
   loaded; a first request that holds references is served.
2. openai: a Responses conversation in which ids stand for earlier items is one path, and the samples are those of the
   same conversation in whole items; an unknown id is a 400 that names it.
3. openai: an image that a tool gave is refused, or left out under ``--on-image omit``, and the path goes on.
4. Both: a conversation that ends with an assistant message is a 400 of the SDK's own class; a reply with calls ends
   for its calls; a cut reply goes on in a session that bridges.
"""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from httpkit import Site, running_site
from servicekit import get_renderer
from turnkeeper.choices import OnImage
from turnkeeper.core import Turn
from turnkeeper.dialects.images import IMAGE_PLACEHOLDER
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import decode_samples
from turnkeeper.testing import ScriptedReply

STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
HISTORIES = pytest.mark.parametrize("history", ["linear", "tree"])
USER: JsonObject = {"role": "user", "content": "hi"}
SCHEMA: JsonObject = {"type": "object", "properties": {"q": {"type": "string"}}}
SEARCH: JsonObject = {"name": "ToolSearch", "description": "finds tools", "input_schema": SCHEMA}


def call(name: str, call_id: str) -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": '{"q":  "x"}'}}


def deferred(name: str) -> JsonObject:
    return {"name": name, "description": f"does {name}", "input_schema": SCHEMA, "defer_loading": True}


def list_turns(site: Site, session: str) -> tuple[Turn, ...]:
    return site.find_entry(session.removeprefix("/sessions/")).session.forest.turns


def get_parents(site: Site, session: str) -> list[int | None]:
    return [turn.parent for turn in list_turns(site, session)]


@asynccontextmanager
async def anthropic_client(site: Site, session: str) -> AsyncGenerator[anthropic.AsyncAnthropic]:
    url = f"{site.url}{session}"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@asynccontextmanager
async def openai_client(site: Site, session: str) -> AsyncGenerator[openai.AsyncOpenAI]:
    url = f"{site.url}{session}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def ask_messages(client: Any, streams: bool, **fields: Any) -> Any:
    asked = {"model": "m", "max_tokens": 50, **fields}
    if not streams:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as stream:
        return await stream.get_final_message()


async def ask_responses(client: Any, streams: bool, **fields: Any) -> Any:
    asked = {"model": "m", **fields}
    if not streams:
        return await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        return await stream.get_final_response()


# Deferred tools.


@STREAMED
@HISTORIES
async def test_a_growing_set_of_loaded_tools_leaves_one_path(streams: bool, history: str) -> None:
    names = ["mcp__a", "mcp__b", "mcp__c"]
    async with running_site() as site:
        site.engine.script = [
            *(ScriptedReply(text="", tool_calls=[call("ToolSearch", f"c{i}")], finish_reason="stop") for i in range(3)),
            ScriptedReply(text="", tool_calls=[call("mcp__c", "c3")], finish_reason="stop"),
            ScriptedReply(text="done"),
        ]
        session = await site.create(history=history)
        async with anthropic_client(site, session) as client:
            messages: list[JsonObject] = [USER]
            for place in range(5):
                # As Claude Code does, a tool is offered from the request on that brings its first reference.
                tools = [SEARCH, *(deferred(name) for name in names[:place])]
                counted = await client.messages.count_tokens(model="m", messages=messages, tools=tools)  # pyright: ignore[reportArgumentType] - plain dicts stand for the SDK's types
                reply = await ask_messages(client, streams, messages=messages, tools=tools)
                turn = list_turns(site, session)[-1]
                assert counted.input_tokens == turn.path_tokens - len(turn.completion.ids)
                offered = [tool["function"]["name"] for tool in site.engine.generations[-1].json["tools"]]
                assert offered == ["ToolSearch", *names[: min(place, 3)]]
                if place == 4:
                    break
                assert reply.stop_reason == "tool_use"
                (use,) = (block for block in reply.content if block.type == "tool_use")
                given = [{"type": "tool_reference", "tool_name": names[place]}] if place < 3 else "result"
                result = {"type": "tool_result", "tool_use_id": use.id, "content": given}
                messages += [
                    {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
                    {"role": "user", "content": [result]},
                ]
        assert get_parents(site, session) == [None, 0, 1, 2, 3]
        records = (await site.call("GET", session)).json()["records"]
        assert [len(record["request"]["tools"]) for record in records] == [1, 2, 3, 4, 4]
        assert not any(turn.context_changed for turn in list_turns(site, session))
        (sample,) = decode_samples((await site.call("POST", f"{session}/samples", {})).body).samples
        trained = sum(len(turn.completion.ids) for turn in list_turns(site, session))
        assert int(sample.loss_mask.sum()) == trained
        assert '"name": "mcp__a"' in sample.response


@STREAMED
async def test_a_first_request_may_hold_references(streams: bool) -> None:
    async with running_site(use_session_server="v2") as site:
        session = await site.create()
        use = {"type": "tool_use", "id": "c", "name": "ToolSearch", "input": {}}
        block = {"type": "tool_reference", "tool_name": "g"}
        messages: list[JsonObject] = [
            USER,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [block]}]},
        ]
        async with anthropic_client(site, session) as client:
            await ask_messages(client, streams, messages=messages, tools=[SEARCH, deferred("g"), deferred("h")])
        (turn,) = list_turns(site, session)
        assert [tool["function"]["name"] for tool in turn.request.callable_tools] == ["ToolSearch", "g"]
        assert turn.carried == 1
        prompt = get_renderer().tokenizer.decode(turn.prompt.ids)
        assert '"name": "g"' in prompt
        assert '"name": "h"' not in prompt


# Items by their ids.


async def play_responses(site: Site, session: str, *, streams: bool, by_id: bool) -> list[str]:
    """A task of three turns; the ids of all items of its replies."""
    site.engine.script = [
        ScriptedReply(text="Two.", reasoning="why", tool_calls=[call("f", "c0"), call("f", "c1")]),
        ScriptedReply(text="", reasoning="more", tool_calls=[call("f", "c2")], finish_reason="tool_calls"),
        ScriptedReply(text="done"),
        ScriptedReply(text="welcome"),
    ]
    tools: list[JsonObject] = [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}]
    items: list[JsonObject] = [USER]
    ids: list[str] = []
    async with openai_client(site, session) as client:
        for _ in range(4):
            reply = await ask_responses(client, streams, input=items, tools=tools)
            ids += [item.id for item in reply.output]
            for item in reply.output:
                whole = item.model_dump(exclude_none=True)
                items.append({"type": "item_reference", "id": item.id} if by_id else whole)
            calls = [item for item in reply.output if item.type == "function_call"]
            outputs = [{"type": "function_call_output", "call_id": each.call_id, "output": "r"} for each in calls]
            items += outputs or [USER]
    return ids


@STREAMED
@HISTORIES
async def test_ids_stand_for_the_items_of_earlier_replies(streams: bool, history: str) -> None:
    async with running_site() as site:
        found: list[Any] = []
        for by_id in (False, True):
            session = await site.create(history=history)
            ids = await play_responses(site, session, streams=streams, by_id=by_id)
            assert len(ids) == len(set(ids)) == 8
            assert get_parents(site, session) == [None, 0, 1, 2]
            assert not any(turn.accepted for turn in list_turns(site, session)[1:] if by_id)
            (sample,) = decode_samples((await site.call("POST", f"{session}/samples", {})).body).samples
            found.append((sample.tokens.tolist(), sample.loss_mask.tolist(), sample.rollout_log_probs.tolist()))
        assert found[0] == found[1]


@STREAMED
async def test_an_id_of_nowhere_is_refused_by_its_name(streams: bool) -> None:
    async with running_site() as site:
        session, other = await site.create(), await site.create()
        async with openai_client(site, session) as client, openai_client(site, other) as stranger:
            item_id = (await ask_responses(client, False, input="hi")).output[0].id
            items = [USER, {"type": "item_reference", "id": item_id}, USER]
            with pytest.raises(openai.BadRequestError, match=item_id) as refused:
                await ask_responses(stranger, streams, input=items)
            assert refused.value.param == "input[1].id"
            with pytest.raises(openai.BadRequestError, match=item_id):
                await stranger.responses.input_tokens.count(model="m", input=items)  # pyright: ignore[reportArgumentType] - plain dicts
            await ask_responses(client, streams, input=items)
        assert get_parents(site, session) == [None, 0]
        assert get_parents(site, other) == []
        gone = await site.call("POST", f"/sessions/{'0' * 32}/v1/responses", {"input": items})
        assert (gone.status, gone.json()["error"]["code"]) == (404, "session_not_found")


# Images.


@STREAMED
@pytest.mark.parametrize("on_image", OnImage)
async def test_an_image_of_a_tool_ends_the_episode_or_is_left_out(streams: bool, on_image: OnImage) -> None:
    async with running_site(on_image=on_image) as site:
        site.engine.script = [ScriptedReply(text="", tool_calls=[call("f", "c0")]), ScriptedReply(text="I see.")]
        session = await site.create()
        tools = [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}]
        async with openai_client(site, session) as client:
            reply = await ask_responses(client, streams, input=[USER], tools=tools)
            shown = [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}]
            output = {"type": "function_call_output", "call_id": "c0", "output": shown}
            items = [USER, *(item.model_dump(exclude_none=True) for item in reply.output), output]
            if on_image is OnImage.REFUSE:
                with pytest.raises(openai.BadRequestError, match="--on-image omit"):
                    await ask_responses(client, streams, input=items, tools=tools)
                return
            await ask_responses(client, streams, input=items, tools=tools)
        turns = list_turns(site, session)
        assert (turns[1].parent, turns[1].messages[0]["content"]) == (0, IMAGE_PLACEHOLDER)
        assert any(IMAGE_PLACEHOLDER in note for note in turns[1].request.notes)


# Ends.


@STREAMED
async def test_a_conversation_that_asks_nothing_is_refused_in_the_sdks_own_class(streams: bool) -> None:
    async with running_site(use_session_server="v2") as site:
        session = await site.create()
        async with anthropic_client(site, session) as client, openai_client(site, session) as other:
            reply = await ask_messages(client, streams, messages=[USER])
            own = [USER, {"role": "assistant", "content": reply.content[0].text}]
            with pytest.raises(anthropic.BadRequestError, match="own last reply"):
                await ask_messages(client, streams, messages=own)
            with pytest.raises(openai.BadRequestError, match="own last reply"):
                await other.chat.completions.create(model="m", messages=own, stream=streams)  # pyright: ignore[reportCallIssue, reportArgumentType] - plain dicts
            with pytest.raises(openai.BadRequestError, match="own last reply"):
                await ask_responses(other, streams, input=own)
        assert len(list_turns(site, session)) == 1


@STREAMED
async def test_a_reply_with_calls_ends_for_its_calls(streams: bool) -> None:
    async with running_site() as site:
        site.engine.script = [ScriptedReply(text="", tool_calls=[call("f", "c0")], finish_reason="stop")]
        session = await site.create()
        tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
        fields: Any = {"model": "m", "messages": [USER], "tools": [tool]}
        async with openai_client(site, session) as client:
            if streams:
                async with client.chat.completions.stream(**fields) as stream:
                    reply = await stream.get_final_completion()
            else:
                reply = await client.chat.completions.create(**fields)
        assert reply.choices[0].finish_reason == "tool_calls"
        assert json.loads(reply.choices[0].message.tool_calls[0].function.arguments) == {"q": "x"}  # pyright: ignore[reportOptionalSubscript, reportAttributeAccessIssue] - the reply has a function call


@STREAMED
async def test_a_cut_reply_goes_on_in_a_session_that_bridges(streams: bool) -> None:
    async with running_site(use_session_server="v2") as site:
        site.engine.script = [ScriptedReply(text="half a", finish_reason="length"), ScriptedReply(text="the rest")]
        session = await site.create(history="tree", on_truncated="bridge")
        async with anthropic_client(site, session) as client:
            cut = await ask_messages(client, streams, messages=[USER])
            assert cut.stop_reason == "max_tokens"
            messages = [
                USER,
                {"role": "assistant", "content": [block.model_dump() for block in cut.content]},
                {"role": "user", "content": "Output token limit hit. Resume directly."},
            ]
            reply = await ask_messages(client, streams, messages=messages)
            assert (reply.stop_reason, reply.content[0].text) == ("end_turn", "the rest")
        assert get_parents(site, session) == [None, 0]
