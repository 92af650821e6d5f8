"""Retries, hang-ups, deletion and expiry.

1. A marked retry, or one whose first client has gone, joins the call in flight: one engine call, one turn.
2. A reply that never got there is repeated; a marked retry of a young reply that nothing extends is too.
3. Anything else is sampled again.
4. A call nobody waits for is kept for the grace, then abandoned: the engine is told, nothing is recorded.
5. A deleted session answers at once, and nothing is written to it afterwards.
6. No agent's request joins, or gets again, what another agent asked for.
7. An idle session expires after its time to live, counted from the end of its last request; stragglers are told.
"""

import asyncio
from typing import Any

import pytest

from servicekit import Kit, assistant, build_kit, build_request, user
from turnkeeper.core import DropReason
from turnkeeper.errors import RequestError, SessionClosedError, SessionExpiredError, SessionNotFoundError
from turnkeeper.service.turns import ClientGoneError, turn_service
from turnkeeper.service.turns.prompt import render_prompt
from turnkeeper.testing import settle

VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])


def count_turns(kit: Kit, session_id: str) -> int:
    return len(kit.look(session_id).forest)


@VERSIONS
@pytest.mark.parametrize("mark", [{"retry": 1}, {"key": "k"}], ids=["retry count", "idempotency key"])
async def test_a_marked_retry_joins_the_call_in_flight(version: str, mark: dict[str, object]) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    first = await kit.begin(session_id, [user("a")], **({"key": "k"} if "key" in mark else {}))
    second = await kit.begin(session_id, [user("a")], **mark)
    assert len(kit.engine.calls) == 1
    kit.engine.answer(text="once")
    assert (await first.read())["id"] == (await second.read())["id"]
    assert count_turns(kit, session_id) == 1


async def test_equal_requests_without_a_mark_are_samples_of_their_own() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.begin(session_id, [user("a")])
    await kit.begin(session_id, [user("a")])
    assert len(kit.engine.calls) == 2


async def test_a_retry_may_ask_for_another_form_of_the_reply() -> None:
    kit = build_kit()
    session_id = kit.create()
    first = await kit.begin(session_id, [user("a")], stream=True, user="me")
    await first.hang_up()
    second = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="once")
    assert await second.text() == "once"
    assert len(kit.engine.calls) == 1


@VERSIONS
@pytest.mark.parametrize("arrives", ["before the reply", "after the reply"])
async def test_a_retry_within_the_grace_joins_a_call_whose_client_has_gone(version: str, arrives: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    first = await kit.begin(session_id, [user("a")])
    await first.hang_up()
    if arrives == "after the reply":
        kit.engine.answer(text="once")
        await settle()
        assert count_turns(kit, session_id) == 0, "held, not recorded"
    await kit.clock.advance(0.9)
    second = await kit.begin(session_id, [user("a")])
    if arrives == "before the reply":
        kit.engine.answer(text="once")
    assert await second.text() == "once"
    await kit.clock.advance(10)
    assert count_turns(kit, session_id) == 1
    assert len(kit.engine.calls) == 1
    assert kit.engine.aborted == []


@VERSIONS
async def test_a_call_that_nobody_comes_back_for_is_abandoned_after_the_grace(version: str) -> None:
    kit = build_kit(use_session_server=version, reconnect_grace=2)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    await turn.hang_up()
    await kit.clock.advance(1.9)
    assert kit.engine.aborted == []
    await kit.clock.advance(0.2)
    assert kit.engine.aborted == [kit.engine.calls[0].request.rid]
    assert count_turns(kit, session_id) == 0
    assert kit.look(session_id).ledger.calls == {DropReason.CLIENT_GONE: 1}
    with pytest.raises(ClientGoneError):
        await turn.read()


async def test_a_held_reply_that_nobody_comes_back_for_is_dropped() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    await turn.hang_up()
    kit.engine.answer(text="late")
    await settle()
    await kit.clock.advance(1.1)
    ledger = kit.look(session_id).ledger
    assert count_turns(kit, session_id) == 0
    assert ledger.dropped == {DropReason.CLIENT_GONE: ledger.sampled}
    assert kit.engine.aborted == [], "the engine was done"
    assert kit.look(session_id).in_flight == 0


async def test_without_a_grace_a_hang_up_abandons_at_once() -> None:
    kit = build_kit(reconnect_grace=0)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    await turn.hang_up()
    assert len(kit.engine.aborted) == 1


@VERSIONS
async def test_a_first_turn_that_was_lost_does_not_poison_the_session(version: str) -> None:
    """The client timed out on turn 1 and sends it again; later turns go on from the second answer."""
    kit = build_kit(use_session_server=version, reconnect_grace=0)
    session_id = kit.create()
    first = await kit.begin(session_id, [user("a")])
    await first.hang_up()
    reply = await kit.say(session_id, [user("a")], "second")
    assert await kit.say(session_id, [user("a"), assistant(reply), user("b")]) == "ok"
    assert count_turns(kit, session_id) == 2


async def test_a_request_after_a_hang_up_goes_on_from_before_the_lost_turn() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "zero")
    lost = await kit.begin(session_id, [user("a"), assistant("zero"), user("one")])
    await lost.hang_up()
    turn = await kit.begin(session_id, [user("a"), assistant("zero"), user("another")])
    kit.engine.answer(-1, text="fine")
    assert await turn.text() == "fine"
    await kit.clock.advance(2)
    assert [turn.parent for turn in kit.look(session_id).forest.turns] == [None, 0]


@VERSIONS
async def test_a_reply_that_was_cut_off_is_repeated(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="once")
    await turn.waiting
    turn.waiter.close(was_written=False)
    recorded = kit.look(session_id).forest.turns[0]
    assert not kit.look(session_id).is_delivered(recorded.id)
    again = await kit.begin(session_id, [user("a")])
    assert await again.text() == "once"
    assert kit.look(session_id).is_delivered(recorded.id)
    assert len(kit.engine.calls) == 1
    await kit.begin(session_id, [user("a")])
    assert len(kit.engine.calls) == 2, "once it got there, an unmarked repetition is a sample of its own"


async def test_a_reply_on_its_way_is_not_yet_lost() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    kit.engine.answer(text="once")
    await turn.waiting
    await kit.begin(session_id, [user("a")])
    assert len(kit.engine.calls) == 2


@pytest.mark.parametrize("mark", [{"retry": 1}, {"key": "k"}], ids=["retry count", "idempotency key"])
@pytest.mark.parametrize(("age", "calls"), [(119, 1), (121, 2)], ids=["young", "old"])
async def test_a_marked_retry_is_replayed_within_the_window(mark: dict[str, object], age: float, calls: int) -> None:
    kit = build_kit()
    session_id = kit.create()
    first = await kit.say(session_id, [user("a")], "once", **({"key": "k"} if "key" in mark else {}))
    await kit.clock.advance(age)
    again = await kit.begin(session_id, [user("a")], **mark)
    assert len(kit.engine.calls) == calls
    if calls == 1:
        assert await again.text() == first


async def test_a_reply_that_a_turn_extends_is_not_replayed() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "once")
    await kit.say(session_id, [user("a"), assistant("once"), user("b")])
    await kit.begin(session_id, [user("a")], retry=1)
    assert len(kit.engine.calls) == 3


async def test_other_sampling_is_another_request() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.begin(session_id, [user("a")], temperature=0.5)
    await kit.begin(session_id, [user("a")], temperature=0.6, retry=1)
    assert len(kit.engine.calls) == 2


@VERSIONS
async def test_deleting_ends_a_turn_in_flight_and_nothing_is_written(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    session = kit.look(session_id)
    kit.service.delete(session_id)
    with pytest.raises(SessionClosedError) as caught:
        await turn.read()
    assert caught.value.http_status == 404
    await settle()
    assert kit.engine.aborted == [kit.engine.calls[0].request.rid]
    assert len(session.forest) == 0
    assert session.ledger.calls == {DropReason.DELETED: 1}
    with pytest.raises(SessionNotFoundError):
        kit.service.delete(session_id)
    with pytest.raises(SessionNotFoundError):
        await kit.begin(session_id, [user("a")])


async def test_deleting_ends_a_turn_that_is_still_being_rendered() -> None:
    kit = build_kit()
    session_id = kit.create()
    request = build_request([user("word " * 3000)])
    begun = asyncio.create_task(kit.service.begin_turn(session_id, request, "r1"))
    await asyncio.sleep(0)
    session = kit.look(session_id)
    assert session.in_flight == 1
    kit.service.delete(session_id)
    waiter = await begun
    waiter.expect(lambda reply: b"")
    with pytest.raises(SessionClosedError):
        await waiter.wait()
    assert kit.engine.calls == []
    assert session.in_flight == 0
    assert session.ledger.calls == {}


async def test_a_retry_joins_a_turn_that_is_still_being_rendered() -> None:
    kit = build_kit()
    session_id = kit.create()
    messages = [user("word " * 3000)]
    begun = [
        asyncio.create_task(kit.service.begin_turn(session_id, build_request(messages, key="k"), "r1"))
        for _ in range(2)
    ]
    deliveries = await asyncio.gather(*begun)
    assert deliveries[0].response_id == deliveries[1].response_id
    await settle()
    assert len(kit.engine.calls) == 1


async def test_deleting_drops_a_held_reply() -> None:
    kit = build_kit()
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("a")])
    await turn.hang_up()
    kit.engine.answer(text="held")
    await settle()
    session = kit.look(session_id)
    kit.service.delete(session_id)
    assert session.ledger.dropped == {DropReason.DELETED: session.ledger.sampled}
    await kit.clock.advance(10)
    assert session.ledger.unaccounted == 0


async def test_an_idle_session_expires_and_stragglers_are_told() -> None:
    kit = build_kit()
    session_id = kit.create(ttl_s=60)
    await kit.say(session_id, [user("a")])
    await kit.clock.advance(59)
    await kit.say(session_id, [user("a"), assistant("ok"), user("b")])
    await kit.clock.advance(59)
    assert kit.service.get_session_id(session_id) == session_id
    await kit.clock.advance(2)
    with pytest.raises(SessionExpiredError) as caught:
        await kit.begin(session_id, [user("a")])
    assert caught.value.http_status == 404
    assert not caught.value.is_retryable
    kit.service.delete(session_id)
    assert len(kit.engine.calls) == 2


async def test_a_tombstone_is_forgotten_in_its_time() -> None:
    kit = build_kit()
    session_id = kit.create(ttl_s=60)
    await kit.clock.advance(61)
    assert kit.service.sweep() == 1
    await kit.clock.advance(599)
    with pytest.raises(SessionExpiredError):
        kit.service.get_session_id(session_id)
    await kit.clock.advance(2)
    with pytest.raises(SessionNotFoundError) as caught:
        kit.service.get_session_id(session_id)
    assert not isinstance(caught.value, SessionExpiredError)


async def test_a_session_in_flight_does_not_expire() -> None:
    kit = build_kit()
    session_id = kit.create(ttl_s=60)
    turn = await kit.begin(session_id, [user("a")])
    await kit.clock.advance(1000)
    assert kit.service.sweep() == 0
    kit.engine.answer(text="slow")
    assert await turn.text() == "slow"
    assert kit.service.get_session_id(session_id) == session_id


SUB = {"x-claude-code-agent-id": "a7"}


@pytest.mark.parametrize(("headers", "is_retry"), [(SUB, True), ({}, False), ({"x-claude-code-agent-id": "b8"}, False)])
@pytest.mark.parametrize("mark", [{"retry": 1}, {"key": "k"}], ids=["retry count", "idempotency key"])
async def test_only_the_same_agents_request_is_a_retry(
    headers: dict[str, str], is_retry: bool, mark: dict[str, Any]
) -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    first = await kit.begin(session_id, [user("a")], headers=SUB, **mark)
    second = await kit.begin(session_id, [user("a")], headers=headers, **mark)
    assert len(kit.engine.calls) == (1 if is_retry else 2)
    kit.engine.answer(text="once")
    assert await first.text() == "once"
    if not is_retry:
        kit.engine.answer(text="other")
    assert await second.text() == ("once" if is_retry else "other")
    third = await kit.begin(session_id, [user("a")], headers=headers, **mark)
    assert third.waiting.done()
    assert await third.text() == ("once" if is_retry else "other")


async def test_a_retry_that_joins_before_the_prompt_is_rendered_knows_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered = asyncio.Event()

    async def render_late(*given: Any, **named: Any) -> Any:
        await rendered.wait()
        return await render_prompt(*given, **named)

    monkeypatch.setattr(turn_service, "render_prompt", render_late)
    kit = build_kit()
    session = kit.create()
    first, second = [asyncio.create_task(kit.begin(session, [user("a")], retry=retry, stream=True)) for retry in (0, 1)]
    await settle()
    assert not second.done()
    rendered.set()
    waiters = [(await each).waiter for each in (first, second)]
    assert waiters[0].prompt_tokens == waiters[1].prompt_tokens > 0
    assert len(kit.engine.calls) == 1


async def test_a_retry_that_joins_a_turn_whose_prompt_is_refused_is_refused_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered = asyncio.Event()

    async def refuse_late(*_: Any, **__: Any) -> Any:
        await rendered.wait()
        raise RequestError("no room")

    monkeypatch.setattr(turn_service, "render_prompt", refuse_late)
    kit = build_kit()
    session = kit.create()
    first, second = [asyncio.create_task(kit.begin(session, [user("a")], retry=retry)) for retry in (0, 1)]
    await settle()
    rendered.set()
    with pytest.raises(RequestError, match="no room"):
        await first
    with pytest.raises(RequestError, match="no room"):
        await (await second).waiting
