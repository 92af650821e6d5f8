"""Tasks that a server begins and nobody awaits.

1. Whatever one raises is logged with its traceback, counted by its kind, and named by the health of the server for a
   while, as is the kind's state; no failure is reported by the interpreter only.
2. A failure ends nothing else: the turn, the session and the server go on, and the next task of the kind runs.
3. What waited for a recording and fails neither fails the turn that was recorded nor keeps the rest from being done.
4. Clients of a turn whose task failed, or was cancelled, in a way that nobody foresaw get an error instead of waiting
   for ever, and the turn is in flight no longer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest

from servicekit import FakeEngine, Kit, assistant, build_kit, user
from turnkeeper.engines import EngineStatus
from turnkeeper.http.exchange import Exchange
from turnkeeper.metrics import Metrics
from turnkeeper.service.sessions import SessionEntry
from turnkeeper.service.sessions.footprint import Part
from turnkeeper.service.supervisor import SOUND_AFTER_S, Supervisor
from turnkeeper.testing import ManualClock, settle

ASK = [user("a")]


def explode(*_: object, **__: object) -> NoReturn:
    raise KeyError("nobody thought of it")


class OddEngine(FakeEngine):
    """Its control routes meet something that nobody thought of, while it is odd."""

    is_odd = False

    async def abort(self, rid: str) -> None:
        if self.is_odd:
            explode()

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        await asyncio.sleep(0)
        return explode() if self.is_odd else await super().fetch_status()


def make_odd(kit: Kit, is_odd: bool) -> None:
    assert isinstance(kit.engine, OddEngine)
    kit.engine.is_odd = is_odd


async def fail_abort(kit: Kit) -> None:
    """The engine cannot be told to give up a turn whose client left."""
    turn = await kit.begin(kit.create(), ASK)
    make_odd(kit, True)
    await turn.hang_up()
    await kit.clock.advance(2)


async def fail_look(kit: Kit) -> None:
    """Whoever asked for a look at the engines is gone when it fails."""
    make_odd(kit, True)
    caller = asyncio.create_task(kit.parts.monitor.poll())
    await asyncio.sleep(0)
    caller.cancel()
    await settle()


async def fail_grace(kit: Kit) -> None:
    """A turn cannot be given up at the end of the reconnect grace."""
    session = kit.create()
    turn = await kit.begin(session, ASK)
    kit.look(session).abandon = explode  # pyright: ignore[reportAttributeAccessIssue] - the fault
    await turn.hang_up()
    await kit.clock.advance(2)


async def fail_relief(kit: Kit) -> None:
    """Rows cannot be moved to disk, and not because of the disk."""
    session = kit.create()
    await kit.say(session, ASK)
    entry = kit.find_entry(session)
    entry.memory.used_bytes = 1 << 60
    entry.held[Part.ROWS] = 1
    kit.service.sweep()
    await kit.service.describe(session)
    await kit.parts.memory.settle()
    entry.memory.used_bytes = 0
    await settle()


async def fail_watch(kit: Kit) -> None:
    """The connection of a client fails in an odd way while its turn is generated."""

    async def receive() -> NoReturn:
        explode()

    async def send(_: object) -> None:
        pass

    async with Exchange({"method": "GET", "path": "/", "headers": []}, receive, send) as exchange:
        exchange.watch(kit.backend.spawn)
        left = asyncio.Event()
        exchange.call_when_gone(left.set)
        await settle()
        assert exchange.is_gone
        assert left.is_set()


FAILURES: dict[str, Callable[[Kit], Awaitable[None]]] = {
    "engine_aborts": fail_abort,
    "engine_looks": fail_look,
    "reconnect_grace": fail_grace,
    "hang_up_watches": fail_watch,
}


@pytest.mark.parametrize(("kind", "fail"), FAILURES.items(), ids=FAILURES.keys())
async def test_a_failure_is_logged_counted_and_shown(
    kind: str, fail: Callable[[Kit], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    kit = build_kit(engine=OddEngine())
    await fail(kit)
    assert kind in caplog.text
    assert "Traceback" in caplog.text
    assert f'turnkeeper_task_failures_total{{task="{kind}"}} 1' in bytes(kit.backend.metrics.render()).decode()
    health: Any = kit.backend.health.describe()
    shown = health["tasks"][kind]
    assert (shown["state"], shown["failures"]) == ("ended", 1)
    assert "nobody thought of it" in shown["error"]
    assert any(kind in problem for problem in health["problems"])
    await kit.clock.advance(SOUND_AFTER_S)
    later: Any = kit.backend.health.describe()
    assert not any(kind in problem for problem in later["problems"])
    kit.engine.auto = "ok"
    make_odd(kit, False)
    assert await kit.say(kit.create(), ASK) == "ok"


async def test_a_relief_that_fails_is_begun_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SessionEntry, "note_spilled", explode)
    kit = build_kit(engine=FakeEngine(auto="ok"))
    failures = 0
    for _ in range(2):
        await fail_relief(kit)
        health: Any = kit.backend.health.describe()
        assert health["tasks"]["memory_relief"]["failures"] > failures
        failures = health["tasks"]["memory_relief"]["failures"]
    assert "Traceback" in caplog.text


async def test_tasks_of_a_kind_share_a_row() -> None:
    supervisor = Supervisor(ManualClock(), Metrics())
    first, second = asyncio.Event(), asyncio.Event()
    tasks = [supervisor.spawn("calls", event.wait()) for event in (first, second)]
    described: Any = supervisor.describe()
    assert described["calls"]["state"] == "running"
    first.set()
    await settle()
    described = supervisor.describe()
    assert described["calls"]["state"] == "running"
    tasks[1].cancel()
    await settle()
    described = supervisor.describe()
    assert described == {"calls": {"state": "ended", "failures": 0, "error": None}}
    assert supervisor.list_problems() == ()


async def test_who_awaits_a_task_gets_its_result_or_its_error() -> None:
    supervisor = Supervisor(ManualClock(), Metrics())

    async def answer() -> int:
        return 7

    async def fail() -> int:
        raise ValueError("no")

    assert await supervisor.spawn("calls", answer()) == 7
    with pytest.raises(ValueError, match="no"):
        await supervisor.spawn("calls", fail())


async def test_what_waited_for_a_recording_and_fails_does_not_fail_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    stored, done = asyncio.Event(), list[str]()

    async def store(*_: object) -> None:
        await stored.wait()

    kit = build_kit(store_turn=store)
    session = kit.create()
    entry = kit.find_entry(session)
    turn = await kit.begin(session, ASK)
    kit.engine.answer(text="ok")
    await settle()
    assert entry.is_recording
    for action in (explode, lambda: done.append("first"), explode, lambda: done.append("second")):
        entry.after_recording(action)
    stored.set()
    assert await turn.text() == "ok"
    assert done == ["first", "second"]
    assert caplog.text.count("Traceback") == 2
    assert len(entry.session.forest) == 1
    following = await kit.begin(session, [*ASK, assistant("ok"), user("b")])
    kit.engine.answer(text="on")
    assert await following.text() == "on"


async def test_a_delete_that_fails_behind_a_recording_leaves_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = asyncio.Event()

    async def store(*_: object) -> None:
        await stored.wait()

    kit = build_kit(store_turn=store)
    session = kit.create()
    turn = await kit.begin(session, ASK)
    kit.engine.answer(text="ok")
    await settle()
    kit.service.delete(session)
    monkeypatch.setattr(SessionEntry, "release", explode)
    stored.set()
    assert await turn.text() == "ok"


async def test_clients_of_a_turn_whose_task_failed_get_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = build_kit()
    session = kit.create()
    turn = await kit.begin(session, ASK)
    monkeypatch.setattr(SessionEntry, "publish", explode)
    kit.engine.answer(text="ok")
    with pytest.raises(KeyError):
        await turn.waiting
    monkeypatch.undo()
    health: Any = kit.backend.health.describe()
    assert health["tasks"]["turns"]["failures"] == 1


async def cancel_the_call(kit: Kit) -> None:
    """What the engine call waited for was cancelled."""
    kit.engine.calls[-1].reply.cancel()


async def cancel_the_task(kit: Kit) -> None:
    """Somebody cancelled the task."""
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "turns")
    task.cancel()


async def break_the_call(kit: Kit) -> None:
    """The engine call ended with what is no ordinary exception."""
    kit.engine.calls[-1].reply.set_exception(BaseExceptionGroup("odd", [GeneratorExit()]))


ENDS = {"the call": cancel_the_call, "the task": cancel_the_task, "an odd exception": break_the_call}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_turn_whose_task_ended_is_over(end: Callable[[Kit], Awaitable[None]]) -> None:
    kit = build_kit()
    session = kit.create()
    turn = await kit.begin(session, ASK)
    await end(kit)
    with pytest.raises(RuntimeError, match="cancelled, or failed"):
        await asyncio.wait_for(turn.waiting, 5)
    assert not kit.find_entry(session).in_flight
    assert kit.find_entry(session).held[Part.IN_FLIGHT] == 0
    following = await kit.begin(session, ASK)
    kit.engine.answer(text="on")
    assert await following.text() == "on"


async def test_a_held_turn_whose_task_ended_is_over() -> None:
    kit = build_kit()
    session = kit.create()
    turn = await kit.begin(session, ASK)
    await turn.hang_up()
    kit.engine.answer(text="ok")
    await settle()
    await cancel_the_task(kit)
    await settle()
    assert not kit.find_entry(session).in_flight
    assert not kit.find_entry(session).session.forest.turns
