"""Replies that no engine should give, to a real server.

1. A reply that contradicts itself or lacks what a turn needs is a 502, streamed or not, in either history, and nothing
   is recorded; one that is merely odd is recorded, and the agent's replay of it continues the session.
2. Whatever came, the session can be shown and collected, every sampled token is accounted for, and the next turn works.
3. A status of the engine becomes the server's own, never a 500.
"""

from collections.abc import Callable
from typing import Any

import pytest

from httpkit import Site, running_site
from servicekit import get_renderer, user
from traps.untouched import check_sound
from turnkeeper.testing import ScriptedEngine, ScriptedReply

Edit = Callable[[dict[str, Any]], object]


def top(**fields: Any) -> Edit:
    return lambda reply: reply.update(fields)


def choice(**fields: Any) -> Edit:
    return lambda reply: reply["choices"][0].update(fields)


def message(**fields: Any) -> Edit:
    return lambda reply: reply["choices"][0]["message"].update(fields)


def meta(**fields: Any) -> Edit:
    return lambda reply: reply["choices"][0]["meta_info"].update(fields)


def first_pair(place: int, value: Any) -> Edit:
    return lambda reply: reply["choices"][0]["meta_info"]["output_token_logprobs"][0].__setitem__(place, value)


def pairs(change: Callable[[list[Any]], object]) -> Edit:
    return lambda reply: change(reply["choices"][0]["meta_info"]["output_token_logprobs"])


def call(**fields: Any) -> Edit:
    return message(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"} | fields}])


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


REFUSED: dict[str, Edit] = {
    "a second choice": lambda reply: reply["choices"].append(reply["choices"][0]),
    "choices that are null": top(choices=None),
    "a choice that is null": top(choices=[None]),
    "no message": choice(message=None),
    "a message in a list": choice(message=[]),
    "content in parts": message(content=[{"type": "text", "text": "a"}]),
    "content that is a number": message(content=5),
    "calls that are an object": message(tool_calls={"a": 1}),
    "a call that is null": message(tool_calls=[None]),
    "a call without function": message(tool_calls=[{"id": "a"}]),
    "a call of nothing": call(name=None),
    "a call of an empty name": call(name=""),
    "a message nested too deep": message(extra=nest(200)),
    "no finish reason": lambda reply: (choice(finish_reason=None)(reply), meta(finish_reason=None)(reply)),
    "an unknown finish reason": choice(finish_reason="eos"),
    "no meta data": choice(meta_info=None),
    "meta data in a list": choice(meta_info=[]),
    "meta data nested too deep": meta(extra=nest(200)),
    "a shorter prompt": meta(prompt_tokens=1),
    "a completion length as a string": meta(completion_tokens="3"),
    "an id beyond 31 bits": first_pair(1, 2**31),
    "an id beyond the vocabulary": first_pair(1, 2**31 - 1),
    "an id beyond 64 bits": first_pair(1, 2**70),
    "a negative id": first_pair(1, -1),
    "a whole id as a double": first_pair(1, 5.0),
    "half an id": first_pair(1, 5.5),
    "an id as a string": first_pair(1, "5"),
    "all ids as strings": pairs(lambda entries: [entry.__setitem__(1, str(entry[1])) for entry in entries]),
    "all ids as doubles": pairs(lambda entries: [entry.__setitem__(1, float(entry[1])) for entry in entries]),
    "an id that is null": first_pair(1, None),
    "a logprob that is NaN": first_pair(0, float("nan")),
    "a logprob of minus infinity": first_pair(0, float("-inf")),
    "a logprob that is null": first_pair(0, None),
    "a logprob as a string": first_pair(0, "-1.0"),
    "a logprob in 400 digits": first_pair(0, -(10**400)),
    "a pair without id": pairs(lambda entries: entries.__setitem__(0, [-1.0])),
    "a pair that is null": pairs(lambda entries: entries.__setitem__(0, None)),
    "a pair that is a string": pairs(lambda entries: entries.__setitem__(0, "ab")),
    "one pair too many": pairs(lambda entries: entries.append([-1.0, 5, None])),
    "one pair lost": pairs(lambda entries: entries.pop()),
    "no pairs": meta(output_token_logprobs=None),
    "no tokens at all": meta(output_token_logprobs=[], completion_tokens=0),
    "spans that overlap": meta(
        weight_versions=[{"version": "a", "start": 0, "end": 2}, {"version": "b", "start": 1, "end": 3}]
    ),
    "a span beyond the end": meta(weight_versions=[{"version": "a", "start": 0, "end": 99}]),
    "a span that runs backwards": meta(weight_versions=[{"version": "a", "start": 2, "end": 1}]),
    "a span that is null": meta(weight_versions=[None]),
}

RECORDED: dict[str, Edit] = {
    "content that is null": message(content=None),
    "no content": lambda reply: reply["choices"][0]["message"].pop("content"),
    "content with a lone surrogate": message(content="a\ud83d b"),
    "another role": message(role="user"),
    "calls that are null": message(tool_calls=None),
    "no calls in a list": message(tool_calls=[]),
    "arguments that are null": call(arguments=None),
    "arguments as an object": call(arguments={"a": 1}),
    "arguments that are no JSON": call(arguments="{"),
    "arguments with a lone surrogate": call(arguments='{"a":"\\ud83d"}'),
    "arguments of 30 digits": call(arguments='{"a":' + "1" * 30 + "}"),
    "deep arguments": call(arguments='{"a":' * 5000 + "1" + "}" * 5000),
    "one call id twice": message(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": "{}"}}] * 2),
    "call ids that are null": message(tool_calls=[{"id": None, "function": {"name": "f", "arguments": "{}"}}] * 2),
    "reasoning in a list": message(reasoning_content=["x"]),
    "members of other roles": message(name=5, tool_call_id=7, function_call={"name": "f", "arguments": "{}"}),
    "an unknown member": message(audio=None, refusal=None, extra=nest(100)),
    "an unknown member that is NaN": message(extra=float("nan")),
    "a finish reason in meta data alone": choice(finish_reason=None),
    "meta data that is NaN": meta(extra=float("nan"), e2e_latency=float("inf")),
    "meta data of 30 digits": meta(extra=10**30),
    "a latency in 400 digits": meta(e2e_latency=10**400),
    "a latency as a string": meta(e2e_latency="fast"),
    "speculation that is no number": meta(spec_accept_token_num=[1], spec_draft_token_num={}, spec_verify_ct=1.5),
    "cached tokens below zero": meta(cached_tokens=-3),
    "cached tokens in 30 digits": meta(cached_tokens=10**30),
    "a whole logprob": first_pair(0, -1),
    "a version that is a number": meta(weight_version=5),
    "a version that is an object": meta(weight_version={}),
    "spans with a gap": meta(weight_versions=[{"version": "a", "start": 1, "end": 2}]),
    "a stop in 30 digits": choice(matched_stop=10**30),
    "no id, no model, no usage": lambda reply: [reply.pop(name) for name in ("id", "model", "usage", "created")],
    "an id that is a number": top(id=5),
    "a prompt length in usage alone": meta(prompt_tokens=None),
    "a prompt length as a string": lambda reply: meta(prompt_tokens=str(reply["usage"]["prompt_tokens"]))(reply),
    "a prompt of unknown length": lambda reply: [meta(prompt_tokens=None)(reply), reply.pop("usage")],
    "rows that nobody asked for": meta(routed_experts="!!!"),
    "rows in a list that nobody asked for": meta(routed_experts=[[1, 2]]),
    "indexer rows that nobody asked for": meta(indexer_topk={"a": 1}, indexer_topk_num_layers="x"),
}


def build_engine() -> ScriptedEngine:
    return ScriptedEngine(encode=lambda text: get_renderer().tokenizer.encode(text).tolist())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_reply_that_cannot_be_a_turn_is_a_502(version: str, stream: bool) -> None:
    async with running_site(build_engine(), use_session_server=version) as site:
        for name, edit in REFUSED.items():
            session = await site.create()
            site.engine.script.append(ScriptedReply(edit=edit))
            failed = await site.chat(session, [user("a")], stream=stream)
            assert (failed.status, failed.json()["error"]["code"]) == (502, "engine_protocol"), (name, failed.body)
            await check_sound(site, session, turns=0)
            assert (await site.chat(session, [user("a")], stream=stream)).status == 200, name
            await check_sound(site, session, turns=1)


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_odd_reply_is_recorded_and_its_replay_goes_on(version: str) -> None:
    async with running_site(build_engine(), use_session_server=version) as site:
        for name, edit in RECORDED.items():
            session = await site.create()
            site.engine.script.append(ScriptedReply(edit=edit))
            reply = await site.chat(session, [user("a")])
            assert reply.status == 200, (name, reply.body)
            await check_sound(site, session, turns=1)
            await go_on(site, session, reply.json()["choices"][0]["message"], name)


async def go_on(site: Site, session: str, said: dict[str, Any], name: str) -> None:
    """The next turn extends the one that said this."""
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "r"} for call in said.get("tool_calls") or ()]
    following = await site.chat(session, [user("a"), said, *(results or [user("b")])])
    assert following.status == 200, (name, following.body)
    (sample,) = (await check_sound(site, session, turns=2)).samples
    turns = sample.metadata["turnkeeper"]["turns"]
    assert len(turns) == 2, name


STATUSES = {
    400: 400,
    422: 400,
    429: 429,
    408: 504,
    413: 413,
    504: 504,
    **dict.fromkeys((201, 204, 206, 301, 302, 304, 307, 401, 403, 404, 409, 410, 500, 502, 503, 599), 502),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_status_of_the_engine_becomes_the_servers_own(stream: bool) -> None:
    async with running_site(build_engine(), abort_grace=0) as site:
        session = await site.create()
        for status, answered in STATUSES.items():
            site.engine.script.append(ScriptedReply(status=status))
            assert (await site.chat(session, [user("a")], stream=stream)).status == answered, status
        await check_sound(site, session, turns=0)
        assert (await site.chat(session, [user("a")], stream=stream)).status == 200


BODIES = {
    "html": b"<html>",
    "nothing": b"",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "null": b"null",
    "a list": b"[]",
    "no utf-8": b'{"a":"\xff"}',
    "a parser bomb": b"[" * 100_000,
    "deep objects": b'{"a":' * 900 + b"1" + b"}" * 900,
    "two objects": b"{}{}",
}


async def test_a_body_that_is_no_reply_is_a_502() -> None:
    async with running_site(build_engine()) as site:
        session = await site.create()
        for name, body in BODIES.items():
            site.engine.script.append(ScriptedReply(body=body))
            failed = await site.chat(session, [user("a")])
            assert (failed.status, failed.json()["error"]["code"]) == (502, "engine_protocol"), name
        await check_sound(site, session, turns=0)
