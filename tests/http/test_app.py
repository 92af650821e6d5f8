"""The server over real sockets.

1. Sessions are made, listed, shown, ended; samples come as one payload; repeating a collect gives the same bytes and
   counts nothing twice.
2. Bad input gets its status, a message and a code, and changes nothing.
3. Probes are answered without an engine call; health says how engines are.
4. Other routes of a session pass through; those that generate or steer do not.
5. One Server, one Date header on every reply; what an engine says of its own framing is not copied.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from httpkit import Site, running_site, serving
from servicekit import assistant, user
from turnkeeper.samples import decode_samples
from turnkeeper.testing import ScriptedEngine, ScriptedReply, unreachable_url

VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])


async def play(site: Site, session: str, turns: int = 3) -> list[dict[str, Any]]:
    """A conversation of a few turns; its messages."""
    messages: list[dict[str, Any]] = []
    for index in range(turns):
        messages.append(user(f"question {index}"))
        reply = await site.chat(session, messages)
        assert reply.status == 200, reply.body
        messages.append(reply.json()["choices"][0]["message"])
    return messages


@VERSIONS
async def test_a_session_from_creation_to_samples(version: str) -> None:
    async with running_site(use_session_server=version) as site:
        session = await site.create(metadata={"task": 1})
        messages = await play(site, session)
        shown = (await site.call("GET", session)).json()
        assert list(shown) == ["session_id", "records", "metadata"]
        assert [record["request"]["input_ids"] for record in shown["records"]] == [
            request.json["input_ids"] for request in site.engine.generations
        ]
        assert shown["records"][-1]["request"]["messages"] == messages[:-1]
        assert ("tree" in shown["metadata"]) == (version == "v2")
        assert shown["metadata"]["turnkeeper"]["metadata"] == {"task": 1}
        first = await site.call("POST", f"{session}/samples", {"max_seq_len": None})
        again = await site.call("POST", f"{session}/samples", {"max_seq_len": None})
        assert first.body == again.body
        assert first.headers["content-type"] == "application/octet-stream"
        (sample,) = decode_samples(first.body).samples
        assert sample.tokens.tolist() == shown["metadata"]["accumulated_token_ids"]
        assert (await site.call("DELETE", session)).status == 204
        assert (await site.call("DELETE", session)).status == 404


async def test_records_are_complete() -> None:
    async with running_site() as site:
        session = await site.create()
        await play(site, session, 1)
        (record,) = (await site.call("GET", session)).json()["records"]
        assert set(record) == {
            "timestamp",
            "request_timestamp",
            "method",
            "path",
            "status_code",
            "request",
            "response",
        }
        meta = record["response"]["choices"][0]["meta_info"]
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]
        assert meta["weight_version"] == "default"


async def test_sessions_are_listed_in_pages() -> None:
    async with running_site() as site:
        made = sorted([(await site.create()).removeprefix("/sessions/") for _ in range(3)])
        first = (await site.call("GET", "/sessions?limit=2")).json()
        assert [session["session_id"] for session in first["sessions"]] == made[:2]
        rest = (await site.call("GET", f"/sessions?limit=2&after={first['next']}")).json()
        assert [session["session_id"] for session in rest["sessions"]] == made[2:]
        assert rest["next"] is None
        assert set(first["sessions"][0]) >= {"session_id", "created_at", "turns", "bytes", "in_flight"}


BAD_BODIES: dict[str, tuple[bytes, int]] = {
    "malformed": (b'{"messages": [', 400),
    "list": (b"[]", 400),
    "null": (b"null", 400),
    "invalid utf-8": (b'{"a": "\xff"}', 400),
    "nan": (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
    "no messages": (b"{}", 400),
    "unknown role": (b'{"messages": [{"role": "robot", "content": "x"}]}', 400),
    "three choices": (b'{"messages": [{"role": "user", "content": "x"}], "n": 3}', 400),
    "ids of its own": (b'{"messages": [{"role": "user", "content": "x"}], "input_ids": [1]}', 400),
    "empty": (b"", 400),
    "too long": (b'{"a": "' + b"x" * 5000 + b'"}', 413),
}


@pytest.mark.parametrize("stream", ["", "?stream=1"])
async def test_a_bad_turn_is_refused_and_changes_nothing(stream: str) -> None:
    async with running_site(max_body_bytes=4096) as site:
        session = await site.create()
        await play(site, session, 1)
        for name, (body, status) in BAD_BODIES.items():
            reply = await site.call("POST", f"{session}/v1/chat/completions{stream}", body)
            assert reply.status == status, name
            assert set(reply.json()["error"]) == {"message", "type", "code", "param"}
            assert reply.headers["x-should-retry"] == "false"
        assert len((await site.call("GET", session)).json()["records"]) == 1
        assert len(site.engine.generations) == 1


BAD_CALLS: dict[str, tuple[str, str, Any, int, str]] = {
    "unknown session": ("GET", "/sessions/" + "0" * 32, None, 404, "session_not_found"),
    "odd session": ("GET", "/sessions/x%2f..", None, 404, "session_not_found"),
    "samples of an unknown session": ("POST", f"/sessions/{'0' * 32}/samples", {}, 404, "session_not_found"),
    "unknown key": ("POST", "/sessions", {"x": 1}, 400, "request"),
    "list": ("POST", "/sessions", [], 400, "request"),
    "bad pin": ("POST", "/sessions", {"sampling_params": {"temperature": "hot"}}, 400, "request"),
    "unknown route": ("GET", "/nowhere", None, 404, "route_not_served"),
    "unknown method": ("PATCH", "/sessions", {}, 405, "method_not_allowed"),
    "bad page": ("GET", "/sessions?limit=0", None, 400, "request"),
    "bad mode": ("POST", "/engine/pause", {"mode": "soft"}, 400, "request"),
    "bad forward": ("POST", "/engine/continue", {"forward": "no"}, 400, "request"),
}


async def test_a_bad_call_of_the_control_plane_is_refused() -> None:
    async with running_site() as site:
        for name, (method, path, body, status, code) in BAD_CALLS.items():
            reply = await site.call(method, path, body)
            assert (reply.status, reply.json()["code"]) == (status, code), name
            assert isinstance(reply.json()["error"], str)
        assert (await site.call("GET", "/sessions")).json()["sessions"] == []


async def test_what_no_route_takes_is_refused_counted_and_reported_like_any_other_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running_site() as site:
        for method, path, status, allowed in (
            ("GET", "/nowhere", 404, None),
            ("PATCH", "/sessions", 405, "GET, HEAD, POST"),
            ("DELETE", "/health", 405, "GET, HEAD"),
            ("TRACE", "/sessions/x/y", 405, "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"),
        ):
            reply = await site.call(method, path)
            assert (reply.status, reply.headers.get("allow")) == (status, allowed), path
            assert reply.headers["x-should-retry"] == "false"
            last = caplog.messages[-1]
            assert last.startswith(f"request_failed request={reply.headers['x-request-id']} method={method} path=")
            assert f" status={status} code={reply.json()['code']}" in last
        counted = (await site.call("GET", "/metrics")).body.decode()
        assert 'turnkeeper_errors_total{code="route_not_served"} 1.0' in counted
        assert 'turnkeeper_errors_total{code="method_not_allowed"} 3.0' in counted


async def test_bad_samples_requests_are_refused() -> None:
    async with running_site() as site:
        session = await site.create()
        for body in ({"max_seq_len": 0}, {"max_seq_len": "9"}, {"metadata": 1}, {"x": 1}):
            assert (await site.call("POST", f"{session}/samples", body)).status == 400
        assert decode_samples((await site.call("POST", f"{session}/samples")).body).empty_reason == "no_records"


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_reward_is_a_number_or_an_object_under_both_histories(version: str) -> None:
    async with running_site(use_session_server=version) as site:
        session = await site.create(metadata={"task": 7})
        await site.chat(session, [user("a")])
        for bad in ("1.0", True, [1.0]):
            reply = await site.call("POST", f"{session}/samples", {"metadata": {"reward": bad}})
            assert (reply.status, reply.json()["code"]) == (400, "request")
            assert "metadata.reward must be a number or an object" in reply.json()["error"]
        raw = b'{"metadata": {"reward": NaN}}'
        assert (await site.call("POST", f"{session}/samples", raw)).status == 400
        for good in (1, 0.5, {"a": 1}, None):
            body = {"metadata": {"reward": good, "stage": "final"}}
            batch = decode_samples((await site.call("POST", f"{session}/samples", body)).body)
            [sample] = batch.samples
            assert sample.reward == good
            assert sample.metadata["stage"] == "final"
            assert sample.metadata["turnkeeper"]["session_metadata"] == {"task": 7}
            assert batch.session_metadata["agent"] == body["metadata"]


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_turn_is_rewarded_by_the_id_of_its_reply(version: str) -> None:
    async with running_site(use_session_server=version) as site:
        session = await site.create()
        first = (await site.chat(session, [user("a")])).json()
        again = [user("a"), first["choices"][0]["message"], user("b")]
        second = (await site.chat(session, again)).json()
        body = {"metadata": {"reward": 0.25}, "rewards": {first["id"]: {"format": 1}, second["id"]: 2.0}}
        [sample] = decode_samples((await site.call("POST", f"{session}/samples", body)).body).samples
        assert sample.reward == 2.0
        assert [turn["reward"] for turn in sample.metadata["turnkeeper"]["turns"]] == [{"format": 1}, 2.0]
        assert [turn["response_id"] for turn in sample.metadata["turnkeeper"]["turns"]] == [first["id"], second["id"]]


BAD_REWARDS: dict[str, tuple[object, str]] = {
    "an unknown id": ({"chatcmpl-0": 1.0}, "0 turns of the session have the response id 'chatcmpl-0'"),
    "a list": ([1.0], "rewards must be an object, got a list"),
    "a text": ({"chatcmpl-0": "1.0"}, "rewards.chatcmpl-0 must be a number or an object, got a string"),
    "null": ({"chatcmpl-0": None}, "rewards.chatcmpl-0 must be a number or an object, got null"),
    "a boolean": ({"chatcmpl-0": True}, "rewards.chatcmpl-0 must be a number or an object, got a boolean"),
}


async def test_rewards_that_nobody_would_get_are_refused() -> None:
    async with running_site() as site:
        session = await site.create()
        await site.chat(session, [user("a")])
        for name, (rewards, message) in BAD_REWARDS.items():
            reply = await site.call("POST", f"{session}/samples", {"rewards": rewards})
            assert (reply.status, reply.json()["code"]) == (400, "request"), name
            assert message in reply.json()["error"], name


async def test_a_compaction_and_a_sub_agent_drop_nothing_of_the_main_agent() -> None:
    """The agent's last word is a leaf beside a sub-agent's turn and a summary, whose reply opens another root."""
    summary = "the login page drops its cookie before the redirect; the test shows it; nothing is mended yet"
    engine = ScriptedEngine(
        [ScriptedReply(text=text) for text in ("start", "last word", "a title", summary, "goes on")]
    )
    async with running_site(engine, use_session_server="v2") as site:
        session = await site.create()
        await site.chat(session, [user("mend it")])
        history = [user("mend it"), assistant("start")]
        last = (await site.chat(session, [*history, user("go on")])).json()["id"]
        url = f"{site.url}{session}/v1/chat/completions"
        for headers, asked in (({"x-claude-code-agent-id": "a7"}, "a title?"), ({}, "summarise what was done")):
            body = {"messages": [*history, user(asked)]}
            async with site.http.post(url, json=body, headers=headers) as reply:
                assert reply.status == 200
        await site.chat(session, [user(f"This goes on from an earlier session. Summary: {summary}")])
        samples = decode_samples((await site.call("POST", f"{session}/samples")).body).samples
        metadata = (await site.call("GET", session)).json()["metadata"]
    assert last in [sample.metadata["leaf"]["response_id"] for sample in samples]
    assert [sample.metadata["turnkeeper"]["rollout_leaves"] for sample in samples] == [4] * 4
    assert "dropped_leaves" not in metadata["turnkeeper"]


async def test_each_token_and_each_dropped_leaf_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "turnkeeper.sessions")
    async with running_site(use_session_server="v2") as site:
        session = await site.create()
        for text in ("a", "a", "b"):
            await site.chat(session, [user(text)])
            for _ in range(2):
                assert (await site.call("POST", f"{session}/samples")).status == 200
        text = (await site.call("GET", "/metrics")).body.decode()
    metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    collected = {key: float(value) for key, value in metrics.items() if key.startswith("turnkeeper_tokens_collected_t")}
    assert sum(collected.values()) == float(metrics["turnkeeper_tokens_sampled_total"])
    assert metrics['turnkeeper_leaves_dropped_total{cause="superseded"}'] == "1.0"
    assert metrics["turnkeeper_collects_total"] == "6.0"
    dropped = [record.getMessage() for record in caplog.records if record.getMessage().startswith("leaf_dropped")]
    assert dropped == [f"leaf_dropped session={session.rsplit('/', 1)[1]} turn=0 cause=superseded by=1"]


async def test_an_engine_that_is_not_there_is_a_502_and_the_session_stays_usable() -> None:
    with unreachable_url() as nowhere:
        async with serving(nowhere) as (url, _), aiohttp.ClientSession() as http:
            async with http.post(f"{url}/sessions") as made:
                session = (await made.json())["session_id"]
            body = {"messages": [user("a")]}
            for _ in range(2):
                async with http.post(f"{url}/sessions/{session}/v1/chat/completions", json=body) as reply:
                    assert reply.status == 502
                    assert nowhere in (await reply.json())["error"]["message"]
            async with http.get(f"{url}/health") as health:
                assert health.status == 200
                assert (await health.json())["engine"] == "unreachable"


LACKING = {
    "no logprobs": ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].pop("output_token_logprobs")),
    "no meta_info": ScriptedReply(edit=lambda reply: reply["choices"][0].pop("meta_info")),
    "another count": ScriptedReply(edit=lambda reply: reply["choices"][0]["meta_info"].update(completion_tokens=99)),
    "no choices": ScriptedReply(edit=lambda reply: reply.update(choices=[])),
    "not json": ScriptedReply(body=b"<html>"),
}


async def test_a_reply_that_lacks_what_a_turn_needs_is_a_502_and_not_recorded() -> None:
    async with running_site(ScriptedEngine(LACKING.values())) as site:
        session = await site.create()
        for name in LACKING:
            reply = await site.chat(session, [user("a")])
            assert (reply.status, reply.json()["error"]["code"]) == (502, "engine_protocol"), name
        assert (await site.call("GET", session)).json()["records"] == []
        assert (await site.chat(session, [user("a")])).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_own_refusals_pass_through(stream: bool) -> None:
    replies = [ScriptedReply(status=429, headers={"Retry-After": "7"}), ScriptedReply(status=400)]
    async with running_site(ScriptedEngine(replies)) as site:
        session = await site.create()
        busy = await site.chat(session, [user("a")], stream=stream)
        assert (busy.status, busy.headers["retry-after"]) == (429, "7")
        refused = await site.chat(session, [user("a")], stream=stream)
        assert (refused.status, refused.headers["x-should-retry"]) == (400, "false")


PROBES = [("HEAD", "/"), ("GET", "/"), ("GET", "/v1/models"), ("GET", "/health")]
SESSION_PROBES = [
    ("HEAD", ""),
    ("HEAD", "/"),
    ("HEAD", "/api/hello"),
    ("HEAD", "/v1"),
    ("GET", "/v1"),
    ("GET", "/v1/models"),
]


async def test_probes_are_answered_without_an_engine_call() -> None:
    async with running_site() as site:
        session = await site.create()
        await site.parts.monitor.poll()
        before = len(site.engine.requests)
        for method, path in [*PROBES, *((method, session + path) for method, path in SESSION_PROBES)]:
            assert (await site.call(method, path)).status == 200, path
        assert (await site.call("HEAD", f"/sessions/{'0' * 32}")).status == 404
        assert site.engine.generations == []
        assert len(site.engine.requests) == before


async def test_other_routes_pass_through_with_the_routing_key() -> None:
    async with running_site() as site:
        session = await site.create()
        reply = await site.call("GET", f"{session}/model_info?a=b", x_custom="1", authorization="Bearer secret")
        assert reply.json()["model_path"] == "scripted"
        seen = next(request for request in site.engine.requests if request.query == "a=b")
        assert seen.header("x-smg-routing-key") == session.removeprefix("/sessions/")
        assert seen.header("x-custom") == "1"
        assert seen.header("authorization") is None


async def test_routes_that_generate_or_steer_do_not_pass() -> None:
    async with running_site() as site:
        session = await site.create()
        for path in ("generate", "v1/completions", "inference/v1/generate"):
            reply = await site.call("POST", f"{session}/{path}", {})
            assert (reply.status, reply.json()["code"]) == (400, "unrecorded_generation")
        for path in ("pause_generation", "flush_cache", "update_weights_from_disk", "Flush_Cache/"):
            reply = await site.call("POST", f"{session}/{path}", {})
            assert (reply.status, reply.json()["code"]) == (404, "route_not_served"), path
        assert site.engine.generations == []


async def test_unrecorded_generation_can_be_allowed() -> None:
    async with running_site(allow_unrecorded=True) as site:
        session = await site.create()
        assert (await site.call("POST", f"{session}/generate", {"input_ids": [1, 2]})).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/model_info"])
async def test_framing_headers_are_the_servers_own(path: str) -> None:
    odd = {"SERVER": "engine", "dAtE": "yesterday", "Connection": "close", "X-Kept": "1"}
    async with running_site(ScriptedEngine(default=ScriptedReply(headers=odd))) as site:
        session = await site.create()
        body = {"messages": [user("a")]} if path.startswith("/v1") else None
        reply = await site.call("POST" if body else "GET", session + path, body)
        assert reply.status == 200
        assert len(reply.headers.getall("server", [])) <= 1
        assert len(reply.headers.getall("date", [])) <= 1
        assert "engine" not in reply.headers.getall("server", [])
        assert "yesterday" not in reply.headers.getall("date", [])


async def test_the_key_names_the_session_where_the_path_does_not() -> None:
    async with running_site() as site:
        session_id = (await site.create()).removeprefix("/sessions/")
        body = {"messages": [user("a")]}
        for headers in ({"authorization": f"Bearer {session_id}"}, {"x_api_key": session_id}):
            assert (await site.call("POST", "/v1/chat/completions", body, **headers)).status == 200
        for headers in ({}, {"authorization": "Bearer nobody"}):
            refused = await site.call("POST", "/v1/chat/completions", body, **headers)
            assert (refused.status, refused.json()["error"]["code"]) == (401, "authentication")


async def test_a_server_with_keys_asks_for_them() -> None:
    async with running_site(api_key="secret") as site:
        assert (await site.call("POST", "/sessions")).status == 401
        made = await site.call("POST", "/sessions", authorization="Bearer secret")
        session = f"/sessions/{made.json()['session_id']}"
        body = {"messages": [user("a")]}
        assert (await site.call("POST", f"{session}/v1/chat/completions", body)).status == 401
        assert (await site.call("POST", f"{session}/v1/chat/completions", body, x_api_key="secret")).status == 200


async def test_what_the_server_says_of_itself_asks_for_its_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\nsecond\n")
    async with running_site(api_key_file=str(tmp_path / "keys")) as site:
        await site.parts.monitor.poll()
        for path in ("/metrics", "/docs", "/openapi.json"):
            for headers in ({}, {"x_api_key": "third"}, {"authorization": "Bearer \u00e9"}):
                assert (await site.call("GET", path, **headers)).status == 401, path
            for key in ("first", "second"):
                assert (await site.call("GET", path, x_api_key=key)).status == 200, path
        open_health = (await site.call("GET", "/health")).json()
        assert list(open_health) == ["status", "session_server_instance_id", "engine"]
        assert (await site.call("GET", "/health", x_api_key="first")).json()["engines"][0]["url"] == site.engine_url


async def test_a_pause_holds_turns_back_until_the_engines_go_on() -> None:
    async with running_site() as site:
        session = await site.create()
        paused = await site.call("POST", "/engine/pause", {"mode": "in_place", "forward": True})
        assert (paused.status, paused.json()["state"], paused.json()["mode"]) == (200, "paused", "in_place")
        assert paused.json()["engines"] == [{"url": site.engine_url, "ok": True, "error": None}]
        assert site.engine.is_paused
        assert (await site.call("GET", "/health")).json()["engine"] == "paused"
        assert (await site.call("POST", "/engine/pause", {"mode": "in_place"})).status == 200
        assert (await site.call("POST", "/engine/pause", {"mode": "abort"})).status == 400
        assert (await site.call("POST", "/engine/continue", {"forward": True})).json()["state"] == "serving"
        assert not site.engine.is_paused
        assert (await site.chat(session, [user("a")])).status == 200


async def test_a_pause_that_an_engine_refuses_changes_nothing() -> None:
    with unreachable_url() as nowhere:
        async with serving(nowhere) as (url, parts), aiohttp.ClientSession() as http:
            async with http.post(f"{url}/engine/pause", json={"mode": "abort", "forward": True}) as reply:
                assert reply.status == 502
            assert parts.backend.control.state != "paused"


async def test_aborting_ends_turns_in_flight_and_closes_sessions() -> None:
    engine = ScriptedEngine(default=ScriptedReply(wait=asyncio.Event()))
    async with running_site(engine) as site:
        session = await site.create()
        turn = asyncio.create_task(site.chat(session, [user("a")]))
        await engine.wait_for_generations(1)
        assert (await site.call("POST", "/engine/abort")).status == 200
        ended = await turn
        assert (ended.status, ended.headers["x-should-retry"]) == (503, "false")
        assert "retry-after" not in ended.headers
        after = await site.chat(session, [user("a")])
        assert (after.status, after.json()["error"]["code"]) == (404, "session_closed")
        assert len(engine.generations) == 1
        assert (await site.call("GET", session)).status == 200
        assert (await site.call("POST", f"{session}/samples")).status == 200
        assert (await site.call("DELETE", session)).status == 204


async def test_the_openapi_document_lists_every_route() -> None:
    async with running_site() as site:
        document = (await site.call("GET", "/openapi.json")).json()
        assert "post" in document["paths"]["/sessions/{session_id}/v1/chat/completions"]
        assert {"get", "head", "delete"} <= set(document["paths"]["/sessions/{session_id}"])
        assert (await site.call("GET", "/docs")).status == 200


async def test_a_stream_is_recorded_like_a_reply() -> None:
    async with running_site() as site:
        session = await site.create()
        stream = await site.chat(session, [user("a")], stream=True)
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.body.endswith(b"data: [DONE]\n\n")
        following = [user("a"), assistant("reply 1"), user("b")]
        assert (await site.chat(session, following)).status == 200
        assert len((await site.call("GET", session)).json()["records"]) == 2


async def test_readiness_asks_for_no_key_and_follows_the_engine() -> None:
    async with running_site(api_key="secret") as site:
        await site.parts.monitor.poll()
        ready = await site.call("GET", "/ready")
        assert (ready.status, ready.json()["engines"]["serving"]) == (200, 1)
        assert (await site.call("HEAD", "/ready")).status == 200
        assert site.engine_url not in ready.body.decode()
    with unreachable_url() as nowhere:
        async with serving(nowhere) as (url, parts), aiohttp.ClientSession() as http:
            await parts.monitor.poll()
            async with http.get(f"{url}/ready") as reply:
                assert (reply.status, (await reply.json())["reason"]) == (503, "no_engine")
