"""The client of a session server.

1. A session lives as long as its block, whatever happens in it.
2. Errors are the classes that the server raised; no server is an error of its own.
"""

import openai
import pytest

from httpkit import running_site
from turnkeeper.client import SessionClient
from turnkeeper.client.failure import parse_failure
from turnkeeper.errors import (
    CapacityError,
    RequestError,
    ServerUnreachableError,
    SessionExpiredError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.samples import EmptyReason
from turnkeeper.testing.engine import unreachable_url


async def test_an_openai_client_plays_a_session_and_samples_come_out() -> None:
    async with running_site() as site, SessionClient(site.url).session(metadata={"task": 7}) as session:
        messages: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "a"}]
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key="x", max_retries=0) as agent:
            first = await agent.chat.completions.create(model="m", messages=messages)
            assert first.choices[0].message.content == "reply 1"
            messages += [{"role": "assistant", "content": "reply 1"}, {"role": "user", "content": "b"}]
            stream = await agent.chat.completions.create(
                model="m", messages=messages, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "reply 2"
        assert chunks[-1].usage is not None
        batch = await session.samples()
        info = await session.info()
    assert len(batch.samples) == 1
    assert batch.samples[0].tokens.tolist() == info["metadata"]["accumulated_token_ids"]
    assert info["metadata"]["turnkeeper"]["metadata"] == {"task": 7}


async def test_a_session_is_deleted_at_the_end_of_its_block() -> None:
    async with running_site() as site:
        async with SessionClient(site.url).session() as session:
            assert (await session.samples()).empty_reason is EmptyReason.NO_RECORDS
        assert (await site.call("GET", f"/sessions/{session.session_id}")).status == 404


async def test_an_error_in_the_block_is_not_hidden_by_the_deletion() -> None:
    async with running_site() as site:

        async def fail() -> None:
            async with SessionClient(site.url).session() as session:
                await session.delete()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert (await site.call("GET", "/sessions")).json()["sessions"] == []


async def test_what_the_server_refuses_is_raised_here() -> None:
    async with running_site(max_sessions=1) as site:
        client = SessionClient(site.url)
        with pytest.raises(RequestError, match="temperature"):
            async with client.session(sampling_params={"temperature": "hot"}):
                pass
        async with client.session() as session:
            with pytest.raises(CapacityError, match="max-sessions"):
                async with client.session():
                    pass
            await session.delete()
            with pytest.raises(SessionNotFoundError):
                await session.samples()


async def test_no_server_is_an_error_of_its_own() -> None:
    with unreachable_url() as nowhere, pytest.raises(ServerUnreachableError, match=nowhere):
        async with SessionClient(nowhere).session():
            pass


async def test_a_client_brings_its_key() -> None:
    async with running_site(api_key="secret") as site:
        async with SessionClient(site.url, api_key="secret").session() as session:
            assert session.base_url.endswith(f"/sessions/{session.session_id}/v1")
        assert (await SessionClient(site.url, api_key="secret").health())["status"] == "ok"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b'{"error": "gone", "code": "session_expired"}', SessionExpiredError, "gone"),
        (b'{"error": "odd", "code": "unheard_of"}', TurnkeeperError, "odd"),
        (b"<html>bad gateway</html>", TurnkeeperError, "502: <html>bad gateway"),
        (b'{"error": {"message": "x"}}', TurnkeeperError, "502"),
    ],
    ids=["known code", "unknown code", "no JSON", "another shape"],
)
def test_an_error_body_becomes_an_exception(body: bytes, kind: type[TurnkeeperError], message: str) -> None:
    error = parse_failure(502, body)
    assert type(error) is kind
    assert message in error.message
