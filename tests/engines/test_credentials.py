"""Engines that ask for a key.

1. Every call carries the key, or user and password of the URL: generations, statuses, control calls, relays, aborts.
2. Neither is shown.
3. Without them an engine that asks serves nobody.
"""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engines.builders import make_request
from httpkit import serving
from turnkeeper.choices import EngineKind
from turnkeeper.cli.config_values import describe
from turnkeeper.config.credentials import hide_userinfo, read_keys, split_address
from turnkeeper.config.load import load
from turnkeeper.config.option import BY_ATTRIBUTE
from turnkeeper.config.resolve import resolve
from turnkeeper.engines.net.client import HttpReply
from turnkeeper.engines.sglang.chat import read_workers
from turnkeeper.errors import ConfigError, EngineError
from turnkeeper.fleet import connect_engines
from turnkeeper.jsontypes import Message
from turnkeeper.server.engines import build_client
from turnkeeper.testing import ScriptedEngine, ScriptedVllm, running

SECRET = "s3cret-key"
BASIC = "Basic bWU6cEB3"  # me:p@w
TURN = {"messages": [{"role": "user", "content": "a"}]}


def place_user(url: str) -> str:
    return url.replace("//", "//me:p%40w@")


def parse_nothing(*_: object) -> Message:
    return {"role": "assistant", "content": ""}


WAYS: dict[str, tuple[dict[str, Any], bool, str]] = {
    "key": ({"engine_api_key": SECRET}, False, f"Bearer {SECRET}"),
    "user": ({}, True, BASIC),
    "both": ({"engine_api_key": SECRET}, True, BASIC),
}


@pytest.mark.parametrize("way", WAYS)
async def test_every_call_carries_it_and_nothing_shows_it(way: str, caplog: pytest.LogCaptureFixture) -> None:
    options, has_user, expected = WAYS[way]
    engine = ScriptedEngine()
    engine.authorization = expected
    async with (
        running(engine) as url,
        serving(place_user(url) if has_user else url, **options) as (server, parts),
        aiohttp.ClientSession() as http,
    ):
        await parts.monitor.poll()
        seen: list[str] = []
        async with http.post(f"{server}/sessions", json={}) as reply:
            session = f"{server}/sessions/{(await reply.json())['session_id']}"
        calls = [
            ("POST", f"{session}/v1/chat/completions", TURN),
            ("GET", f"{session}/model_info", None),
            ("POST", f"{server}/engine/pause", {"mode": "in_place", "forward": True}),
            ("POST", f"{server}/engine/continue", {"forward": True}),
            ("GET", f"{server}/health", None),
            ("GET", f"{server}/metrics", None),
            ("GET", session, None),
        ]
        for method, place, body in calls:
            async with http.request(method, place, json=body, headers={"authorization": "Bearer agent"}) as reply:
                assert reply.status == 200, await reply.text()
                seen.append(await reply.text())
        assert {request.header("authorization") for request in engine.requests} == {expected}
        shown = "\n".join([*seen, caplog.text, repr(parts.config)])
        assert [text for text in (SECRET, "p%40w", "p@w", BASIC.split()[1]) if text in shown] == []


@pytest.mark.parametrize("make", [ScriptedEngine, ScriptedVllm])
@pytest.mark.parametrize("key", [SECRET, None, "other"])
async def test_an_engine_of_either_kind_asks_for_its_key(make: type[ScriptedEngine], key: str | None) -> None:
    engine = make()
    engine.authorization = f"Bearer {SECRET}"
    kind = EngineKind.VLLM if make is ScriptedVllm else EngineKind.SGLANG
    async with running(engine) as url:
        config = resolve(load({"hf_checkpoint": "x", "backend_url": url, "engine_api_key": key}))
        client = build_client(config)
        try:
            adapter = connect_engines([url], client, kind=kind, wire=None, parse=parse_nothing, now=lambda: 0.0)
            if key == SECRET:
                await adapter.generate(make_request())
                await adapter.abort("one")
                await adapter.fetch_status()
                assert {each.header("authorization") for each in engine.requests} == {f"Bearer {SECRET}"}
            else:
                with pytest.raises(EngineError):
                    await adapter.generate(make_request())
                assert engine.generations == []
        finally:
            await client.close()


@pytest.mark.parametrize(
    ("url", "plain", "header"),
    [
        ("http://me:p%40w@a:1/x", "http://a:1/x", BASIC),
        ("http://me:p@w@a:1", "http://a:1", BASIC),
        ("http://me@a", "http://a", "Basic bWU6"),
        ("https://:pw@[::1]:1", "https://[::1]:1", "Basic OnB3"),
        ("http://@a:1", "http://a:1", None),
        ("http://a:1", "http://a:1", None),
    ],
)
def test_a_url_is_split_from_its_user(url: str, plain: str, header: str | None) -> None:
    address = split_address(url)
    assert (address.url, address.authorization) == (plain, header)
    assert hide_userinfo(plain) == plain


def test_the_options_are_shown_without_them() -> None:
    given = {"engine_api_key": SECRET, "api_key": ["k1", "k2"], "backend_url": ["http://me:p%40w@a:1"]}
    loaded = load(given)
    shown = {name: describe(loaded, BY_ATTRIBUTE[name])["value"] for name in given}
    assert shown == {"engine_api_key": "***", "api_key": ["***", "***"], "backend_url": ["http://***@a:1"]}
    assert describe(load({}), BY_ATTRIBUTE["engine_api_key"])["value"] is None


def test_a_routers_workers_are_named_without_a_user() -> None:
    reply = HttpReply(
        url="http://r", status=200, headers=(), body=b'{"urls": [], "workers": [{"url": "http://u:p@w:1"}]}'
    )
    assert read_workers(reply) == ("http://w:1",)


def test_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"# for the engines\n{SECRET}\n\n")
    assert resolve(load({"engine_api_key_file": str(file)})).engine.engine_api_key == SECRET
    file.write_text("\n# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_keys(str(file))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(str(tmp_path / "none"))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not text"):
        read_keys(str(file))
