"""Odd bodies in front of a faulty engine, in every dialect and on every other route.

1. Nothing is an internal error: what is odd is refused by a 4xx, what an engine does wrong is its own status, and a
   stream that began ends with an event that says how.
2. A reply that was delivered is recorded, and an error records nothing.
3. Afterwards the session works.
"""

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentkit import AGENTS, Agent
from httpkit import Reply, Site, running_site
from turnkeeper.dialects import parse_events
from turnkeeper.testing import Phase, ScriptedReply

ROUNDS = 100

VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**70,
        0.5,
        1e300,
        "",
        "x",
        "auto",
        "ünï\u0000",
        "\ufffd",
        [],
        {},
        [None],
        [[]],
        {"": {}},
    ),
    *("user", "assistant", "system", "tool", "developer", "text", "input_text", "image", "tool_use", "tool_result"),
    *("function", "custom", "namespace", "reasoning", "message", "thinking", "function_call", "json_schema", "none"),
    *({"type": "text", "text": "t"}, {"type": "object"}, {"type": "function", "function": {"name": "f"}}),
    *([{"role": "user", "content": "u"}], [{"type": "text", "text": "t"}], {"role": "assistant", "content": "a"}),
)
KEYS = (
    *("messages", "input", "system", "instructions", "tools", "tool_choice", "stream", "stream_options", "max_tokens"),
    *(
        "temperature",
        "top_p",
        "stop",
        "stop_sequences",
        "n",
        "seed",
        "response_format",
        "output_config",
        "text",
        "model",
    ),
    *("thinking", "metadata", "include", "reasoning", "chat_template_kwargs", "input_ids", "type", "role", "content"),
    *(
        "tool_calls",
        "tool_call_id",
        "tool_use_id",
        "call_id",
        "name",
        "arguments",
        "id",
        "x_new",
        "previous_response_id",
    ),
)

FAULTS: tuple[ScriptedReply, ...] = (
    ScriptedReply(),
    ScriptedReply(),
    ScriptedReply(
        reasoning="r", tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}]
    ),
    ScriptedReply(text="", finish_reason="length"),
    ScriptedReply(finish_reason="content_filter"),
    ScriptedReply(finish_reason="abort"),
    ScriptedReply(fault=Phase.HEADERS),
    ScriptedReply(fault=Phase.BODY),
    ScriptedReply(fault=Phase.TRUNCATED),
    ScriptedReply(body=b""),
    ScriptedReply(body=b"<html>"),
    ScriptedReply(body=b"[]"),
    ScriptedReply(status=400),
    ScriptedReply(status=429),
    ScriptedReply(status=500, body=b"<html>"),
    ScriptedReply(logprobs=[None, None], ids=[20, 21]),
    ScriptedReply(ids=[20, 21, 2], logprobs=[-0.5, -0.5]),
    ScriptedReply(meta={"prompt_tokens": 3}),
    ScriptedReply(meta={"output_token_logprobs": None}),
    ScriptedReply(edit=lambda reply: reply.update(choices=[])),
    ScriptedReply(edit=lambda reply: reply["choices"][0].update(message=None)),
    ScriptedReply(edit=lambda reply: reply["choices"][0]["message"].update(content=["x"], tool_calls="x")),
    ScriptedReply(edit=lambda reply: reply["choices"][0].update(finish_reason="odd")),
)


def list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every member of a JSON value: what holds it, and its key there."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(members):
        yield value, key
        yield from list_places(inner)


def mutate(draw: random.Random, body: Any) -> Any:
    """The body with a few members replaced, removed, doubled or added."""
    body = copy.deepcopy(body)
    for _ in range(draw.randint(0, 3)):
        places = list(list_places(body))
        if not places:
            break
        holder, key = draw.choice(places)
        match draw.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 2 if isinstance(holder, dict):
                holder[draw.choice(KEYS)] = copy.deepcopy(draw.choice(VALUES))
            case _:
                holder[key] = copy.deepcopy(draw.choice(VALUES))
    return body


def read_delivery(reply: Reply, dialect: str) -> str | None:
    """The id of a reply that was delivered; None for an error, which must be one that has a form and a reason."""
    if reply.status != 200:
        assert reply.status in (400, 404, 413, 429, 502, 503, 504, 529), reply.body
        assert reply.json()["error"]["message"]
        return None
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.json()["id"]
    events = [event.data for event in parse_events(reply.body)]
    if dialect == "chat":
        assert events[-1] == "[DONE]", events[-1]
        return json.loads(events[0])["id"]
    if dialect == "messages":
        assert json.loads(events[-1])["type"] == "message_stop"
        return json.loads(events[0])["message"]["id"]
    assert json.loads(events[-1])["type"] in ("response.completed", "response.incomplete")
    return json.loads(events[-1])["response"]["id"]


def list_recorded(agent: Agent) -> list[str]:
    session = agent.site.find_entry(agent.session.removeprefix("/sessions/")).session
    return [turn.completion.response_id for turn in session.forest.turns]


async def converse(agent: Agent) -> None:
    """A few turns, so that bodies have history with calls and results."""
    agent.site.engine.script = [
        ScriptedReply(text="t", reasoning="r", tool_calls=[_call("a"), _call("b")]),
        ScriptedReply(text="u"),
    ]
    agent.say("hi")
    agent.answer([(call.id, "r") for call in await agent.step(max_tokens=9)])
    await agent.step(max_tokens=9)
    agent.say("again")


def _call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize("dialect", AGENTS)
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_odd_turns_in_front_of_a_faulty_engine(dialect: str, version: str) -> None:
    draw = random.Random(f"{dialect} {version}")
    async with running_site(use_session_server=version, abort_grace=0, on_truncated="bridge") as site:
        agent = AGENTS[dialect](site, await site.create())
        await converse(agent)
        sound = {**agent.build_body(), "max_tokens": 9, "temperature": 0.5}
        statuses: set[int] = set()
        for _ in range(ROUNDS):
            site.engine.script = [draw.choice(FAULTS)]
            before = list_recorded(agent)
            body = mutate(draw, {**sound, "stream": draw.random() < 0.5})
            reply = await site.call("POST", f"{agent.session}/{agent.path}", json.dumps(body).encode())
            assert reply.status != 500, body
            statuses.add(reply.status)
            delivered = read_delivery(reply, dialect)
            assert list_recorded(agent) == ([*before, delivered] if delivered else before), body
        assert {200, 400, 502} <= statuses
        site.engine.script = []
        assert (await agent.ask(max_tokens=9)).status == 200


RAW_BODIES = (
    b"",
    b"null",
    b"[]",
    b"3",
    b"{",
    b"\xff\xfe{}",
    b'{"a": NaN}',
    b'{"messages": [{"role": "user"',
    b"[" * 9999,
)


@pytest.mark.parametrize("dialect", AGENTS)
async def test_bodies_that_are_no_object_are_refused(dialect: str) -> None:
    async with running_site() as site:
        session = await site.create()
        for raw in RAW_BODIES:
            reply = await site.call("POST", f"{session}/{AGENTS[dialect].path}", raw)
            assert (reply.status, read_delivery(reply, dialect)) == (400, None), raw


CONTROL: tuple[dict[str, Any], ...] = (
    {"sampling_params": {"temperature": 1, "max_tokens": 5}, "metadata": {}, "ttl_s": 5, "history": "tree"},
    {"max_seq_len": 100, "metadata": {"reward": 1}},
    {"mode": "retract", "forward": False},
    {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
)


async def list_routes(site: Site) -> list[tuple[str, str]]:
    document = (await site.call("GET", "/openapi.json")).json()
    return [(method.upper(), path) for path, each in sorted(document["paths"].items()) for method in each]


async def test_odd_calls_of_every_documented_route() -> None:
    draw = random.Random(1)
    async with running_site(gate_timeout=0.01, allow_unrecorded=True) as site:
        routes = await list_routes(site)
        session = (await site.create()).removeprefix("/sessions/")
        for _ in range(4 * ROUNDS):
            method, path = draw.choice(routes)
            name = draw.choice([session, session, "0" * 32, "%2e%2e", "x", "é"])
            if path.startswith("/engine"):
                site.engine.resume()
            site.engine.script = [draw.choice(FAULTS)]
            body = json.dumps(mutate(draw, draw.choice(CONTROL))).encode() if method == "POST" else None
            reply = await site.call(method, re.sub(r"{\w+}", name, path), body, x_api_key=name)
            assert reply.status != 500, (method, path, body, reply.body)
            if (await site.call("HEAD", f"/sessions/{session}")).status == 404 or path == "/engine/abort":
                session = (await site.create()).removeprefix("/sessions/")
            await site.call("POST", "/engine/continue", {})
