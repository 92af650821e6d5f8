"""The client of a session server.

1. A session lives as long as its block, whatever happens in it.
2. Errors are the classes that the server raised; no server is an error of its own.
3. Numbers of numpy and torch arrive as numbers; what JSON cannot say is refused by its place before anything is sent.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import openai
import pytest

from httpkit import running_site
from servicekit import user
from turnkeeper.client import NO_RETRY, SessionClient, SessionHandle
from turnkeeper.client.failure import parse_failure
from turnkeeper.errors import (
    CapacityError,
    RequestError,
    ServerReplyError,
    ServerUnreachableError,
    SessionExpiredError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.samples import EmptyReason
from turnkeeper.testing import unreachable_url


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
        client = SessionClient(site.url, retry=NO_RETRY)
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


@asynccontextmanager
async def _session_of_one_turn(version: str = "v2") -> AsyncGenerator[tuple[SessionHandle, str]]:
    """A session, and the id of its one reply."""
    async with running_site(use_session_server=version) as site, SessionClient(site.url).session() as session:
        reply = await site.chat(f"/sessions/{session.session_id}", [user("a")])
        yield session, reply.json()["id"]


@dataclass
class Tensor:
    """What the client knows of a tensor of torch, which is not installed here: ``tolist`` gives numbers and lists."""

    values: Any

    def tolist(self) -> Any:
        return self.values


NUMBERS: dict[str, tuple[Any, Any]] = {
    "float64": (np.float64(0.5), 0.5),
    "float32": (np.float32(0.25), 0.25),
    "float16": (np.float16(-1.5), -1.5),
    "int64": (np.int64(3), 3),
    "uint8": (np.uint8(200), 200),
    "a mean": (np.array([1.0, 0.0]).mean(), 0.5),
    "an array without axes": (np.array(2.5), 2.5),
    "named numbers": ({"format": np.float32(1), "answer": np.int32(0)}, {"format": 1.0, "answer": 0}),
    "a number of 30 digits": (10**30, 1e30),
    "a scalar of torch": (Tensor(0.5), 0.5),
}


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_rewards_of_numpy_are_rewards(version: str) -> None:
    async with _session_of_one_turn(version) as (session, response_id):
        for name, (given, got) in NUMBERS.items():
            batch = await session.samples(metadata={"reward": given})
            assert batch.samples[0].reward == got, name
            batch = await session.samples(metadata={"reward": 9}, rewards={response_id: given})
            assert batch.samples[0].reward == got, name
        batch = await session.samples(metadata={"scores": Tensor([0, 1, 2]), "pair": (np.int8(1), [np.float32(2)])})
        assert batch.samples[0].metadata["scores"] == [0, 1, 2]
        assert batch.session_metadata["agent"]["pair"] == [1, [2.0]]


_RING: dict[str, Any] = {}
_RING["again"] = _RING


UNSPEAKABLE: dict[str, tuple[dict[str, Any], str]] = {
    "NaN": ({"metadata": {"reward": float("nan")}}, "metadata.reward is nan"),
    "infinity": ({"metadata": {"reward": float("inf")}}, "metadata.reward is inf"),
    "minus infinity": ({"rewards": {"chatcmpl-0": float("-inf")}}, "rewards.chatcmpl-0 is -inf"),
    "NaN of numpy": ({"metadata": {"reward": np.float32("nan")}}, "metadata.reward is nan"),
    "NaN in an array": ({"metadata": {"scores": np.array([1.0, np.nan])}}, r"metadata.scores\[1\] is nan"),
    "NaN among named numbers": ({"metadata": {"reward": {"a": np.float64("nan")}}}, "metadata.reward.a is nan"),
    "a decimal": ({"metadata": {"reward": Decimal("0.5")}}, "metadata.reward cannot be written as JSON: Decimal"),
    "a set": ({"metadata": {"tags": [{1}]}}, r"metadata.tags\[0\] cannot be written as JSON: set"),
    "bytes": ({"metadata": {"raw": b"x"}}, "metadata.raw cannot be written as JSON: bytes"),
    "complex numbers": ({"metadata": {"z": np.array([1j])}}, r"metadata.z\[0\] cannot be written as JSON: complex"),
    "a key of two parts": ({"metadata": {"a": {(1, 2): 3}}}, "cannot be written as JSON: keys must be"),
    "itself": ({"metadata": _RING}, "nested too deep, or holds itself"),
    "a boolean of numpy": ({"metadata": {"reward": np.bool_(True)}}, "must be a number or an object, got a boolean"),
    "an array": ({"metadata": {"reward": np.ones(2)}}, "must be a number or an object, got a list"),
    "an id of no turn": ({"rewards": {"chatcmpl-0": 1}}, "have the response id 'chatcmpl-0'"),
}


async def test_what_is_no_reward_is_refused_by_its_place() -> None:
    async with _session_of_one_turn() as (session, _):
        for given, message in UNSPEAKABLE.values():
            with pytest.raises(RequestError, match=message):
                await session.samples(**given)
        assert (await session.samples()).samples[0].reward is None


async def test_session_metadata_is_looked_through_as_well() -> None:
    async with running_site() as site:
        with pytest.raises(RequestError, match=r"metadata\.seed is nan"):
            async with SessionClient(site.url).session(metadata={"seed": np.float32("nan")}):
                pass
        async with SessionClient(site.url).session(metadata={"seed": np.int64(7)}) as session:
            assert (await session.info())["metadata"]["turnkeeper"]["metadata"] == {"seed": 7}


async def test_no_server_is_an_error_of_its_own() -> None:
    with unreachable_url() as nowhere, pytest.raises(ServerUnreachableError, match=nowhere):
        async with SessionClient(nowhere, retry=NO_RETRY).session():
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
        (b"<html>bad gateway</html>", ServerReplyError, "502: <html>bad gateway"),
        (b'{"error": {"message": "x"}}', ServerReplyError, "502"),
        (b"", ServerReplyError, "502: an empty body"),
    ],
    ids=["known code", "unknown code", "no JSON", "another shape", "nothing"],
)
def test_an_error_body_becomes_an_exception(body: bytes, kind: type[TurnkeeperError], message: str) -> None:
    error = parse_failure(502, body)
    assert type(error) is kind
    assert message in error.message
