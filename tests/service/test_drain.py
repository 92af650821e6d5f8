"""A server that was told to stop.

1. It takes no new session and no new turn: 503 `server_draining`, with the time after which to ask again. Sessions that
   a turn would create are new ones too.
2. A turn in flight is finished and delivered, and its exact retries join it; a reply that got lost is sent again.
3. Sessions can be read, counted, collected with a reward and deleted.
4. It waits for as long as a session with turns is left or a request is being answered, and no longer than the drain
   timeout.
5. At the end turns in flight are given up, and their clients are told.
"""

import asyncio

import pytest

from servicekit import FakeEngine, Kit, assistant, build_kit, user
from turnkeeper.errors import ServerDrainingError, SessionClosedError, TurnkeeperError
from turnkeeper.service.drain import POLL_INTERVAL_S
from turnkeeper.testing import settle

ASK = [user("a")]


async def begin_drain(kit: Kit) -> "asyncio.Task[None]":
    task = asyncio.create_task(kit.backend.lifecycle.drain())
    await settle()
    return task


async def end_drain(kit: Kit, task: "asyncio.Task[None]") -> bool:
    """Whether the drain is over at the next look."""
    await kit.clock.advance(POLL_INTERVAL_S)
    await settle()
    return task.done()


async def test_new_sessions_and_new_turns_are_refused() -> None:
    kit = build_kit(engine=FakeEngine(auto="ok"), auto_create_sessions=True)
    session = kit.create()
    await kit.say(session, ASK)
    drain = await begin_drain(kit)
    for new in (ASK, [user("b")], [*ASK, assistant("ok"), user("c")]):
        with pytest.raises(ServerDrainingError) as refused:
            await kit.begin(session, new)
        assert (refused.value.http_status, refused.value.code, refused.value.retry_after_s) == (
            503,
            "server_draining",
            5,
        )
    with pytest.raises(ServerDrainingError):
        kit.create()
    with pytest.raises(ServerDrainingError):
        await kit.begin("1" * 32, ASK)
    assert len(kit.look(session).forest) == 1
    assert (await kit.service.list_sessions())["sessions"][0]["turns"] == 1
    drain.cancel()


async def test_a_refused_turn_leaves_its_session_as_it_was() -> None:
    kit = build_kit(engine=FakeEngine(auto="ok"))
    session = kit.create()
    await kit.say(session, ASK)
    before = await kit.service.describe(session)
    drain = await begin_drain(kit)
    with pytest.raises(ServerDrainingError):
        await kit.begin(session, [*ASK, assistant("ok"), user("b")])
    assert await kit.service.describe(session) == before
    assert kit.look(session).in_flight == 0
    drain.cancel()


async def test_a_turn_in_flight_is_delivered_and_its_retry_joins_it() -> None:
    kit = build_kit()
    session = kit.create()
    first = await kit.begin(session, ASK)
    drain = await begin_drain(kit)
    await first.hang_up()
    again = await kit.begin(session, ASK, retry=1)
    assert not await end_drain(kit, drain)
    kit.engine.answer(text="hi")
    assert await again.text() == "hi"
    assert len(kit.engine.calls) == len(kit.look(session).forest) == 1
    kit.service.delete(session)
    assert await end_drain(kit, drain)


async def test_a_lost_reply_is_sent_again() -> None:
    kit = build_kit()
    session = kit.create()
    turn = await kit.begin(session, ASK)
    kit.engine.answer(text="hi")
    await turn.waiting
    turn.waiter.close(was_written=False)
    drain = await begin_drain(kit)
    assert await (await kit.begin(session, ASK)).text() == "hi"
    assert len(kit.look(session).forest) == 1
    drain.cancel()


async def test_sessions_are_read_collected_and_deleted() -> None:
    kit = build_kit(engine=FakeEngine(auto="ok"), use_session_server="v2")
    session = kit.create()
    await kit.say(session, ASK)
    drain = await begin_drain(kit)
    assert b'"records"' in await kit.service.describe(session)
    payload = await kit.service.collect(session, agent_metadata={"reward": 1.0})
    assert payload.size_bytes > 0
    assert not await end_drain(kit, drain)
    kit.service.delete(session)
    assert await end_drain(kit, drain)


@pytest.mark.parametrize("unused", [0, 1, 3])
async def test_without_anything_to_collect_the_drain_is_over_at_once(unused: int) -> None:
    kit = build_kit()
    for _ in range(unused):
        kit.create()
    drain = await begin_drain(kit)
    assert drain.done()
    assert kit.backend.health.is_draining
    assert kit.backend.health.describe()["status"] == "draining"


async def test_a_request_that_is_being_answered_is_waited_for() -> None:
    kit = build_kit()
    with kit.backend.requests.count():
        drain = await begin_drain(kit)
        assert not await end_drain(kit, drain)
    assert await end_drain(kit, drain)


@pytest.mark.parametrize("timeout_s", [0, 30, 120])
async def test_the_drain_timeout_ends_it(timeout_s: float) -> None:
    kit = build_kit(drain_timeout=timeout_s)
    session = kit.create()
    turn = await kit.begin(session, ASK)
    drain = await begin_drain(kit)
    await kit.clock.advance(timeout_s - POLL_INTERVAL_S)
    assert drain.done() is (timeout_s == 0)
    await kit.clock.advance(POLL_INTERVAL_S * 2)
    assert drain.done()
    kit.backend.lifecycle.end_turns()
    with pytest.raises(SessionClosedError, match="the server is stopping"):
        await turn.waiting
    assert kit.look(session).in_flight == 0


async def test_a_session_that_expires_is_not_waited_for() -> None:
    kit = build_kit(engine=FakeEngine(auto="ok"), session_ttl=10)
    await kit.say(kit.create(), ASK)
    drain = await begin_drain(kit)
    await kit.clock.advance(20)
    assert not drain.done()
    kit.service.sweep()
    assert await end_drain(kit, drain)


async def test_a_turn_that_waits_for_a_recording_is_refused_behind_it() -> None:
    """A request that arrived before the signal and has not begun a turn is a new one."""
    stored = asyncio.Event()

    async def store(*_: object) -> None:
        await stored.wait()

    kit = build_kit(store_turn=store)
    session = kit.create()
    first = await kit.begin(session, ASK)
    kit.engine.answer(text="ok")
    await settle()
    second = asyncio.create_task(kit.begin(session, [*ASK, assistant("ok"), user("b")]))
    await settle()
    drain = await begin_drain(kit)
    stored.set()
    assert await first.text() == "ok"
    with pytest.raises(TurnkeeperError) as refused:
        await second
    assert isinstance(refused.value, ServerDrainingError)
    drain.cancel()
