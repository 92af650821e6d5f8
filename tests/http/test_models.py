"""``/v1/models``, as OpenAI's and Anthropic's own clients read it.

1. Both list the models and look one up by any name, with a session in the path or behind the key.
2. Which form it takes is told by the ``anthropic-version`` header; errors take it too.
3. No engine is asked, and a session that a turn would open is not opened.
4. The model that an agent asked for is kept with the turn, in every dialect; ``--train-models`` leaves others out.
"""

from typing import Any

import anthropic
import openai
import pytest

from agentkit import AGENTS
from httpkit import Site, running_site
from turnkeeper.samples import decode_samples

ANTHROPIC = {"anthropic_version": "2023-06-01"}
NAMES = ["policy", "Qwen/Qwen3-8B", "claude-sonnet-4-5[1m]", "a b", "name/with/many", "größer"]


def open_openai(site: Site, session: str, *, by_key: bool) -> openai.AsyncOpenAI:
    key = session.removeprefix("/sessions/") if by_key else "none"
    return openai.AsyncOpenAI(base_url=f"{site.url}{'' if by_key else session}/v1", api_key=key, max_retries=0)


def open_anthropic(site: Site, session: str, *, by_key: bool) -> anthropic.AsyncAnthropic:
    key = session.removeprefix("/sessions/") if by_key else "none"
    return anthropic.AsyncAnthropic(base_url=f"{site.url}{'' if by_key else session}", api_key=key, max_retries=0)


BY_KEY = pytest.mark.parametrize("by_key", [False, True], ids=["path", "key"])


@BY_KEY
async def test_openais_client_lists_and_finds_models(by_key: bool) -> None:
    async with running_site(train_models="policy,small") as site:
        async with open_openai(site, await site.create(), by_key=by_key) as client:
            listed = await client.models.list()
            found = [await client.models.retrieve(name) for name in NAMES]
        assert [model.id for model in listed.data] == ["x", "policy", "small"]
        assert [model.id for model in found] == NAMES
        assert {model.object for model in (*listed.data, *found)} == {"model"}
        assert site.engine.generations == []


@BY_KEY
async def test_anthropics_client_lists_and_finds_models(by_key: bool) -> None:
    async with running_site(train_models="policy,small") as site:
        async with open_anthropic(site, await site.create(), by_key=by_key) as client:
            listed = [model async for model in client.models.list(limit=1)]
            found = [await client.models.retrieve(name) for name in NAMES]
        assert [model.id for model in listed] == ["x", "policy", "small"]
        assert [(model.id, model.display_name) for model in found] == [(name, name) for name in NAMES]
        assert {(model.type, model.created_at.year) for model in found} == {("model", 1970)}
        for model in (*listed, *found):
            type(model).model_validate(model.model_dump())  # the SDK itself does not check what it gets
        assert site.engine.generations == []


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/policy", "/v1/models/a/b"])
async def test_head_is_answered_as_get_without_a_body(path: str) -> None:
    async with running_site() as site:
        for place in ("", await site.create()):
            shown, head = await site.call("GET", place + path), await site.call("HEAD", place + path)
            assert (head.status, head.body) == (200, b"")
            assert head.headers["content-length"] == str(len(shown.body))


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/policy"])
@pytest.mark.parametrize("headers", [{}, ANTHROPIC], ids=["openai", "anthropic"])
async def test_an_unknown_session_is_refused_in_the_clients_form(path: str, headers: dict[str, str]) -> None:
    async with running_site() as site:
        reply = await site.call("GET", f"/sessions/{'0' * 32}{path}", **headers)
    assert reply.status == 404
    error: Any = reply.json()["error"]
    assert error["code"] == "session_not_found"
    assert (reply.json().get("type") == "error") == bool(headers)


async def test_a_session_that_a_turn_would_open_is_not_opened() -> None:
    async with running_site(auto_create_sessions=True) as site:
        assert (await site.call("GET", f"/sessions/{'ab' * 16}/v1/models")).status == 200
        assert (await site.call("GET", "/sessions")).json()["sessions"] == []


@pytest.mark.parametrize("dialect", AGENTS)
@pytest.mark.parametrize("asked", ["policy", "small", None])
async def test_the_model_that_was_asked_for_is_kept_with_the_turn(dialect: str, asked: str | None) -> None:
    async with running_site(use_session_server="v2", train_models="policy") as site:
        agent = AGENTS[dialect](site, await site.create())
        agent.say("hi")
        await agent.step(model=asked, max_tokens=9)
        (record,) = (await site.call("GET", agent.session)).json()["records"]
        payload = decode_samples((await site.call("POST", f"{agent.session}/samples", {})).body)
    assert record["request"].get("model") == asked
    turns = payload.session_metadata["turnkeeper"]["turns"]
    assert [turn.get("model") for turn in turns] == [asked]
    assert len(payload.samples) == (0 if asked == "small" else 1)
    assert all(sample.metadata["turnkeeper"]["turns"][0].get("model") == asked for sample in payload.samples)
    accounting = payload.session_metadata["turnkeeper"]["accounting"]
    assert accounting["dropped"].get("not_picked", 0) == (accounting["sampled"] if asked == "small" else 0)
    assert accounting["unaccounted"] == 0
