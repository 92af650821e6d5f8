"""Sessions across processes, in both forms of the client: for asyncio, and blocking.

1. A session that one client creates is found by its id with another, which collects and deletes it.
2. Sessions are listed, page by page, over all workers.
3. A session's id chooses its worker; one that lives elsewhere is found all the same. A worker that is full or not there
   is passed over when a session is opened; where one cannot be asked, a session is not said to be missing.
4. Pauses, continues and aborts reach every worker, or none stays paused.
5. What goes wrong is an error that says so: another address, another key, a session that expired.
6. Nothing that is shown holds a key or a payload.
"""

import asyncio
import pickle
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np
import pytest

from client.forms import FORMS, MakeClient, Threaded
from httpkit import Site, running_site
from servicekit import user
from turnkeeper.client import NO_RETRY, AgentClient, Retry, SessionClient, SyncAgentClient, SyncSessionClient
from turnkeeper.client.workers import rank_urls
from turnkeeper.errors import (
    AuthenticationError,
    BodyTooLargeError,
    CapacityError,
    ConfigError,
    RequestError,
    RouteNotServedError,
    ServerReplyError,
    ServerUnreachableError,
    SessionClosedError,
    SessionExpiredError,
    SessionNotFoundError,
    TurnkeeperError,
)
from turnkeeper.testing import unreachable_url

IDS = [f"{number:032x}" for number in range(40)]


@pytest.fixture(params=FORMS)
def make(request: pytest.FixtureRequest) -> MakeClient:
    """Makes a client of one form."""
    return FORMS[request.param]


@asynccontextmanager
async def running_workers(count: int = 2, **options: Any) -> AsyncGenerator[list[Site]]:
    """So many servers, each with sessions of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running_site(**options)) for _ in range(count)]


async def _list_ids(client: Any, **options: Any) -> list[str]:
    return [row["session_id"] async for row in client.sessions(**options)]


async def test_one_client_opens_a_session_and_another_collects_and_deletes_it(make: MakeClient) -> None:
    async with running_site(use_session_server="v2") as site:
        opened = await make(site.url).create(metadata={"task": 7}, history="tree")
        await site.chat(f"/sessions/{opened.session_id}", [user("a")])
        found = await make(site.url).open(opened.session_id)
        assert (found.url, found.key, found.base_url) == (opened.url, opened.session_id, f"{opened.url}/v1")
        batch = await found.samples(metadata={"reward": 0.5})
        assert [sample.reward for sample in batch.samples] == [0.5]
        assert (await found.info())["metadata"]["turnkeeper"]["metadata"] == {"task": 7}
        await found.delete()
        assert await make(site.url).find(opened.session_id) is None
        with pytest.raises(SessionNotFoundError):
            await make(site.url).open(opened.session_id)


async def test_a_session_lives_as_long_as_its_block(make: MakeClient) -> None:
    async with running_site() as site:
        async with make(site.url).session() as session:
            assert await _list_ids(make(site.url)) == [session.session_id]
        assert await _list_ids(make(site.url)) == []


async def test_a_session_has_the_id_that_it_is_given(make: MakeClient) -> None:
    async with running_site() as site:
        assert (await make(site.url).create(session_id=IDS[7])).session_id == IDS[7]
        with pytest.raises(RequestError, match="32 lower-case"):
            await make(site.url).create(session_id="task-7")
        with pytest.raises(RequestError, match="32 lower-case"):
            await make(site.url).open("../health")


async def test_a_session_is_deleted_by_its_id(make: MakeClient) -> None:
    async with running_workers() as sites:
        client = make([site.url for site in sites])
        for session_id in IDS[:4]:
            await client.create(session_id=session_id)
            await client.delete(session_id)
            with pytest.raises(SessionNotFoundError):
                await client.delete(session_id)
        assert await _list_ids(client) == []


async def test_sessions_are_listed_page_by_page_over_all_workers(make: MakeClient) -> None:
    async with running_workers() as sites:
        client = make([site.url for site in sites])
        for session_id in IDS[:9]:
            await client.create(session_id=session_id)
        for limit in (1, 2, 1000):
            assert sorted(await _list_ids(client, limit=limit)) == IDS[:9]
        rows = {row["session_id"]: row async for row in client.sessions()}
        for session_id, row in rows.items():
            assert row["server_url"] == rank_urls([site.url for site in sites], session_id)[0]
            assert row["turns"] == 0


async def test_sessions_are_chosen_as_the_route_chooses_them(make: MakeClient) -> None:
    async with running_workers() as sites:
        client = make([site.url for site in sites])
        for number, session_id in enumerate(IDS[:6]):
            await client.create(
                session_id=session_id, metadata={"run": "a & b" if number % 2 else "c", "group": number}
            )
        assert sorted(await _list_ids(client, metadata={"run": "a & b"})) == IDS[1:6:2]
        assert await _list_ids(client, metadata={"group": np.int64(3)}, state="open", in_flight=0) == [IDS[3]]
        assert await _list_ids(client, min_idle=3600) == []
        for wrong in ({"state": "ajar"}, {"age": 3}):
            with pytest.raises(RequestError, match=next(iter(wrong))):
                await _list_ids(client, **wrong)


def test_the_rank_of_a_worker_depends_on_the_id_and_its_address_alone() -> None:
    urls = [f"http://10.0.0.1:{port}" for port in range(30100, 30104)]
    ranked = {session_id: rank_urls(urls, session_id) for session_id in IDS}
    for session_id, ranks in ranked.items():
        assert sorted(ranks) == urls
        assert rank_urls(urls[::-1], session_id) == ranks
        assert rank_urls(urls[:-1], session_id) == [url for url in ranks if url != urls[-1]]
    first = [ranks[0] for ranks in ranked.values()]
    assert min(first.count(url) for url in urls) >= 4


async def test_a_session_is_found_at_whichever_worker_it_lives(make: MakeClient) -> None:
    async with running_workers(3) as sites:
        urls = [site.url for site in sites]
        for number, site in enumerate(sites):
            await make(site.url).create(session_id=IDS[number])
        for number, site in enumerate(sites):
            assert (await make(urls).open(IDS[number])).server_url == site.url
        with pytest.raises(SessionNotFoundError, match=IDS[9]):
            await make(urls).open(IDS[9])


async def test_a_worker_that_is_full_or_not_there_is_passed_over(make: MakeClient) -> None:
    with unreachable_url() as nowhere:
        async with running_workers(2, max_sessions=3) as sites:
            client = make([nowhere, *(site.url for site in sites)], retry=NO_RETRY)
            for session_id in IDS[:6]:
                assert (await client.create(session_id=session_id)).server_url != nowhere
            with pytest.raises((CapacityError, ServerUnreachableError)):
                await client.create()


async def test_a_session_is_not_missing_where_a_worker_cannot_be_asked(make: MakeClient) -> None:
    with unreachable_url() as nowhere:
        async with running_site() as site:
            client = make([nowhere, site.url], retry=NO_RETRY)
            await make(site.url).create(session_id=IDS[0])
            assert (await client.open(IDS[0])).server_url == site.url
            with pytest.raises(ServerUnreachableError, match=nowhere):
                await client.open(IDS[1])


async def test_an_agents_client_finds_its_worker() -> None:
    async with running_workers(3, api_key="admin") as sites:
        urls = [site.url for site in sites]
        session = await SessionClient(urls[1], api_key="admin").create(scopes=["read"])
        async with AgentClient(urls, session.key).session() as mine:
            assert (await mine.info())["session_id"] == session.session_id
        with pytest.raises(AuthenticationError):
            await AgentClient([urls[0], urls[2]], session.key).open()

        def read() -> Any:
            with SyncAgentClient(urls, session.key).session() as mine:
                return mine.info()

        assert (await asyncio.to_thread(read))["session_id"] == session.session_id


async def test_pauses_and_aborts_reach_every_worker(make: MakeClient) -> None:
    async with running_workers() as sites:
        client = make([site.url for site in sites])
        session = await client.create()
        assert [told["mode"] for told in await client.pause("in_place")] == ["in_place"] * 2
        assert [str(site.backend.control.state) for site in sites] == ["paused"] * 2
        assert [told["state"] for told in await client.resume()] == ["serving"] * 2
        assert await client.abort() == 1
        with pytest.raises(RequestError, match="mode must be one of"):
            await client.pause("softly")
        reply = await _knock(sites, session)
        assert reply["code"] == SessionClosedError.code


async def _knock(sites: list[Site], session: Any) -> Any:
    site = next(site for site in sites if site.url == session.server_url)
    return (await site.chat(f"/sessions/{session.session_id}", [user("a")])).json()["error"]


async def test_where_one_worker_cannot_be_paused_none_stays_paused(make: MakeClient) -> None:
    async with running_workers() as sites:
        await make(sites[1].url).pause("abort")
        with pytest.raises(RequestError, match="paused in mode abort"):
            await make([site.url for site in sites]).pause("retract")
        assert [str(site.backend.control.state) for site in sites] == ["serving", "paused"]


async def test_forwarded_pauses_reach_the_engines_once() -> None:
    async with running_workers() as sites:
        client = SessionClient([site.url for site in sites])
        await client.pause("in_place", forward=True)
        assert [site.engine.is_paused for site in sites] == [True, False]
        await client.resume(forward=True)
        assert not any(site.engine.is_paused for site in sites)


async def test_health_is_that_of_the_first_worker_that_is_not_well(make: MakeClient) -> None:
    async with running_workers() as sites:
        client = make([site.url for site in sites])
        await make(sites[1].url).pause("abort")
        assert (await client.health())["engine"] == "paused"
        await sites[1].backend.lifecycle.drain()
        assert (await client.health())["status"] == "draining"


async def test_another_address_is_said_to_be_none_of_a_session_server(make: MakeClient) -> None:
    async with running_site() as site:
        for act in ("create", "health"):
            with pytest.raises(ServerReplyError, match="session server"):
                await getattr(make(site.engine_url, retry=NO_RETRY), act)()
        with pytest.raises(RouteNotServedError, match="no POST /v1/sessions"):
            await make(f"{site.url}/v1", retry=NO_RETRY).create()


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:30100", "localhost", "", [], ["http://a", "b"], "http://", "http://a:x", "ftp://a", "http://[::1"],
)
def test_what_is_no_address_is_refused_at_once(url: Any) -> None:
    for kind in (SessionClient, SyncSessionClient):
        with pytest.raises(ConfigError, match="address of a session server"):
            kind(url)


@asynccontextmanager
async def _listening(answer: bytes | None) -> AsyncGenerator[str]:
    """A server that is none: it answers these bytes and hangs up, or with None says nothing; its URL."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer)
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield "http://{}:{}".format(*server.sockets[0].getsockname())
        for writer in writers:
            writer.close()
            await writer.wait_closed()


ODD = {
    "hangs up": (b"", ServerUnreachableError),
    "is no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ServerUnreachableError),
    "breaks off": (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", ServerUnreachableError),
    "says nothing": (None, ServerUnreachableError),
    "answers with a page": (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", ServerReplyError),
    "answers with a list": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", ServerReplyError),
    "sends elsewhere": (b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n", ServerReplyError),
}


@pytest.mark.parametrize(("answer", "kind"), ODD.values(), ids=ODD)
async def test_what_answers_otherwise_is_an_error_that_names_the_address(
    make: MakeClient, answer: bytes | None, kind: type[TurnkeeperError]
) -> None:
    async with _listening(answer) as url:
        with pytest.raises(kind) as caught:
            await make(url, timeout_s=0.1 if answer is None else 30, retry=NO_RETRY).health()
        assert url in caught.value.message or kind is ServerReplyError
        assert caught.value.hint
        assert not caught.value.message.endswith(": ")


async def test_a_server_without_tls_is_not_asked_again_for_it(make: MakeClient) -> None:
    async with running_site() as site:
        with pytest.raises(ServerUnreachableError) as caught:
            await make(site.url.replace("http:", "https:"), retry=Retry(first_wait_s=60)).health()
        assert caught.value.facts["is_final"]


async def test_another_key_is_refused(make: MakeClient) -> None:
    async with running_site(api_key="admin") as site:
        for options in ({}, {"api_key": "other"}):
            with pytest.raises(AuthenticationError) as caught:
                await make(site.url, **options).create()
            assert "admin's key as Authorization" in caught.value.hint
        session = await make(site.url, api_key="admin").create()
        found = await make(site.url, api_key="admin").open(session.session_id)
        with pytest.raises(RequestError, match="known only to the client that opened it"):
            found.key  # noqa: B018 - asking is the test
        assert (await make(site.url, api_key="admin").open(session.session_id, key=session.key)).key == session.key


async def test_a_session_that_expired_is_said_to_have_expired(make: MakeClient) -> None:
    async with running_workers() as sites:
        client = make([site.url for site in sites], retry=NO_RETRY)
        session = await client.create(ttl_s=0.001)
        while len(next(site for site in sites if site.url == session.server_url).parts.registry):
            next(site for site in sites if site.url == session.server_url).service.sweep()
        for act in (session.samples, session.info, lambda: client.open(session.session_id)):
            with pytest.raises(SessionExpiredError):
                await act()


async def test_a_body_that_is_too_large_is_the_servers_error(make: MakeClient) -> None:
    async with running_site(max_body_bytes=100_000) as site:
        with pytest.raises(BodyTooLargeError):
            await make(site.url).create(metadata={"blob": "x" * 30_000_000})


async def test_nothing_that_is_shown_holds_a_key(make: MakeClient) -> None:
    async with running_site(api_key="admin") as site:
        client = make(site.url, api_key="admin")
        session = await client.create()
        name = "Sync" if isinstance(client, Threaded) else ""
        assert repr(client) == f"<{name}SessionClient {site.url}>"
        assert repr(session) == f"<{name}SessionHandle {site.url}/sessions/{session.session_id}>"


async def test_clients_and_sessions_travel_to_other_processes(make: MakeClient) -> None:
    async with running_site() as site, SessionClient(site.url) as entered:
        client = make(site.url)
        form = client if isinstance(client, SessionClient) else client._form
        session = await client.create()
        for original in (entered, form, session if isinstance(client, SessionClient) else session._form):
            copy = pickle.loads(pickle.dumps(original))
            assert (repr(copy), type(copy)) == (repr(original), type(original))
        handle = pickle.loads(pickle.dumps(session if isinstance(client, SessionClient) else session._form))
        found = await handle.info() if isinstance(client, SessionClient) else await asyncio.to_thread(handle.info)
        assert found["session_id"] == session.session_id


async def test_threads_may_share_a_blocking_client() -> None:
    # Threads of their own, since the server reads sessions in the loop's.
    async with running_site() as site:
        with SyncSessionClient(site.url) as client, ThreadPoolExecutor(8) as pool:

            def play(_: int) -> str:
                with client.session() as session:
                    return client.open(session.session_id).info()["session_id"]

            loop = asyncio.get_running_loop()
            played = await asyncio.gather(*(loop.run_in_executor(pool, play, number) for number in range(8)))
            assert len(set(played)) == 8
            assert await _list_ids(SessionClient(site.url)) == []


async def test_connections_are_kept_while_the_client_is_entered() -> None:
    async with running_site() as site, SessionClient(site.url) as client:
        session = await client.create()
        connector = client._requester.transport._http.connector  # type: ignore[union-attr] - what is counted
        for _ in range(3):
            await session.info()
        assert sum(map(len, connector._conns.values())) == 1
