"""Keys, from the side of clients.

1. The handle of a session has the key of its agent: that of the session, and without keys on the server its id.
2. With that key alone an unmodified client of OpenAI or Anthropic plays the session, named by its URL or by the key.
3. An agent's own client does what the scopes of its key say, and its errors are the classes that the server raised; the
   session goes on behind its block. A key that is none is refused before anything is sent.
4. A trainer that sends no key is served as ever where the server has none, and is refused where it has.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from httpkit import running_site
from servicekit import get_renderer, user
from turnkeeper.client import AgentClient, SessionClient, SessionHandle
from turnkeeper.errors import AuthenticationError, PermissionDeniedError, RequestError
from turnkeeper.samples import decode_samples
from turnkeeper.testing import ScriptedEngine, running
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.trainer import SessionServer

ADMIN = "admin-key"
QUESTION: Any = [{"role": "user", "content": "hi"}]


async def play_openai(base_url: str, key: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0) as client:
        assert [model.id async for model in client.models.list()]
        chat = await client.chat.completions.create(model="m", messages=QUESTION)
        assert chat.choices[0].message.content
        stream = await client.chat.completions.create(model="m", messages=QUESTION, stream=True)
        assert [chunk async for chunk in stream]
        assert (await client.responses.create(model="m", input="hi")).output_text


async def play_anthropic(base_url: str, key: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=key, max_retries=0) as client:
        assert [model.id async for model in client.models.list()]
        assert (await client.messages.count_tokens(model="m", messages=QUESTION)).input_tokens
        assert (await client.messages.create(model="m", max_tokens=9, messages=QUESTION)).content
        async with client.messages.stream(model="m", max_tokens=9, messages=QUESTION) as stream:
            assert await stream.get_final_text()


@pytest.mark.parametrize("options", [{"api_key": ADMIN}, {}], ids=["keys", "no keys"])
async def test_an_unmodified_client_plays_with_the_key_alone(options: dict[str, str]) -> None:
    async with (
        running_site(use_session_server="v2", **options) as site,
        SessionClient(site.url, **options).session() as session,
    ):
        assert session.key.startswith("tk-") is bool(options)
        assert session.session_id in session.key
        await play_openai(f"{site.url}/v1", session.key)
        await play_openai(session.base_url, session.key)
        await play_anthropic(site.url, session.key)
        await play_anthropic(session.anthropic_base_url, session.key)
        assert len((await session.info())["metadata"]["turnkeeper"]["turns"]) == 10


async def test_a_wrong_key_is_the_sdks_own_error() -> None:
    async with running_site(api_key=ADMIN) as site, SessionClient(site.url, api_key=ADMIN).session() as session:
        other = (await site.call("POST", "/sessions", x_api_key=ADMIN)).json()["key"]
        with pytest.raises(openai.AuthenticationError):
            await play_openai(session.base_url, "sk-1")
        with pytest.raises(openai.PermissionDeniedError, match="another session"):
            await play_openai(session.base_url, other)
        with pytest.raises(anthropic.AuthenticationError):
            await play_anthropic(site.url, session.session_id)
        with pytest.raises(anthropic.PermissionDeniedError, match="another session"):
            await play_anthropic(session.anthropic_base_url, other)


@asynccontextmanager
async def open_both(url: str, scopes: Sequence[str]) -> AsyncGenerator[tuple[SessionHandle, SessionHandle]]:
    """One session, to the admin and to its agent."""
    async with (
        SessionClient(url, api_key=ADMIN).session(scopes=scopes) as admins,
        AgentClient(url, admins.key).session() as agents,
    ):
        yield admins, agents


@pytest.mark.parametrize("scopes", [(), ("read",), ("collect",), ("delete",), ("read", "collect", "delete")])
async def test_an_agents_client_does_what_its_scopes_say(scopes: tuple[str, ...]) -> None:
    async with running_site(api_key=ADMIN) as site, open_both(site.url, scopes) as (admins, session):
        assert (session.session_id, session.key) == (admins.session_id, admins.key)
        for scope, act in (("read", session.info), ("collect", session.samples), ("delete", session.delete)):
            if scope in scopes:
                await act()
            else:
                with pytest.raises(PermissionDeniedError, match=f"scope {scope}"):
                    await act()
        if "delete" in scopes:
            with pytest.raises(AuthenticationError, match="its session has ended"):
                await session.info()


async def test_a_session_goes_on_behind_the_block_of_its_agents_client() -> None:
    async with running_site(api_key=ADMIN) as site, open_both(site.url, ["delete"]) as (admins, _):
        async with AgentClient(site.url, admins.key).session():
            pass
        await admins.info()


async def test_an_agent_cannot_reward_itself() -> None:
    async with running_site(api_key=ADMIN) as site, open_both(site.url, "collect") as (admins, session):
        await site.call("POST", "/v1/chat/completions", {"messages": [user("a")]}, x_api_key=session.key)
        with pytest.raises(PermissionDeniedError, match="a reward needs the admin's key"):
            await session.samples(metadata={"reward": 1})
        assert (await session.samples()).samples[0].reward is None
        assert (await admins.samples(metadata={"reward": 1})).samples[0].reward == 1


async def test_a_server_without_keys_takes_an_agents_client_by_the_id() -> None:
    async with running_site() as site, open_both(site.url, ["read"]) as (admins, session):
        assert session.key == admins.session_id
        assert (await session.info())["session_id"] == admins.session_id


@pytest.mark.parametrize("key", ["", "sk-1", ADMIN, "tk-", f"tk-{'a' * 32}", f"tk-{'a' * 32}-{'b' * 31}", "A" * 32])
def test_a_key_that_is_none_is_refused_at_once(key: str) -> None:
    with pytest.raises(RequestError, match=r"tk-<session id>-<secret>") as caught:
        AgentClient("http://127.0.0.1:9", key)
    assert len(key) < 4 or key not in str(caught.value)


async def test_a_scope_that_is_none_is_the_servers_error() -> None:
    async with running_site(api_key=ADMIN) as site:
        with pytest.raises(RequestError, match="'reward' is no scope"):
            async with SessionClient(site.url, api_key=ADMIN).session(scopes=["reward"]):
                pass


@pytest.mark.parametrize("api_key", [None, [], ADMIN], ids=["unset", "empty", "set"])
async def test_a_trainer_that_sends_no_key_is_served_where_the_server_has_none(api_key: Any) -> None:
    tokenizer = get_renderer().tokenizer
    engine = ScriptedEngine(encode=lambda text: tokenizer.encode(text).tolist())
    keys = {} if api_key is None else {"api_key": api_key}
    args = SimpleNamespace(
        hf_checkpoint=str(shipped_checkpoint()), tito_model="qwen3", pause_generation_mode="abort", **keys
    )
    async with (
        running(engine) as engine_url,
        running(SessionServer(args, engine_url).app) as url,
        httpx.AsyncClient(base_url=url) as trainer,
    ):
        made = await trainer.post("/sessions")
        if api_key:
            assert made.status_code == 401
            return
        place = f"/sessions/{made.json()['session_id']}"
        assert list(made.json()) == ["session_id"]
        body = {"messages": [user("a")]}
        assert (await trainer.post(f"{place}/v1/chat/completions", json=body)).status_code == 200
        assert len((await trainer.get(place)).json()["records"]) == 1
        samples = await trainer.post(f"{place}/samples", json={"metadata": {"reward": 1}})
        assert len(decode_samples(samples.content).samples) == 1
        assert (await trainer.delete(place)).status_code == 204
