"""Every dialect through the whole server.

1. The same conversation gives the same samples in every dialect, streamed or not.
2. A session is named by the path, by a bearer key or by ``x-api-key``; a request without one gets a 401 in its
   dialect's form. With ``--auto-create-sessions`` a key opens its session.
3. A count of tokens is the length of the prompt that the turn has; it changes nothing and needs no engine.
4. What can be refused is refused before headers, streamed or not, in the dialect's form and status.
5. A slow stream is kept alive by events that the SDKs take, and ends as any other.
6. Every tool call has an id of its own along the session, whatever the engine gave it: the one that is recorded and
   comes back, in a reply that is sent again too. The engine is told its own ids.
7. Where the engine answers ids alone, streamed or not, the turn is the same.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from agentkit import AGENTS, Agent
from httpkit import Reply, Site, running_site, serving
from turnkeeper.dialects import parse_events
from turnkeeper.samples import Sample, decode_samples
from turnkeeper.testing import ScriptedEngine, ScriptedReply, unreachable_url

ALL = pytest.mark.parametrize("dialect", AGENTS)
STREAMED = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])


def call(call_id: str, command: str) -> dict[str, Any]:
    arguments = json.dumps({"command": command}).replace(":", ":  ")
    return {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}


SCRIPT = (
    ScriptedReply(text="Two at once.", reasoning="Both are needed.", tool_calls=[call("c0", "ls"), call("c1", "pwd")]),
    ScriptedReply(text="", reasoning="One more.", tool_calls=[call("c2", 'echo "中"')], finish_reason="tool_calls"),
    ScriptedReply(text="", tool_calls=[call("c3", "true")], finish_reason="tool_calls"),
    ScriptedReply(text="All done.", reasoning="Enough."),
    ScriptedReply(text="You are welcome."),
)


async def play(agent: Agent, script: Sequence[ScriptedReply] = SCRIPT) -> list[str]:
    """A task of several turns with tools, then a second question; the texts of the replies."""
    agent.site.engine.script = list(script)
    agent.say("Look around.")
    texts: list[str] = []
    for question in ("Thank you.", None):
        while calls := await agent.step(max_tokens=200):
            texts.append(agent.text)
            # The last call finishes first.
            agent.answer([(each.id, f"result of {json.loads(each.arguments)['command']}") for each in calls[::-1]])
        texts.append(agent.text)
        if question is not None:
            agent.say(question)
    return texts


async def collect(site: Site, session: str) -> tuple[Sample, ...]:
    return decode_samples((await site.call("POST", f"{session}/samples", {})).body).samples


def compare(sample: Sample) -> tuple[Any, ...]:
    """What must not differ between dialects."""
    return (
        sample.tokens.tolist(),
        sample.loss_mask.tolist(),
        sample.rollout_log_probs.tolist(),
        sample.response,
        sample.status,
        sample.weight_versions,
    )


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_the_same_conversation_gives_the_same_samples_in_every_dialect(version: str) -> None:
    found: dict[tuple[str, bool], Any] = {}
    async with running_site(use_session_server=version) as site:
        for dialect, make in AGENTS.items():
            for streams in (False, True):
                session = await site.create()
                texts = await play(make(site, session, streams))
                assert texts == [reply.text for reply in SCRIPT]
                metadata = (await site.call("GET", session)).json()["metadata"]
                assert [turn["label"] for turn in metadata["turnkeeper"]["turns"]][1:] == ["extension"] * 4
                (sample,) = await collect(site, session)
                found[dialect, streams] = compare(sample)
    assert len(found) == 6
    assert all(each == found["chat", False] for each in found.values())


KEYS: dict[str, dict[str, str]] = {
    "bearer": {"authorization": "Bearer {id}"},
    "x-api-key": {"x_api_key": "{id}"},
    "both, one stale": {"authorization": "Bearer sk-stale", "x_api_key": "{id}"},
}


@ALL
@pytest.mark.parametrize("headers", KEYS.values(), ids=KEYS.keys())
async def test_a_key_names_the_session(dialect: str, headers: dict[str, str]) -> None:
    async with running_site() as site:
        session = await site.create()
        session_id = session.removeprefix("/sessions/")
        keys = {name: value.format(id=session_id) for name, value in headers.items()}
        agent = AGENTS[dialect](site, "", headers=keys)
        agent.say("hi")
        await agent.step(max_tokens=5)
        assert len((await site.call("GET", session)).json()["records"]) == 1


@ALL
@pytest.mark.parametrize("headers", [{}, {"x_api_key": "nobody"}, {"authorization": f"Bearer {'0' * 32}"}])
async def test_a_request_without_a_session_is_refused_in_its_dialect(dialect: str, headers: dict[str, str]) -> None:
    async with running_site() as site:
        agent = AGENTS[dialect](site, "", headers=headers)
        agent.say("hi")
        reply = await agent.ask(max_tokens=5)
        assert (reply.status, read_error(reply)) == (401, ("authentication_error", "authentication"))
        assert reply.headers["x-should-retry"] == "false"


@ALL
async def test_a_key_opens_its_session_where_that_is_wanted(dialect: str) -> None:
    async with running_site(auto_create_sessions=True) as site:
        agent = AGENTS[dialect](site, "", headers={"x_api_key": "ab" * 16})
        agent.say("hi")
        await agent.step(max_tokens=5)
        assert len((await site.call("GET", f"/sessions/{'ab' * 16}")).json()["records"]) == 1
        refused = AGENTS[dialect](site, "", headers={"x_api_key": "not-an-id"})
        refused.say("hi")
        assert (await refused.ask(max_tokens=5)).status == 401


@ALL
@STREAMED
@pytest.mark.parametrize("given", [None, "", "same"])
async def test_every_call_has_an_id_of_its_own(dialect: str, streams: bool, given: str | None) -> None:
    async with running_site() as site:
        session = await site.create()
        unnamed: list[dict[str, Any]] = [{**call("", command), "id": given} for command in ("ls", "pwd")]
        site.engine.script = [ScriptedReply(text="", tool_calls=unnamed), ScriptedReply(text="done")]
        agent = AGENTS[dialect](site, session, streams=streams)
        agent.say("Look around.")
        calls = await agent.step(max_tokens=50)
        agent.answer([(each.id, f"result of {each.arguments}") for each in calls[::-1]])
        assert await agent.step(max_tokens=50) == []
        shown = (await site.call("GET", session)).json()
    ids = [each.id for each in calls]
    assert len(set(ids)) == 2
    assert all(ids)
    first, second = shown["records"]
    assert [each["id"] for each in first["response"]["choices"][0]["message"]["tool_calls"]] == ids
    sent = second["request"]["messages"]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == ids


@ALL
@STREAMED
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_engine_that_repeats_its_ids_is_told_them_and_the_agent_is_not(
    dialect: str, streams: bool, version: str
) -> None:
    async with running_site(use_session_server=version, session_message_matcher="loose_tool_call") as site:
        agent = AGENTS[dialect](site, await site.create(), streams=streams)
        calls = [call("call_0", "ls"), call("functions.bash:0", "pwd")]
        site.engine.script = [ScriptedReply(text="", tool_calls=calls) for _ in range(3)]
        agent.say("Look around.")
        shown: list[list[str]] = []
        for _ in range(3):
            before = list(agent.history)
            shown.append([each.id for each in await agent.step(max_tokens=50)])
            again = AGENTS[dialect](site, agent.session, not streams, {"x_stainless_retry_count": "1"}, before)
            assert [each.id for each in await again.step(max_tokens=50)] == shown[-1]
            agent.answer([(each, "done") for each in shown[-1]])
        await agent.step(max_tokens=50)
        labels = [turn["label"] for turn in await read_turns(site, agent.session)]
    ids = [each for reply in shown for each in reply]
    assert len(set(ids)) == 6
    assert shown[0] == ["call_0", "functions.bash:0"]
    assert labels == ["root", "extension", "extension", "extension"]
    assert len(site.engine.generations) == 4
    told = site.engine.generations[-1].json["messages"]
    assert [each["id"] for message in told for each in message.get("tool_calls") or ()] == shown[0] * 3
    assert [message["tool_call_id"] for message in told if message["role"] == "tool"] == shown[0] * 3


async def read_turns(site: Site, session: str) -> list[dict[str, Any]]:
    return (await site.call("GET", session)).json()["metadata"]["turnkeeper"]["turns"]


COUNTED = {"messages": "v1/messages/count_tokens", "responses": "v1/responses/input_tokens"}


@pytest.mark.parametrize("dialect", COUNTED)
async def test_a_count_is_the_length_of_the_prompt_that_the_turn_has(dialect: str) -> None:
    async with running_site() as site:
        session = await site.create()
        agent = AGENTS[dialect](site, session)
        counts: list[int] = []
        site.engine.script = list(SCRIPT)
        agent.say("Look around.")
        for _ in range(3):
            before = (await site.call("GET", session)).json()
            counted = await site.call("POST", f"{session}/{COUNTED[dialect]}", agent.build_body())
            counts.append(counted.json()["input_tokens"])
            after = (await site.call("GET", session)).json()
            assert after["records"] == before["records"]
            agent.answer([(each.id, "r") for each in await agent.step(max_tokens=5)])
        assert counts == [len(request.json["input_ids"]) for request in site.engine.generations]


@pytest.mark.parametrize("dialect", COUNTED)
@pytest.mark.parametrize("by_path", [False, True], ids=["key", "path"])
async def test_a_count_for_a_session_that_a_turn_would_open_opens_none(dialect: str, by_path: bool) -> None:
    async with running_site(auto_create_sessions=True) as site:
        place, keys = (f"/sessions/{'ab' * 16}", {}) if by_path else ("", {"x_api_key": "ab" * 16})
        agent = AGENTS[dialect](site, place, headers=keys)
        agent.say("hi")
        counted = await site.call("POST", f"{place}/{COUNTED[dialect]}", agent.build_body(), **keys)
        assert (await site.call("GET", "/sessions")).json()["sessions"] == []
        await agent.step(max_tokens=5)
        [request] = site.engine.generations
        assert counted.json()["input_tokens"] == len(request.json["input_ids"])


@pytest.mark.parametrize("dialect", COUNTED)
async def test_a_count_needs_no_engine(dialect: str) -> None:
    async with running_site() as site:
        site.engine.control_answers["/model_info"] = (500, b"")
        session = await site.create()
        agent = AGENTS[dialect](site, session)
        agent.say("hi")
        assert (await site.call("POST", f"{session}/{COUNTED[dialect]}", agent.build_body())).status == 200
        assert site.engine.generations == []
        refused = await site.call("POST", f"{session}/{COUNTED[dialect]}", {})
        assert (refused.status, read_error(refused)[0]) == (400, "invalid_request_error")


@ALL
@STREAMED
async def test_a_prompt_that_is_too_long_is_refused_in_its_dialect(dialect: str, streams: bool) -> None:
    async with running_site() as site:
        agent = AGENTS[dialect](site, await site.create(max_seq_len=20), streams)
        agent.say("many words " * 20)
        reply = await agent.ask(max_tokens=5)
        assert reply.status == 400
        assert reply.headers["x-should-retry"] == "false"
        expected = {
            "messages": "prompt is too long: ",
            "chat": "maximum context length",
            "responses": "maximum context",
        }
        assert expected[dialect] in reply.json()["error"]["message"]
        assert site.engine.generations == []


REFUSALS: dict[str, tuple[ScriptedReply, int, str, dict[str, str]]] = {
    "busy": (ScriptedReply(status=429, headers={"retry-after": "7"}), 429, "rate_limit_error", {"retry-after": "7"}),
    "refused": (ScriptedReply(status=400), 400, "invalid_request_error", {"x-should-retry": "false"}),
    "HTML": (ScriptedReply(status=200, body=b"<html>"), 502, "server_error", {}),
    "aborted": (ScriptedReply(finish_reason="abort"), 503, "server_error", {"x-should-retry": "false"}),
}
ANTHROPIC: dict[str, tuple[int, str]] = {"HTML": (502, "api_error"), "aborted": (529, "overloaded_error")}


@ALL
@STREAMED
@pytest.mark.parametrize("case", REFUSALS)
async def test_what_an_engine_refuses_is_said_in_the_dialect(dialect: str, streams: bool, case: str) -> None:
    scripted, status, kind, headers = REFUSALS[case]
    if dialect == "messages":
        status, kind = ANTHROPIC.get(case, (status, kind))
    async with running_site(abort_grace=0) as site:
        session = await site.create()
        site.engine.script = [scripted]
        agent = AGENTS[dialect](site, session, streams)
        agent.say("hi")
        reply = await agent.ask(max_tokens=5)
        assert (reply.status, read_error(reply)[0]) == (status, kind)
        assert {name: reply.headers.get(name) for name in headers} == headers
        assert (await site.call("GET", session)).json()["records"] == []


@ALL
async def test_no_engine_is_a_bad_gateway_that_names_it(dialect: str) -> None:
    with unreachable_url() as url:
        async with serving(url) as (server_url, parts), aiohttp.ClientSession() as http:
            site = Site(url=server_url, engine_url=url, engine=ScriptedEngine(), parts=parts, http=http)
            agent = AGENTS[dialect](site, await site.create())
            agent.say("hi")
            reply = await agent.ask(max_tokens=5)
    assert reply.status == 502
    assert url in reply.json()["error"]["message"]


def read_error(reply: Reply) -> tuple[str, str]:
    error = reply.json()["error"]
    return error["type"], error["code"]


IMPATIENT: dict[str, Any] = {"stream_header_delay": 0, "stream_heartbeat": 0.01, "abort_grace": 0}


async def read_slowly(agent: Agent, scripted: ScriptedReply) -> bytes:
    """A stream whose engine answers once some heartbeats have come."""
    ready = asyncio.Event()
    agent.site.engine.script = [replace(scripted, wait=ready)]
    agent.say("hi")
    body = {**agent.build_body(), "stream": True, "max_tokens": 5}
    async with agent.site.http.post(f"{agent.site.url}{agent.session}/{agent.path}", json=body) as response:
        assert response.status == 200
        start = b"".join([await response.content.readuntil(b"\n\n") for _ in range(4)])
        ready.set()
        return start + await response.read()


@ALL
async def test_a_slow_stream_is_kept_alive_and_ends_as_any_other(dialect: str) -> None:
    async with running_site(**IMPATIENT) as site:
        agent = AGENTS[dialect](site, await site.create(), streams=True)
        stream = await read_slowly(agent, ScriptedReply(text="at last", reasoning="hm"))
        agent.read(agent.assemble(stream))
        assert agent.text == "at last"
        agent.say("again")
        await agent.step(max_tokens=5)
        turns = (await site.call("GET", agent.session)).json()["metadata"]["turnkeeper"]["turns"]
        assert [turn["label"] for turn in turns] == ["root", "extension"]


@ALL
async def test_a_stream_that_fails_late_says_so_last_and_records_nothing(dialect: str) -> None:
    async with running_site(**IMPATIENT) as site:
        agent = AGENTS[dialect](site, await site.create(), streams=True)
        *_, last = parse_events(await read_slowly(agent, ScriptedReply(body=b"<html>")))
        event = json.loads(last.data)
        error = event["response"]["error"] if dialect == "responses" else event["error"]
        assert error["code"] == "engine_protocol"
        assert (await site.call("GET", agent.session)).json()["records"] == []


def spell(text: str, reasoning: str, *commands: str) -> ScriptedReply:
    """A reply as the model writes it, for an engine that answers ids alone; three ids at a time when it is streamed."""
    calls = [json.dumps({"name": "bash", "arguments": {"command": command}}) for command in commands]
    written = "".join(f"\n<tool_call>\n{each}\n</tool_call>" for each in calls)
    return ScriptedReply(text=f"<think>\n{reasoning}\n</think>\n\n{text}{written}")


WRITTEN = (
    spell("Two at once, then we shall see.", "Both of them are needed for this.", "ls", "pwd"),
    spell("One more of these commands.", "It is not enough yet, I think.", "true"),
    spell("All done: 中文 and 🙂 are whole.", "That was enough of it."),
    spell("You are welcome.", "Be polite."),
)


@ALL
async def test_ids_that_an_engine_streams_give_the_turn_of_the_whole_reply(dialect: str) -> None:
    found: list[Any] = []
    async with running_site(engine_wire="generate", on_abort="resume") as site:
        for streams in (False, True):
            agent = AGENTS[dialect](site, await site.create(), streams)
            texts = await play(agent, WRITTEN)
            found.append((texts, [compare(each) for each in await collect(site, agent.session)]))
    assert found[0] == found[1]
    assert len(found[0][1]) == 1
    assert found[0][0][-2] == "All done: 中文 and 🙂 are whole."


@ALL
async def test_a_compressed_body_is_refused_in_the_form_of_the_dialect(dialect: str) -> None:
    async with running_site() as site:
        agent = AGENTS[dialect](site, await site.create(), headers={"content_encoding": "gzip"})
        agent.say("Hi")
        reply = await agent.ask()
        assert reply.status == 415
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert reply.json()["error"]["code"] == "unsupported_encoding"
        assert (reply.headers["x-should-retry"], reply.headers["accept-encoding"]) == ("false", "identity")
        agent.headers = {"content_encoding": "identity"}
        await agent.step()
        control = await site.call("POST", "/sessions", {}, content_encoding="gzip")
        assert (control.status, control.json()["code"]) == (415, "unsupported_encoding")


@ALL
async def test_line_separators_of_a_reply_do_not_break_a_stream(dialect: str) -> None:
    text = "a\u2028b\u2029c\x85d\x0be\x1df"
    calls = [call("c0", text)]
    async with running_site() as site:
        site.engine.script = [ScriptedReply(text=text, reasoning=text, tool_calls=calls)]
        agent = AGENTS[dialect](site, await site.create(), streams=True)
        agent.say("Hi")
        reply = await agent.ask()
    fields = ("data: ", "event: ", ": ")
    assert all(line.startswith(fields) for line in reply.body.decode().splitlines() if line)
    (found,) = agent.read(agent.assemble(reply.body))
    assert (agent.text, json.loads(found.arguments)) == (text, json.loads(calls[0]["function"]["arguments"]))
