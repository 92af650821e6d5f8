"""Ways in which session servers have failed in public, each through a real server: the input, and what is right.

What other tests hold already (faults of engines, hang-ups, retries, deletion, bad bodies) is not repeated here.
"""

from collections.abc import Sequence
from typing import Any

import aiohttp
import orjson
import pytest

from httpkit import Reply, Site, running_site
from servicekit import assistant, get_renderer, user
from traps.untouched import check_error, check_sound, get_entry
from turnkeeper.dialects import parse_events
from turnkeeper.samples import SampleBatch, decode_samples
from turnkeeper.testing import MoeShape, ScriptedEngine, ScriptedReply
from turnkeeper.testing.script import scripted_rows

VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
CALLS = [
    {"id": f"c{place}", "type": "function", "function": {"name": "look", "arguments": f'{{"at":  {place}}}'}}
    for place in range(2)
]
MOE = MoeShape()
ROWS: dict[str, Any] = {
    "use_rollout_routing_replay": True,
    "num_layers": MOE.layers,
    "moe_router_topk": MOE.topk,
    "num_experts": MOE.experts,
    "pause_generation_mode": "in_place",
}


def build_engine(*script: ScriptedReply, moe: MoeShape | None = None) -> ScriptedEngine:
    return ScriptedEngine(script, encode=lambda text: get_renderer().tokenizer.encode(text).tolist(), moe=moe)


def result(call_id: str, text: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def said(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    return reply.json()["choices"][0]["message"]


def sent(site: Site) -> list[list[int]]:
    """The prompt of every engine call."""
    return [request.json["input_ids"] for request in site.engine.generations]


async def play(site: Site, session: str, turns: int, **fields: Any) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for index in range(turns):
        messages.append(user(f"question {index}"))
        messages.append(said(await site.chat(session, messages, **fields)))
    return messages


async def collect(site: Site, session: str, **body: Any) -> SampleBatch:
    reply = await site.call("POST", f"{session}/samples", body)
    assert reply.status == 200, reply.body
    return decode_samples(reply.body)


@VERSIONS
async def test_every_prompt_begins_with_all_that_came_before(version: str) -> None:
    """Thinking that the client leaves out stays on the path."""
    script = [think(n) for n in range(4)]
    async with running_site(build_engine(*script), use_session_server=version) as site:
        session = await site.create()
        messages: list[dict[str, Any]] = []
        for n in range(4):
            messages.append(user(f"q{n}"))
            assert said(await site.chat(session, messages))["reasoning_content"] == f"why {n}"
            messages.append(assistant(f"said {n}"))
        turns = get_entry(site, session).session.forest.turns
        for before, turn, prompt in zip(sent(site), turns, sent(site)[1:], strict=False):
            path = [*before, *turn.completion.ids.tolist()]
            assert prompt[: len(path)] == path
        batch = await check_sound(site, session, turns=4)
        assert [sum(sample.loss_mask.tolist()) for sample in batch.samples] == [
            sum(len(turn.completion.ids) for turn in turns)
        ]


def think(number: int) -> ScriptedReply:
    """A reply whose ids hold thinking, which the engine has parsed."""
    why, answer = f"why {number}", f"said {number}"
    ids = get_renderer().tokenizer.encode(f"<think>\n{why}\n</think>\n\n{answer}<|im_end|>").tolist()
    return ScriptedReply(text=answer, reasoning=why, ids=ids)


RESPELLED = {
    "as it was": ('{"path":"a","n":1.0,"t":"\\u4e2d"}', True),
    "other blanks, order and escapes": ('{"n": 1.0, "path": "a", "t": "中"}', True),
    "a whole number for its double": ('{"path":"a","n":1,"t":"中"}', True),
    "another number": ('{"path":"a","n":2,"t":"中"}', False),
    "true for one": ('{"path":"a","n":true,"t":"中"}', False),
    "a string for a number": ('{"path":"a","n":"1","t":"中"}', False),
    "a key twice": ('{"path":"a","path":"a","n":1.0,"t":"中"}', False),
    "NaN": ('{"path":"a","n":NaN,"t":"中"}', False),
}


@pytest.mark.parametrize("choice", ["fork", "first"])
@pytest.mark.parametrize(("arguments", "is_same"), RESPELLED.values(), ids=RESPELLED.keys())
async def test_arguments_match_by_value_or_by_the_id_of_their_call_and_keep_their_stored_spelling(
    arguments: str, is_same: bool, choice: str
) -> None:
    stored = {"id": "c", "type": "function", "function": {"name": "f", "arguments": RESPELLED["as it was"][0]}}
    engine = build_engine(ScriptedReply(text="", tool_calls=[stored], finish_reason="tool_calls"))
    async with running_site(engine, use_session_server="v2", on_rewritten_calls=choice) as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        replayed = {**stored, "function": {"name": "f", "arguments": arguments}}
        asked = [user("a"), {"role": "assistant", "content": None, "tool_calls": [replayed]}, result("c")]
        assert (await site.chat(session, asked)).status == 200
        turns = get_entry(site, session).session.forest.turns
        assert (turns[1].parent == 0) is (is_same or choice == "first")
        if turns[1].parent == 0:
            assert engine.generations[1].json["messages"][1]["tool_calls"][0]["function"] == stored["function"]
        await check_sound(site, session, turns=2)


@VERSIONS
async def test_calls_in_another_order_are_another_message_and_lose_nothing(version: str) -> None:
    engine = build_engine(ScriptedReply(text="", tool_calls=CALLS, finish_reason="tool_calls"))
    async with running_site(engine, use_session_server=version) as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        turned = {"role": "assistant", "content": "", "tool_calls": CALLS[::-1]}
        assert (await site.chat(session, [user("a"), turned, result("c0"), result("c1")])).status == 200
        entry = get_entry(site, session)
        assert [turn.parent for turn in entry.session.forest.turns] == [None, None]
        await check_sound(site, session, turns=2)


@VERSIONS
async def test_results_in_another_order_are_the_same_results(version: str) -> None:
    engine = build_engine(ScriptedReply(text="", tool_calls=CALLS, finish_reason="tool_calls"))
    async with running_site(engine, use_session_server=version) as site:
        session = await site.create()
        first = said(await site.chat(session, [user("a")]))
        second = said(await site.chat(session, [user("a"), first, result("c1"), result("c0")]))
        third = [user("a"), first, result("c0"), result("c1"), second, user("b")]
        assert (await site.chat(session, third)).status == 200
        assert [turn.parent for turn in get_entry(site, session).session.forest.turns] == [None, 0, 1]


APPENDS: dict[str, Sequence[dict[str, Any]]] = {
    "result and question": [result("c0"), user("b")],
    "instructions": [{"role": "system", "content": "s"}],
    "instructions of a developer": [{"role": "developer", "content": "s"}],
    "two questions": [user("b"), user("c")],
    "a result of nothing": [result("nobody")],
    "an assistant that never spoke": [user("b"), assistant("made up"), user("c")],
    "nothing": [],
    "an empty question": [user("")],
}


@pytest.mark.parametrize("appended", APPENDS.values(), ids=APPENDS.keys())
@VERSIONS
async def test_whatever_is_appended_is_served_or_refused_by_its_role(
    version: str, appended: Sequence[dict[str, Any]]
) -> None:
    engine = build_engine(ScriptedReply(text="", tool_calls=CALLS[:1], finish_reason="tool_calls"))
    async with running_site(engine, use_session_server=version) as site:
        session = await site.create()
        first = said(await site.chat(session, [user("a")]))
        reply = await site.chat(session, [user("a"), first, *appended])
        assert reply.status in (200, 400), reply.body
        turns = get_entry(site, session).session.forest.turns
        if reply.status == 400:
            assert any(str(message["role"]) in reply.json()["error"]["message"] for message in appended) or not appended
        else:
            prefix = [*sent(site)[0], *turns[0].completion.ids.tolist()]
            assert sent(site)[1][: len(prefix)] == prefix
        await check_sound(site, session, turns=1 + (reply.status == 200))
        assert (await site.chat(session, [user("a"), first, result("c0")])).status == 200


@VERSIONS
async def test_a_stop_token_that_the_engine_leaves_out_is_closed_once(version: str) -> None:
    stop = get_renderer().tokenizer.get_id("<|im_end|>")
    ids = get_renderer().tokenizer.encode("hello").tolist()
    prompts: list[list[int]] = []
    for kept in ([*ids, stop], ids):
        engine = build_engine(ScriptedReply(text="hello", ids=kept, matched_stop=stop))
        async with running_site(engine, use_session_server=version) as site:
            session = await site.create()
            await play(site, session, 1)
            await site.chat(session, [user("question 0"), assistant("hello"), user("b")])
            prompts.append(sent(site)[1])
            (sample,) = (await check_sound(site, session, turns=2)).samples
            trained = sum(len(turn.completion.ids) for turn in get_entry(site, session).session.forest.turns)
            assert sum(sample.loss_mask.tolist()) == trained
    assert prompts[0] == prompts[1]


async def test_arguments_as_text_and_as_an_object_are_one_prompt() -> None:
    async with running_site(build_engine()) as site:
        for arguments in ('{"a": 3}', {"a": 3}):
            call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
            asked = [user("a"), {"role": "assistant", "content": "", "tool_calls": [call]}, result("c")]
            said(await site.chat(await site.create(), asked))
        assert sent(site)[0] == sent(site)[1]


@STREAMS
async def test_pins_win_over_what_the_agent_asks_for(stream: bool) -> None:
    async with running_site(build_engine()) as site:
        session = await site.create(sampling_params={"temperature": 1, "max_tokens": 512})
        fields = {"temperature": 0.2, "max_completion_tokens": 32000, "top_p": 0.9, "presence_penalty": 1}
        assert (await site.chat(session, [user("a")], stream=stream, **fields)).status == 200
        asked = site.engine.generations[0].json
        assert (asked["temperature"], asked["max_tokens"], asked["top_p"]) == (1, 512, 0.9)
        assert "max_completion_tokens" not in asked
        (sample,) = (await check_sound(site, session, turns=1)).samples
        (turn,) = sample.metadata["turnkeeper"]["turns"]
        assert turn["marks"]["overridden"] == {"temperature": 0.2, "max_tokens": 32000}


@STREAMS
@VERSIONS
async def test_a_prompt_over_the_window_is_the_agents_own_error(version: str, stream: bool) -> None:
    async with running_site(build_engine(), use_session_server=version) as site:
        session = await site.create(max_seq_len=60)
        messages = await play(site, session, 1, max_tokens=4096)
        assert site.engine.generations[0].json["max_tokens"] < 60
        over = await site.chat(session, [*messages, user("word " * 100)], stream=stream)
        check_error(over, 400, "context_length_exceeded")
        assert "maximum context length is 60 tokens" in over.json()["error"]["message"]
        (sample,) = (await check_sound(site, session, turns=1)).samples
        assert sample.metadata["turnkeeper"]["turns"][0]["marks"]["lowered_max_tokens_from"] == 4096


@VERSIONS
async def test_rows_stand_beside_the_tokens_wherever_a_sample_is_cut(version: str) -> None:
    async with running_site(build_engine(moe=MOE), use_session_server=version, **ROWS) as site:
        session = await site.create()
        await play(site, session, 3)
        (whole,) = (await check_sound(site, session, turns=3)).samples
        tokens = whole.tokens.tolist()
        expected = scripted_rows(tokens, layers=MOE.layers, topk=MOE.topk, experts=MOE.experts)
        first_prompt = len(tokens) - whole.response_length
        for length in range(1, len(tokens) + 2):
            batch = await collect(site, session, max_seq_len=length)
            if length <= first_prompt:
                assert (batch.samples, str(batch.empty_reason)) == ((), "all_truncated")
                continue
            (sample,) = batch.samples
            count = len(sample.tokens)
            assert count <= length
            assert sample.tokens.tolist() == tokens[:count]
            assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
            assert sample.rollout_routed_experts.tolist() == expected[: count - 1].tolist()


@VERSIONS
async def test_a_turn_that_ended_by_length_in_the_middle(version: str) -> None:
    engine = build_engine(ScriptedReply(), ScriptedReply(finish_reason="length", text="cut sho"))
    async with running_site(engine, use_session_server=version) as site:
        session = await site.create()
        messages = await play(site, session, 2)
        following = await site.chat(session, [*messages, user("go on")])
        if version == "v2":
            check_error(following, 400, "truncated_turn")
        else:
            assert following.status == 200
        batch = await check_sound(site, session, turns=3 if version == "v1" else 2)
        assert [len(sample.metadata["turnkeeper"]["turns"]) for sample in batch.samples] == [2]


async def test_a_sub_agent_and_a_compaction_leave_the_main_line_alone() -> None:
    async with running_site(build_engine(), use_session_server="v2") as site:
        session = await site.create()
        messages = await play(site, session, 2)
        tools = [{"type": "function", "function": {"name": "g"}}]
        child = [{"role": "system", "content": "child"}, user("c1")]
        child.append(said(await site.chat(session, child, tools=tools)))
        assert (await site.chat(session, [*child, user("c2")], tools=tools)).status == 200
        assert (await site.chat(session, [*messages, user("p3")])).status == 200
        assert (await site.chat(session, [user("summary"), messages[3], user("after")])).status == 200
        parents = [turn.parent for turn in get_entry(site, session).session.forest.turns]
        assert parents == [None, 0, None, 2, 1, None]
        batch = await check_sound(site, session, turns=6)
        assert sorted(len(sample.metadata["turnkeeper"]["turns"]) for sample in batch.samples) == [1, 2, 3]
        assert batch.session_metadata["turnkeeper"]["turns"][5]["carried"] == 1


CHATS: dict[str, dict[str, Any]] = {
    "chat": {"path": "v1/chat/completions", "body": {"messages": [user("a")]}},
    "messages": {"path": "v1/messages", "body": {"messages": [user("a")], "max_tokens": 512}},
    "responses": {"path": "v1/responses", "body": {"input": "a"}},
}


@STREAMS
async def test_the_same_turn_through_every_dialect_is_the_same_sample(stream: bool) -> None:
    found: list[Any] = []
    async with running_site(build_engine()) as site:
        site.engine.default = ScriptedReply(text="hello")
        for asked in CHATS.values():
            session = await site.create()
            body = {**asked["body"], "stream": stream}
            assert (await site.call("POST", f"{session}/{asked['path']}", body)).status == 200
            (sample,) = (await check_sound(site, session, turns=1)).samples
            found.append((sample.tokens.tolist(), sample.loss_mask.tolist(), sample.rollout_log_probs.tolist()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("wants_usage", [False, True], ids=["plain", "usage"])
async def test_a_chunk_of_usage_comes_only_on_request(wants_usage: bool) -> None:
    bare = ScriptedReply(edit=lambda reply: [reply.pop(name) for name in ("id", "created", "usage", "model")])
    async with running_site(build_engine(bare)) as site:
        session = await site.create()
        options = {"stream_options": {"include_usage": True}} if wants_usage else {}
        reply = await site.chat(session, [user("a")], stream=True, **options)
        *events, last = parse_events(reply.body)
        assert last.data == "[DONE]"
        chunks = [orjson.loads(event.data) for event in events]
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        assert all(chunk["id"] and chunk["created"] and chunk["model"] for chunk in chunks)
        roles = [chunk["choices"][0]["delta"].get("role") for chunk in chunks if chunk["choices"]]
        assert roles == ["assistant", *[None] * (len(roles) - 1)]
        assert [chunk["choices"] for chunk in chunks if "usage" in chunk] == ([[]] if wants_usage else [])


@VERSIONS
async def test_half_a_character_is_replaced_once_and_still_matches(version: str) -> None:
    halved = ScriptedReply(edit=lambda reply: reply["choices"][0]["message"].update(content="b\ud83d c"))
    async with running_site(build_engine(halved), use_session_server=version) as site:
        session = await site.create()
        head = '{"messages":[{"role":"user","content":"a\\ud83d b \\ud83d\\ude00"}'
        first = said(await site.call("POST", f"{session}/v1/chat/completions", f"{head}]}}".encode()))
        assert first["content"] == "b\ufffd c"
        for replayed in ("b\\ud83d c", "b\\ufffd c"):
            tail = f',{{"role":"assistant","content":"{replayed}"}},{{"role":"user","content":"next"}}]}}'
            said(await site.call("POST", f"{session}/v1/chat/completions", (head + tail).encode()))
        assert [turn.parent for turn in get_entry(site, session).session.forest.turns] == [None, 0, 0]


async def test_noise_in_the_system_prompt_makes_no_new_conversation() -> None:
    async with running_site(build_engine(), use_session_server="v2") as site:
        session = await site.create()
        messages: list[dict[str, Any]] = []
        for turn in range(3):
            text: dict[str, Any] = {"type": "text", "text": f"q{turn}", "cache_control": {"type": "ephemeral"}}
            messages.append({"role": "user", "content": [text]})
            system = [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={turn:05x};"},
                {"type": "text", "text": "be kind"} | ({"cache_control": {"type": "ephemeral"}} if turn % 2 else {}),
            ]
            body = {"messages": messages, "system": system, "max_tokens": 100}
            counted = await site.call("POST", f"{session}/v1/messages/count_tokens", body)
            reply = await site.call("POST", f"{session}/v1/messages?beta=true", body)
            assert reply.status == 200, reply.body
            assert counted.json() == {"input_tokens": len(sent(site)[turn])}
            del text["cache_control"]
            messages.append({"role": "assistant", "content": reply.json()["content"]})
        assert [turn.parent for turn in get_entry(site, session).session.forest.turns] == [None, 0, 1]


async def test_a_long_body_in_pieces_is_refused_while_it_comes() -> None:
    async def spill() -> Any:
        for _ in range(1000):
            yield b"x" * 10_000
            sizes.append(10_000)

    sizes: list[int] = []
    async with running_site(build_engine(), max_body_bytes=100_000) as site:
        session = await site.create()
        url = f"{site.url}{session}/v1/chat/completions"
        try:
            async with site.http.post(url, data=spill()) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "body_too_large"
        except aiohttp.ClientConnectionError:
            pass  # the server closes the connection on a client that goes on sending
        assert sum(sizes) < 10_000_000
        assert (await site.chat(session, [user("a")])).status == 200
