"""Keys and routes, through the whole server. The table is made of the application's own routes.

1. Every route, called with each kind of key, answers as ``turnkeeper.access`` says: 401 without a known key, 403 with
   one that does not open it, in the caller's dialect, and otherwise as ever. A new route without a row is not served.
2. What a caller without rights is told does not depend on whether the session exists.
3. The decision comes before the body: nothing of it is read.
4. The key of a session stands for the session where the path names none. The admin's key alone names none.
5. A key is said once; it ends with its session; it stands in no record, log, metric or error.
6. Without keys on the server everything is as it was, and no key is given out.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from starlette.routing import Route

from agentkit import AGENTS
from httpkit import Reply, Site, running_site
from servicekit import build_kit, user
from turnkeeper.access import ACCESS, Right
from turnkeeper.dialects import DIALECTS
from turnkeeper.http.app import build_app
from turnkeeper.http.endpoint import Endpoint, list_rights

ADMIN = "admin-key"
UNKNOWN = "0123456789abcdef" * 2
ALL_SCOPES = ("read", "collect", "delete")


def list_routes() -> list[tuple[str, str]]:
    """Every method and path that the application answers, those of its frame included."""
    routes = [route for route in build_app(build_kit().backend).routes if isinstance(route, Route)]
    return sorted((method, route.path) for route in routes for method in route.methods or ())


ROUTES = list_routes()


@dataclass(frozen=True)
class Opened:
    """A session of a server with keys."""

    id: str
    key: str


async def open_session(site: Site, **body: Any) -> Opened:
    made = (await site.call("POST", "/sessions", body, x_api_key=ADMIN)).json()
    assert list(made) == ["session_id", "key"]
    return Opened(made["session_id"], made["key"])


def fill(path: str, session_id: str) -> str:
    return re.sub(r"{\w+(:path)?}", "model_info", path.replace("{session_id}", session_id))


async def knock(site: Site, method: str, path: str, key: str | None, **headers: str) -> Reply:
    keys = {} if key is None else {"authorization": f"Bearer {key}"}
    return await site.call(method, path, {} if method in ("POST", "PUT", "PATCH") else None, **keys, **headers)


def spoil(key: str) -> list[str]:
    """Keys that are nearly one."""
    session_id, secret = key.split("-")[1:]
    return [
        session_id,
        secret,
        f"tk-{session_id}",
        f"tk-{session_id}-",
        f"tk-{session_id}-{secret[:-1]}",
        f"tk-{session_id}-{secret[:-1]}{'0' if secret[-1] != '0' else '1'}",
        f"tk-{session_id}-{'0' * 32}",
        f"tk-{UNKNOWN}-{secret}",
        key.upper(),
        f"{key}0",
        f"sk-{key}",
        f"{key},{key}",
        "\u00e9" * 8,
        "k" * 4000,
    ]


@dataclass(frozen=True)
class Knock:
    """A kind of caller: the scopes of its key, and what it is to its server."""

    scopes: tuple[str, ...] = ()
    is_other: bool = False
    key: str | None = None
    """Another key than that of the session: None for it."""
    is_known: bool = True

    def expect(self, right: Right, path: str) -> int | None:
        """The status of the refusal; None where the request passes."""
        if right is Right.OPEN or self.key == ADMIN:
            return None
        if not self.is_known:
            return 401
        if right is Right.ADMIN or (self.is_other and "{session_id}" in path):
            return 403
        return None if right in ("turn", *self.scopes) else 403


KNOCKS: dict[str, Knock] = {
    "no key": Knock(is_known=False),
    "unknown key": Knock(is_known=False, key="sk-unknown"),
    "session id": Knock(is_known=False, key="{id}"),
    "malformed key": Knock(is_known=False, key="tk-{id}-0"),
    "forged key": Knock(is_known=False, key="tk-{id}-00000000000000000000000000000000"),
    "ended session's key": Knock(is_known=False, key="{ended}"),
    "turn": Knock(),
    "read": Knock(scopes=("read",)),
    "collect": Knock(scopes=("collect",)),
    "delete": Knock(scopes=("delete",)),
    "all scopes": Knock(scopes=ALL_SCOPES),
    "another session's": Knock(scopes=ALL_SCOPES, is_other=True),
    "admin": Knock(key=ADMIN),
}


@pytest.mark.parametrize("knocker", KNOCKS.values(), ids=KNOCKS.keys())
async def test_every_route_answers_as_the_table_says(knocker: Knock) -> None:
    async with running_site(api_key=ADMIN) as site:
        other, ended = [await open_session(site, scopes=list(ALL_SCOPES)) for _ in range(2)]
        assert (await knock(site, "DELETE", f"/sessions/{ended.id}", ended.key)).status == 204
        for method, path in ROUTES:
            mine = await open_session(site, scopes=list(knocker.scopes))
            key = other.key if knocker.is_other else mine.key
            if not knocker.is_known or knocker.key is not None:
                key = None if knocker.key is None else knocker.key.format(id=mine.id, ended=ended.key)
            reply = await knock(site, method, fill(path, mine.id), key)
            expected = knocker.expect(list_rights([method], path)[method], path)
            if expected is None:
                # The admin's key names no session, which such a route then asks for.
                is_unnamed = knocker.key == ADMIN and method == "POST" and path.startswith("/v1/")
                assert (reply.status in (401, 403)) is is_unnamed, (method, path, reply.body)
                assert reply.status < 500, (method, path, reply.body)
            else:
                assert reply.status == expected, (method, path, reply.body)
                assert reply.headers["x-should-retry"] == "false"


def test_a_route_without_a_row_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(ACCESS):
        rest = {each: right for each, right in ACCESS.items() if each != name}
        monkeypatch.setattr("turnkeeper.access.ACCESS", rest)
        if name.replace("HEAD ", "GET ", 1) in rest:
            build_app(build_kit().backend)  # HEAD is read as GET
        else:
            with pytest.raises(LookupError, match=re.escape(name.split(" ")[1])):
                build_app(build_kit().backend)


def test_every_route_stands_behind_the_decision_and_no_row_is_left_over() -> None:
    routes = build_app(build_kit().backend).routes
    assert all(isinstance(route, Route) and isinstance(route.app, Endpoint) for route in routes)
    assert set(ACCESS) <= {f"{method} {path}" for method, path in ROUTES}


TURN_PATHS = [path for dialect in DIALECTS for path in (dialect.path, dialect.count_path) if path]


def read_code(reply: Reply) -> tuple[str, ...]:
    error = reply.json()["error"]
    return (error["type"], error["code"]) if isinstance(error, dict) else (reply.json()["code"],)


@pytest.mark.parametrize("path", TURN_PATHS)
async def test_a_refusal_is_said_in_the_callers_dialect(path: str) -> None:
    async with running_site(api_key=ADMIN) as site:
        mine, other = await open_session(site), await open_session(site)
        for place, key, expected in [
            ("", None, (401, ("authentication_error", "authentication"))),
            ("", mine.id, (401, ("authentication_error", "authentication"))),
            (f"/sessions/{mine.id}", "sk-1", (401, ("authentication_error", "authentication"))),
            (f"/sessions/{mine.id}", other.key, (403, ("permission_error", "permission_denied"))),
        ]:
            reply = await knock(site, "POST", f"{place}/{path}", key)
            assert (reply.status, read_code(reply)) == expected
            assert ("type" in reply.json()) is ("messages" in path)


async def test_models_refuse_in_the_form_of_the_client_that_asks() -> None:
    async with running_site(api_key=ADMIN) as site:
        for path in ("/v1/models", f"/sessions/{UNKNOWN}/v1/models/m"):
            assert read_code(await knock(site, "GET", path, None)) == ("authentication_error", "authentication")
            reply = await knock(site, "GET", path, None, anthropic_version="2023-06-01")
            assert reply.json()["type"] == "error"


async def test_a_caller_without_rights_does_not_learn_which_sessions_there_are() -> None:
    routes = [(method, path) for method, path in ROUTES if "{session_id}" in path]
    async with running_site(api_key=ADMIN, auto_create_sessions=True) as site:
        mine, there, gone = [await open_session(site, scopes=list(ALL_SCOPES)) for _ in range(3)]
        assert (await knock(site, "DELETE", f"/sessions/{gone.id}", ADMIN)).status == 204
        names = (there.id, gone.id, UNKNOWN, "not-an-id", "x%20y", there.key, there.id.upper())
        for (method, path), key in product(routes, [None, "sk-1", there.id, gone.key, mine.key]):
            replies = [await knock(site, method, fill(path, name), key) for name in names]
            shown = {(reply.status, reply.body, reply.headers["content-length"]) for reply in replies}
            assert len(shown) == 1, (method, path, shown)
            assert replies[0].status == (403 if key == mine.key else 401)
        listed = (await knock(site, "GET", "/sessions", ADMIN)).json()["sessions"]
        assert {each["session_id"] for each in listed} == {mine.id, there.id}


async def test_the_decision_comes_before_the_body() -> None:
    async with running_site(api_key=ADMIN) as site:
        mine, other = await open_session(site), await open_session(site)
        host, _, port = site.url.removeprefix("http://").partition(":")
        for method, path in ROUTES:
            right = list_rights([method], path)[method]
            if right is Right.OPEN or method == "HEAD":
                continue
            reader, writer = await asyncio.open_connection(host, int(port))
            key = other.key if "{session_id}" in path or right is Right.ADMIN else "sk-1"
            head = f"{method} {fill(path, mine.id)} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\n"
            writer.write(f"{head}content-length: 999999999999\r\n\r\n".encode())  # beyond every limit, and never sent
            status = (await reader.readline()).split()[1]
            assert status == (b"401" if key == "sk-1" else b"403"), (method, path)
            writer.close()


@pytest.mark.parametrize("index", range(14))
async def test_what_is_nearly_a_key_is_none(index: int) -> None:
    async with running_site(api_key=ADMIN, auto_create_sessions=True) as site:
        mine = await open_session(site)
        for headers in ({"authorization": f"Bearer {spoil(mine.key)[index]}"}, {"x_api_key": spoil(mine.key)[index]}):
            for path in ("", f"/sessions/{mine.id}", f"/sessions/{UNKNOWN}"):
                body = {"messages": [user("a")]}
                reply = await site.call("POST", f"{path}/v1/chat/completions", body, **headers)
                assert (reply.status, read_code(reply)[1]) == (401, "authentication")
        assert site.engine.generations == []
        assert len((await knock(site, "GET", "/sessions", ADMIN)).json()["sessions"]) == 1


WAYS: dict[str, Mapping[str, str]] = {
    "bearer": {"authorization": "Bearer {key}"},
    "bearer in lower case": {"authorization": "bearer  {key} "},
    "x-api-key": {"x_api_key": "{key}"},
    "both": {"authorization": "Bearer {key}", "x_api_key": "{key}"},
    "both, one unknown": {"authorization": "Bearer sk-stale", "x_api_key": "{key}"},
    "both, one of another session": {"authorization": "Bearer {key}", "x_api_key": "{other}"},
    "admin beside it": {"authorization": "Bearer admin-key", "x_api_key": "{key}"},
    "admin beside the id": {"authorization": "Bearer admin-key", "x_api_key": "{id}"},
}


@pytest.mark.parametrize("dialect", AGENTS)
@pytest.mark.parametrize("headers", WAYS.values(), ids=WAYS.keys())
async def test_a_key_stands_for_its_session(dialect: str, headers: Mapping[str, str]) -> None:
    async with running_site(api_key=ADMIN) as site:
        mine, other = await open_session(site), await open_session(site)
        sent = {name: text.format(key=mine.key, other=other.key, id=mine.id) for name, text in headers.items()}
        for place in ("", f"/sessions/{mine.id}"):
            agent = AGENTS[dialect](site, place, headers=sent)
            agent.say("hi")
            await agent.step(max_tokens=5)
        for session, turns in ((mine, 2), (other, 0)):
            info = await knock(site, "GET", f"/sessions/{session.id}", ADMIN)
            assert len(info.json()["metadata"]["turnkeeper"]["turns"]) == turns


async def test_the_admins_key_alone_names_no_session_and_opens_none() -> None:
    hex_key = "f0" * 16
    async with running_site(api_key=hex_key, auto_create_sessions=True) as site:
        body = {"messages": [user("a")]}
        reply = await knock(site, "POST", "/v1/chat/completions", hex_key)
        assert (reply.status, read_code(reply)) == (401, ("authentication_error", "authentication"))
        assert (await site.call("GET", "/sessions", x_api_key=hex_key)).json()["sessions"] == []
        named = await site.call("POST", f"/sessions/{UNKNOWN}/v1/chat/completions", body, x_api_key=hex_key)
        assert named.status == 200
        keyed = await site.call(
            "POST", "/v1/chat/completions", body, x_api_key="ab" * 16, authorization=f"Bearer {hex_key}"
        )
        assert keyed.status == 200
        sessions = (await site.call("GET", "/sessions", x_api_key=hex_key)).json()["sessions"]
        assert {each["session_id"] for each in sessions} == {UNKNOWN, "ab" * 16}


async def test_a_key_ends_with_its_session() -> None:
    async with running_site(api_key=ADMIN) as site:
        mine = await open_session(site, scopes=["delete", "read"])
        short = await open_session(site, ttl_s=1e-6)
        assert (await knock(site, "GET", f"/sessions/{mine.id}", mine.key)).status == 200
        assert (await knock(site, "DELETE", f"/sessions/{mine.id}", mine.key)).status == 204
        for opened, right in product((mine, short), ("GET", "DELETE")):
            assert (await knock(site, right, f"/sessions/{opened.id}", opened.key)).status == 401
            reply = await knock(site, "POST", "/v1/messages", opened.key)
            assert (reply.status, read_code(reply)[1]) == (401, "authentication")
            assert "its session has ended" in reply.json()["error"]["message"]


REWARDS: list[dict[str, Any]] = [
    {"rewards": {"chatcmpl-1": 1.0}},
    {"metadata": {"reward": 1}},
    {"metadata": {"reward": 0}},
    {"metadata": {"reward": {"format": 1}, "x": 1}},
    {"rewards": {"chatcmpl-1": 1.0}, "metadata": {"reward": 1}},
]
NO_REWARDS: list[dict[str, Any]] = [{}, {"rewards": {}}, {"rewards": None}, {"metadata": {"reward": None}}]


@pytest.mark.parametrize("body", REWARDS)
async def test_no_agent_gives_itself_a_reward(body: dict[str, Any]) -> None:
    async with running_site(api_key=ADMIN) as site:
        mine = await open_session(site, scopes=["collect"])
        taken = await site.call("POST", "/v1/chat/completions", {"messages": [user("a")]}, x_api_key=mine.key)
        named = {"rewards": {taken.json()["id"]: 1.0}} if "rewards" in body else {}
        reply = await site.call("POST", f"/sessions/{mine.id}/samples", body | named, x_api_key=mine.key)
        assert (reply.status, reply.json()["code"]) == (403, "permission_denied")
        assert (await site.call("POST", f"/sessions/{mine.id}/samples", body | named, x_api_key=ADMIN)).status == 200
        for rest in NO_REWARDS:
            assert (await site.call("POST", f"/sessions/{mine.id}/samples", rest, x_api_key=mine.key)).status == 200


BAD_SCOPES: list[Any] = ["read", {}, 1, True, ["reward"], ["admin"], ["open"], ["READ"], [""], [None], [["read"]], [{}]]


@pytest.mark.parametrize("scopes", BAD_SCOPES)
@pytest.mark.parametrize("options", [{"api_key": ADMIN}, {}], ids=["keys", "no keys"])
async def test_an_unknown_scope_is_refused_by_name(scopes: Any, options: dict[str, Any]) -> None:
    async with running_site(**options) as site:
        reply = await site.call("POST", "/sessions", {"scopes": scopes}, x_api_key=ADMIN)
        assert (reply.status, reply.json()["code"]) == (400, "request")
        assert "known: turn, read, collect, delete" in reply.json()["error"]
        assert (await site.call("GET", "/sessions", x_api_key=ADMIN)).json()["sessions"] == []


@pytest.mark.parametrize("scopes", [None, [], ["turn"], ["read", "read"], ["delete", "turn", "collect"]])
async def test_scopes_may_be_left_out_and_repeated(scopes: list[str] | None) -> None:
    async with running_site(api_key=ADMIN) as site:
        mine = await open_session(site, scopes=scopes)
        allowed = [
            right
            for right, method, path in (("read", "GET", ""), ("collect", "POST", "/samples"), ("delete", "DELETE", ""))
            if (await knock(site, method, f"/sessions/{mine.id}{path}", mine.key)).status < 300
        ]
        assert allowed == [right for right in ALL_SCOPES if right in (scopes or ())]


async def test_a_key_stands_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_site(api_key=ADMIN) as site:
        mine = await open_session(site, scopes=list(ALL_SCOPES), metadata={"a": 1})
        assert re.fullmatch(rf"tk-{mine.id}-[0-9a-f]{{32}}", mine.key)
        secret = mine.key.rsplit("-", 1)[1]
        place = f"/sessions/{mine.id}"
        body = {"messages": [user("a")], "stream": False}
        said = [
            await site.call("POST", f"{place}/v1/chat/completions", body, x_api_key=mine.key),
            await site.call("POST", f"{place}/v1/chat/completions", b"{", authorization=f"Bearer {mine.key}"),
            await site.call("POST", f"{place}/tokenize", {"prompt": "a"}, x_api_key=mine.key),
            await site.call("GET", place, x_api_key=mine.key),
            await site.call("GET", f"{place}?rows=1", x_api_key=mine.key),
            await site.call("POST", f"{place}/samples", x_api_key=mine.key),
            await site.call("GET", "/metrics", x_api_key=mine.key),
            *[await site.call("GET", path, x_api_key=ADMIN) for path in ("/sessions", "/metrics", "/health", "/docs")],
        ]
        held = repr(site.find_entry(mine.id))
    for text in [*(str(reply.body) + str(reply.headers) for reply in said), held, caplog.text]:
        assert secret not in text
        assert ADMIN not in text
    for request in site.engine.requests:
        assert not any(secret in f"{name}{value}" for name, value in request.headers)
        assert secret.encode() not in request.body


async def test_two_sessions_have_two_keys_and_two_servers_two_hashes() -> None:
    async with running_site(api_key=ADMIN) as site, running_site(api_key=ADMIN) as second:
        keys = {(await open_session(each)).key for each in (site, site, second)}
        assert len(keys) == 3
        mine = await open_session(site)
        assert (await knock(second, "POST", "/v1/chat/completions", mine.key)).status == 401


async def test_without_keys_everything_is_as_it_was() -> None:
    async with running_site() as site:
        made = (await site.call("POST", "/sessions", {"scopes": ["read"]})).json()
        assert list(made) == ["session_id"]
        for method, path in ROUTES:
            session_id = (await site.create()).removeprefix("/sessions/")
            for key in (None, "sk-any", f"tk-{session_id}-{'0' * 32}"):
                reply = await knock(site, method, fill(path, session_id), key)
                is_unnamed = method == "POST" and path.startswith("/v1/")
                assert (reply.status in (401, 403)) is is_unnamed, (method, path, reply.body)
