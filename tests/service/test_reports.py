"""The reports of a server.

1. Every turn in flight is reported twice, at its beginning and at its end, whatever its end.
2. The end says how long the turn was in each phase, which engine answered and what became of its tokens.
3. Sessions, pauses, engines and collects are reported when they change, and only then.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import pytest

from servicekit import ENGINE_URL, Kit, assistant, build_kit, user
from turnkeeper.choices import PauseMode
from turnkeeper.core import Cause, DropReason, FinishReason, Label
from turnkeeper.engines import EngineState
from turnkeeper.errors import EngineError
from turnkeeper.telemetry import (
    EngineCallEnded,
    EngineChanged,
    PauseChanged,
    SamplesAcknowledged,
    SamplesCollected,
    SessionBegan,
    SessionEnded,
    TurnBegan,
    TurnEnd,
    TurnEnded,
    TurnPhase,
    TurnTimes,
)
from turnkeeper.testing import settle

Kind = TypeVar("Kind")


def select(kit: Kit, kind: type[Kind]) -> Sequence[Kind]:
    return [report for report in kit.reports if isinstance(report, kind)]


async def test_a_recorded_turn_is_reported_with_its_times_and_its_engine() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.backend.control.pause(PauseMode.ABORT, forward=False)
    turn = await kit.begin(session_id, [user("hi")], headers={"x-request-id": "r-1"})
    await kit.clock.advance(2.0)
    await kit.backend.control.resume(forward=False)
    await settle()
    await kit.clock.advance(3.0)
    kit.engine.answer(text="hello")
    await turn.read()
    (began,), (ended,) = select(kit, TurnBegan), select(kit, TurnEnded)
    recorded = kit.look(session_id).forest.get(ended.turn_id)
    assert (began.session_id, began.number, began.dialect) == (session_id, ended.number, "chat")
    assert (ended.end, ended.turn_id, ended.parent) == (TurnEnd.RECORDED, 0, None)
    assert (ended.label, ended.cause, ended.finish_reason) == (Label.ROOT, Cause.FIRST, FinishReason.STOP)
    assert (ended.times.gate_s, ended.times.engine_s, ended.times.here_s) == (2.0, 3.0, 0.0)
    assert (ended.prompt_tokens, ended.sampled_tokens) == (len(recorded.prompt.ids), len(recorded.completion.ids))
    assert (ended.engine_url, ended.engine_calls, ended.weight_version, ended.error) == (ENGINE_URL, 1, "v0", None)
    assert kit.find_entry(session_id).turn_costs[recorded.id].times == ended.times


async def test_a_turn_that_goes_on_is_an_extension_and_one_that_asks_anew_a_branch() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    await kit.say(session_id, [user("hi")])
    await kit.say(session_id, [user("hi"), assistant("ok"), user("more")])
    await kit.say(session_id, [user("hi"), assistant("ok"), user("other")])
    assert [(each.label, each.cause) for each in select(kit, TurnEnded)] == [
        (Label.ROOT, Cause.FIRST),
        (Label.EXTENSION, Cause.NONE),
        (Label.BRANCH, Cause.INPUT_CHANGED),
    ]


async def test_a_failed_call_is_reported_with_its_error() -> None:
    kit = build_kit()
    turn = await kit.begin(kit.create(), [user("hi")])
    await kit.clock.advance(1.5)
    error = EngineError("no", url=ENGINE_URL)
    kit.engine.fail(error)
    with pytest.raises(EngineError):
        await turn.read()
    (ended,), (call,) = select(kit, TurnEnded), select(kit, EngineCallEnded)
    assert (ended.end, ended.error, ended.turn_id, ended.times) == (
        TurnEnd.FAILED,
        error,
        None,
        TurnTimes(engine_s=1.5),
    )
    assert (call.url, call.seconds, call.error, call.is_cancelled) == (ENGINE_URL, 1.5, error, False)


async def test_a_turn_whose_client_left_is_reported_with_what_was_dropped() -> None:
    kit = build_kit(reconnect_grace=1.0)
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("hi")])
    await turn.hang_up()
    await kit.clock.advance(1.0)
    (ended,), (call,) = select(kit, TurnEnded), select(kit, EngineCallEnded)
    assert (ended.end, ended.drop_reason, ended.sampled_tokens) == (TurnEnd.ABANDONED, DropReason.CLIENT_GONE, None)
    assert call.is_cancelled
    assert kit.find_entry(session_id).turn_costs == {}


async def test_a_turn_in_flight_shows_its_phase_and_its_engine() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.begin(session_id, [user("hi")])
    await kit.clock.advance(4.0)
    (turn,) = kit.find_entry(session_id).in_flight.values()
    assert (turn.phases.phase, turn.phases.phase_age_s) == (TurnPhase.ENGINE, 4.0)
    assert kit.parts.calls.find_url(turn.call_status.rid) == ENGINE_URL
    assert kit.parts.calls.count() == {ENGINE_URL: 1}
    kit.engine.answer()
    await settle()
    assert kit.parts.calls.count() == {}


async def test_a_session_is_reported_when_it_begins_and_when_it_ends() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = kit.create()
    await kit.say(session_id, [user("hi")])
    await kit.clock.advance(7.0)
    sampled = kit.look(session_id).ledger.sampled
    kit.service.delete(session_id)
    (began,), (ended,) = select(kit, SessionBegan), select(kit, SessionEnded)
    assert (began.session_id, began.history) == (session_id, "tree")
    assert (ended.session_id, ended.reason, ended.turns, ended.age_s) == (session_id, "deleted", 1, 7.0)
    assert (ended.sampled_tokens, ended.uncollected_tokens) == (sampled, sampled)


async def test_a_collect_is_reported_with_its_size() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("hi")])
    payload = await kit.service.collect(session_id)
    (collected,) = select(kit, SamplesCollected)
    assert (collected.session_id, collected.samples, collected.size_bytes) == (session_id, 1, payload.size_bytes)
    assert collected.trainable_tokens == kit.look(session_id).ledger.sampled


async def test_an_acknowledgement_is_reported_with_its_receipt() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("hi")])
    receipt = (await kit.service.collect(session_id)).receipt
    assert receipt is not None
    await kit.service.acknowledge(session_id, receipt)
    (collected,), (acknowledged,) = select(kit, SamplesCollected), select(kit, SamplesAcknowledged)
    assert (acknowledged.session_id, acknowledged.turns) == (session_id, 1)
    assert acknowledged.receipt == collected.receipt == receipt
    assert "turnkeeper_acknowledgements_total 1.0" in kit.backend.metrics.render().decode()


async def test_the_first_tokens_of_a_stream_are_timed() -> None:
    kit = build_kit(on_abort="resume")
    session_id = kit.create()
    turn = await kit.begin(session_id, [user("hi")], stream=True)
    await kit.clock.advance(2.0)
    kit.engine.calls[-1].stream("hel")
    await kit.clock.advance(1.0)
    kit.engine.calls[-1].stream("lo")
    kit.engine.answer(text="hello")
    await turn.read()
    await kit.say(session_id, [user("hi"), assistant("hello"), user("and")])
    first, second = select(kit, TurnEnded)
    assert (first.first_token_s, second.first_token_s) == (2.0, None)
    metrics = kit.backend.metrics.render().decode()
    assert "turnkeeper_first_token_seconds_count 1.0" in metrics
    assert "turnkeeper_first_token_seconds_sum 2.0" in metrics


async def test_pauses_and_engines_are_reported_when_they_change_and_only_then() -> None:
    kit = build_kit()
    watch = asyncio.create_task(kit.parts.monitor.run())
    await settle()
    await kit.clock.advance(10.0)
    kit.engine.state = EngineState.UNREACHABLE
    await kit.clock.advance(10.0)
    kit.engine.state, kit.engine.version = EngineState.SERVING, "v1"
    await kit.clock.advance(10.0)
    kit.engine.state = EngineState.PAUSED
    await kit.clock.advance(5.0)
    kit.engine.state = EngineState.SERVING
    await kit.clock.advance(10.0)
    watch.cancel()
    seen = [(each.state_before, each.state, each.weight_version) for each in select(kit, EngineChanged)]
    assert seen == [
        (None, "serving", "v0"),
        ("serving", "unreachable", "v0"),
        ("unreachable", "serving", "v1"),
        ("serving", "paused", "v1"),
        ("paused", "serving", "v1"),
    ]
    closed, opened = select(kit, PauseChanged)
    assert (closed.is_paused, closed.mode, opened.is_paused, opened.mode) == (True, None, False, None)
    assert opened.seconds == opened.at - closed.at > 0
