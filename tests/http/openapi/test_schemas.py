"""The OpenAPI document describes bodies, replies and errors as they are.

1. Each schema is a JSON Schema, each reference leads to one, and none is left over.
2. Every operation says what a success means, and has the schema of its reply and of its errors.
3. What the server replies fits the schema of the reply, without a member that the schema does not name.
4. What the server refuses has a status that the operation lists, and fits the schema of its errors; a key is asked for
   exactly where 401 is listed.
5. The body of a turn names every field that its dialect reads, and a body of a session fits its schema where the server
   takes it, and does not where the server refuses it for one of its members.
"""

import re
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema
import orjson
import pytest

from httpkit import Reply, Site, running_site, serving
from service.sessions.test_storing import play
from service.sessions.test_storing import serving as keeping
from servicekit import build_kit, user
from turnkeeper.dialects.chat import dialect as chat
from turnkeeper.dialects.messages import dialect as messages
from turnkeeper.dialects.responses import dialect as responses
from turnkeeper.fields import FIELDS, is_reaching
from turnkeeper.http.app import build_route_rows
from turnkeeper.http.openapi import SCHEMAS, describe_routes
from turnkeeper.testing import ScriptedEngine

DOCUMENT = describe_routes(build_route_rows(build_kit().backend), version="0")
OPERATIONS = [(method.upper(), path) for path, found in DOCUMENT["paths"].items() for method in found]
QUESTION = {"messages": [{"role": "user", "content": "a"}]}
ASKED = {"input": "a"}


def find_references(value: Any) -> set[str]:
    return set(re.findall(r'"#/components/schemas/([^"]+)"', orjson.dumps(value).decode()))


def find_operation(method: str, path: str) -> dict[str, Any]:
    return DOCUMENT["paths"][path][method.lower()]


def check_reply(method: str, path: str, reply: Reply) -> None:
    """Hold a reply of the server against what the document says of the operation."""
    described = find_operation(method, path)["responses"]
    assert str(reply.status) in described, (method, path, reply.status, reply.body)
    content = described[str(reply.status)].get("content", {})
    if not content:
        assert reply.body == b""
        return
    kind = reply.headers["content-type"].split(";")[0]
    assert kind in content
    if kind == "application/json":
        check_value(content[kind]["schema"], reply.body)


def check_schema(name: str, body: bytes) -> None:
    """Hold JSON against a schema of the document."""
    check_value({"$ref": f"#/components/schemas/{name}"}, body)


def check_value(schema: dict[str, Any], body: bytes) -> None:
    whole = {**schema, "components": {"schemas": SCHEMAS}}
    jsonschema.validate(orjson.loads(body), whole, cls=jsonschema.Draft202012Validator)


# 1, 2: the document by itself.


def test_each_schema_is_one_and_each_reference_leads_to_one() -> None:
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    referred = find_references(DOCUMENT)
    assert referred == SCHEMAS.keys()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_an_operation_says_what_it_replies_and_how_it_fails(method: str, path: str) -> None:
    described = find_operation(method, path)["responses"]
    for status, response in described.items():
        assert len(response["description"].split()) > 2 or status == "200"
        assert response["description"] != "Done."
        assert ("content" in response) == (method != "HEAD" and status != "204")
    assert any(status.startswith("2") for status in described)
    assert any(status.startswith("5") for status in described)


# 3: successes.


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    method: str
    path: str
    body: Any = None
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def name_receipt(self, receipt: str) -> "Call":
        """The call, with the receipt of the last collect where its body names one."""
        named = {name: receipt if value == "{receipt}" else value for name, value in (self.body or {}).items()}
        return replace(self, body=named or self.body)


SESSION = "/sessions/{session_id}"
ANTHROPIC = (("anthropic-version", "2023-06-01"),)
SUCCESSES = [
    Call(method="POST", path="/sessions"),
    Call(method="POST", path="/sessions", body={"metadata": {"a": 1}, "history": "tree", "ttl_s": None}),
    Call(method="POST", path=f"{SESSION}/v1/chat/completions", body=QUESTION),
    Call(method="POST", path=f"{SESSION}/v1/chat/completions", body={**QUESTION, "stream": True}),
    Call(method="POST", path=f"{SESSION}/v1/chat/completions", body={**QUESTION, "logprobs": True, "top_logprobs": 1}),
    Call(method="POST", path=f"{SESSION}/v1/messages", body=QUESTION),
    Call(method="POST", path=f"{SESSION}/v1/messages", body={**QUESTION, "stream": True}),
    Call(method="POST", path=f"{SESSION}/v1/messages/count_tokens", body=QUESTION),
    Call(method="POST", path=f"{SESSION}/v1/responses", body=ASKED),
    Call(method="POST", path=f"{SESSION}/v1/responses", body={**ASKED, "stream": True}),
    Call(method="POST", path=f"{SESSION}/v1/responses/input_tokens", body=ASKED),
    Call(method="POST", path="/v1/chat/completions", body=QUESTION),
    Call(method="POST", path="/v1/messages", body=QUESTION),
    Call(method="POST", path="/v1/messages/count_tokens", body=QUESTION),
    Call(method="POST", path="/v1/responses", body=ASKED),
    Call(method="POST", path="/v1/responses/input_tokens", body=ASKED),
    Call(method="GET", path="/sessions"),
    Call(method="GET", path="/sessions", query="?limit=1&after=0"),
    Call(method="GET", path=SESSION),
    Call(method="HEAD", path=SESSION),
    Call(method="GET", path=SESSION, query="?rows=1&branches=1"),
    Call(method="GET", path="/sessions", query="?order=in_flight&state=open&metadata.a=1"),
    Call(method="POST", path=f"{SESSION}/samples"),
    Call(method="POST", path=f"{SESSION}/samples", body={"max_seq_len": 64, "rewards": {}, "metadata": {"reward": 1}}),
    Call(method="POST", path=f"{SESSION}/ack", body={"receipt": "{receipt}"}),
    Call(method="POST", path=f"{SESSION}/samples", body={"since": "{receipt}"}),
    *(
        Call(method=method, path=f"{prefix}/v1/models{name}", headers=headers)
        for method in ("GET", "HEAD")
        for prefix in (SESSION, "")
        for name in ("", "/{model_id}")
        for headers in ((), ANTHROPIC)
    ),
    *(
        Call(method=method, path=path)
        for method in ("GET", "HEAD")
        for path in (f"{SESSION}/v1", f"{SESSION}/", f"{SESSION}/api/hello", "/", "/health", "/ready")
    ),
    Call(method="GET", path="/metrics"),
    Call(method="POST", path="/engine/pause", body={"mode": "retract", "forward": True}),
    Call(method="POST", path="/engine/continue", body={"forward": True}),
    Call(method="POST", path="/engine/continue"),
    Call(method="DELETE", path=SESSION),
    Call(method="POST", path="/engine/abort"),
]


async def send(site: Site, call: Call, session: str, **headers: str) -> Reply:
    path = call.path.replace("{session_id}", session).replace("{model_id}", "any") + call.query
    return await site.call(call.method, path, call.body, **{**dict(call.headers), **headers})


async def test_what_is_replied_fits_the_schema_of_the_reply() -> None:
    async with running_site() as site:
        session = (await site.create()).removeprefix("/sessions/")
        await site.parts.monitor.poll()  # ready only once an engine has answered
        receipt = ""
        for call in SUCCESSES:
            reply = await send(site, call.name_receipt(receipt), session, x_api_key=session)
            receipt = reply.headers.get("x-turnkeeper-receipt", receipt)
            assert reply.status < 300, (call, reply.body)
            check_reply(call.method, call.path, reply)
    assert {(call.method, call.path) for call in SUCCESSES} == set(OPERATIONS)


@pytest.mark.parametrize("is_admin", [True, False])
async def test_turns_in_flight_fit_the_schemas(is_admin: bool) -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create(metadata={"task": 7})
    await kit.say(session_id, [user("a")])
    for text in ("a", "b"):
        await kit.begin(session_id, [user(text)])
    (row,) = (await kit.service.list_sessions())["sessions"]
    assert row["in_flight"] == 2
    check_schema("SessionRow", orjson.dumps(row))
    for with_branches in (False, True):
        shown = await kit.service.describe(session_id, is_admin=is_admin, with_branches=with_branches)
        assert len(orjson.loads(shown)["metadata"]["turnkeeper"]["in_flight"]) == 2
        check_schema("Session", shown)


async def test_sessions_of_a_store_fit_the_schemas(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kit:
        broken = await play(kit)
        await play(kit)
    with closing(sqlite3.connect(tmp_path / "slot-000" / "sessions.db")) as database, database:
        database.execute("UPDATE events SET record = x'00' WHERE place = 0 AND session = 1")
    async with keeping(tmp_path) as kit:
        page = await kit.service.list_sessions()
    assert [row["session_id"] for row in page["sessions"] if "error" in row] == [broken]
    for row in page["sessions"]:
        check_schema("SessionRow", orjson.dumps(row))


# 4: refusals.


@pytest.fixture
async def keyed() -> AsyncGenerator[Site]:
    async with running_site(api_key="k") as site:
        yield site


async def test_what_is_refused_for_its_key_fits_the_schema_of_errors(keyed: Site) -> None:
    for call in SUCCESSES:
        reply = await send(keyed, call, "0" * 32, authorization="Bearer other")
        check_reply(call.method, call.path, reply)
        assert (reply.status == 401) == ("401" in find_operation(call.method, call.path)["responses"])


async def test_what_is_refused_for_its_session_fits_the_schema_of_errors() -> None:
    async with running_site() as site:
        for call in SUCCESSES:
            if "{session_id}" in call.path:
                reply = await send(site, call, "0" * 32)
                assert reply.status == 404
                check_reply(call.method, call.path, reply)


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b"null", b'{"messages": 5, "input": 5, "mode": 5, "forward": 5, "x": 1}']
)
async def test_what_is_refused_for_its_body_fits_the_schema_of_errors(body: bytes) -> None:
    async with running_site() as site:
        session = (await site.create()).removeprefix("/sessions/")
        for call in SUCCESSES:
            if "requestBody" in find_operation(call.method, call.path):
                sent = Call(method=call.method, path=call.path, body=body)
                reply = await send(site, sent, session, x_api_key=session)
                assert reply.status == 400, (call, reply.body)
                check_reply(call.method, call.path, reply)


@pytest.mark.parametrize(
    ("options", "headers", "status"),
    [({"max_body_bytes": 1000}, {}, 413), ({}, {"content_encoding": "gzip"}, 415)],
    ids=["too large", "compressed"],
)
async def test_what_is_refused_before_it_is_read_fits_the_schema_of_errors(
    options: dict[str, Any], headers: dict[str, str], status: int
) -> None:
    async with running_site(**options) as site:
        session = (await site.create()).removeprefix("/sessions/")
        for call in SUCCESSES:
            if "requestBody" in find_operation(call.method, call.path):
                sent = Call(method=call.method, path=call.path, body={"x": "x" * 2000})
                reply = await send(site, sent, session, x_api_key=session, **headers)
                assert reply.status == status, (call, reply.body)
                check_reply(call.method, call.path, reply)


async def test_what_fails_for_want_of_an_engine_fits_the_schema_of_errors() -> None:
    async with serving("http://127.0.0.1:1") as (url, parts), aiohttp.ClientSession() as http:
        site = Site(url=url, engine_url="", engine=ScriptedEngine(), parts=parts, http=http)
        session = (await site.create()).removeprefix("/sessions/")
        for call in SUCCESSES:
            described = find_operation(call.method, call.path)
            asks_engines = "502" in described["responses"] and (call.body or {}).get("forward", True)
            if asks_engines and "requestBody" in described and call.body is not None:
                reply = await send(site, call, session, x_api_key=session)
                assert reply.status == 502, (call, reply.body)
                check_reply(call.method, call.path, reply)


async def test_what_a_stopping_server_says_fits_its_schema() -> None:
    async with running_site() as site:
        await site.backend.lifecycle.drain()
        for call, status in (
            (Call(method="GET", path="/health"), 503),
            (Call(method="HEAD", path="/health"), 503),
            (Call(method="GET", path="/ready"), 503),
            (Call(method="HEAD", path="/ready"), 503),
            (Call(method="POST", path="/sessions"), 503),
            (Call(method="GET", path="/sessions"), 200),
        ):
            reply = await send(site, call, "0" * 32)
            assert reply.status == status
            check_reply(call.method, call.path, reply)


# 5: bodies.


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        ("ChatRequest", chat.OWN_FIELDS),
        ("MessagesRequest", messages.OWN_FIELDS),
        ("ResponsesRequest", responses.OWN_FIELDS),
    ],
)
def test_the_body_of_a_turn_names_every_field_that_is_read(schema: str, read: frozenset[str]) -> None:
    reaching = {name for name, row in FIELDS.items() if is_reaching(row)}
    assert SCHEMAS[schema]["properties"].keys() == read | reaching


NEW_SESSIONS: list[tuple[Any, bool]] = [
    ({}, True),
    ({"metadata": {"a": [1]}, "ttl_s": 0.5, "history": "linear", "on_truncated": "close"}, True),
    ({"history": None, "ttl_s": None, "max_seq_len": None, "on_truncated": None}, True),
    ({"max_seq_len": 1, "evaluation": True}, True),
    ({"sampling_params": {"temperature": 0.5}, "top_p": 0.9}, True),
    ({"ttl_s": 0}, False),
    ({"ttl_s": "1"}, False),
    ({"max_seq_len": 0}, False),
    ({"max_seq_len": 1.5}, False),
    ({"history": "graph"}, False),
    ({"on_truncated": 1}, False),
    ({"evaluation": "yes"}, False),
    ({"metadata": []}, False),
    ({"name": "x"}, False),
]


@pytest.mark.parametrize(("body", "fits"), NEW_SESSIONS, ids=lambda value: str(value)[:40])
async def test_a_body_of_a_session_fits_its_schema_where_the_server_takes_it(body: Any, fits: bool) -> None:
    schema = {**SCHEMAS["NewSession"], "components": {"schemas": SCHEMAS}}
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is fits
    async with running_site() as site:
        assert (await site.call("POST", "/sessions", body)).status == (200 if fits else 400)
