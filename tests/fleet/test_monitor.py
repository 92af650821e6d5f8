"""An eye on the engines.

1. A pause that an engine began by itself closes the gate, its end opens it.
2. Versions are asked for once, and again only after the trainer has spoken; engines that name none are not asked twice.
3. A poll that began before a request of the trainer is out of date.
4. It remembers which engines got other weights.
5. A router whose workers are out of reach is named once: what is abandoned there cannot be aborted.
6. It polls more often while paused or asked to, at once when woken; callers share a poll. Once closed it polls no more.
"""

import asyncio

import pytest

from engines.fakes import URL, FakeEngine
from turnkeeper.choices import PauseMode
from turnkeeper.engines import EngineState, EngineStatus
from turnkeeper.fleet import EngineMonitor
from turnkeeper.generation import Gate
from turnkeeper.testing import ManualClock, settle


class Desk:
    """A monitor with everything that it needs."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.clock = ManualClock()
        self.gate = Gate(self.clock)
        self.monitor = EngineMonitor(self.engine, self.gate, self.clock, interval_s=2.0, fast_interval_s=0.25)


async def test_a_pause_that_is_seen_closes_the_gate_and_its_end_opens_it() -> None:
    desk = Desk()
    desk.engine.state = EngineState.PAUSED
    await desk.monitor.poll()
    assert (desk.gate.is_open, desk.monitor.state) == (False, EngineState.PAUSED)
    desk.engine.state = EngineState.UNREACHABLE
    await desk.monitor.poll()
    assert (desk.gate.is_open, desk.monitor.state) == (True, EngineState.UNREACHABLE)
    desk.engine.state = EngineState.SERVING
    await desk.monitor.poll()
    assert desk.monitor.state is EngineState.SERVING


async def test_versions_are_asked_for_once_and_again_after_the_trainer_spoke() -> None:
    desk = Desk()
    assert await desk.monitor.fetch_versions() == {URL: "1"}
    await desk.monitor.fetch_versions()
    assert desk.engine.probes == 1
    desk.monitor.note_version(URL, "2")
    assert await desk.monitor.fetch_versions() == {URL: "2"}
    desk.gate.pause(PauseMode.RETRACT)
    assert desk.monitor.find_version(URL) is None, "the trainer may change it at any time now"
    desk.engine.version = "3"
    assert await desk.monitor.fetch_versions() == {URL: "3"}
    assert desk.engine.probes == 2


async def test_engines_that_name_no_version_are_not_asked_twice() -> None:
    desk = Desk()
    desk.engine.version = None
    assert await desk.monitor.fetch_versions() == {}
    assert await desk.monitor.fetch_versions() == {}
    assert desk.engine.probes == 1


async def test_a_look_from_before_the_trainer_spoke_is_out_of_date() -> None:
    desk = Desk()
    begun, answer = asyncio.Event(), asyncio.Event()

    async def slow_probe() -> tuple[EngineStatus, ...]:
        begun.set()
        await answer.wait()
        return (EngineStatus(url=URL, state=EngineState.PAUSED, weight_version="old"),)

    desk.gate.pause(PauseMode.RETRACT)
    desk.engine.fetch_status = slow_probe  # type: ignore[method-assign]
    poll = asyncio.create_task(desk.monitor.poll())
    await begun.wait()
    desk.gate.resume()
    answer.set()
    await poll
    assert desk.gate.is_open
    assert desk.monitor.find_version(URL) is None


async def test_it_knows_which_engines_were_updated_since_it_watches() -> None:
    desk = Desk()
    assert not desk.monitor.was_updated(URL), "nothing was seen yet, and nothing was paused"
    await desk.monitor.poll()
    desk.gate.pause(PauseMode.IN_PLACE)
    desk.gate.resume()
    assert not desk.monitor.was_updated(URL), "a pause is no update"
    assert desk.monitor.was_updated("http://silent"), "an engine that names no version may have been"
    desk.monitor.note_version(URL, "2")
    assert desk.monitor.was_updated(URL)
    desk.monitor.note_version(URL, "2")
    assert desk.monitor.was_updated(URL), "its cache may still be older"


async def test_callers_at_the_same_time_share_a_look() -> None:
    desk = Desk()
    await asyncio.gather(*(desk.monitor.poll() for _ in range(5)))
    assert desk.engine.probes == 1


async def test_it_looks_more_often_while_something_is_about_to_change() -> None:
    desk = Desk()
    run = asyncio.create_task(desk.monitor.run())
    await desk.clock.wait_for_sleepers(1)
    assert desk.engine.probes == 1
    await desk.clock.advance(1.0)
    assert desk.engine.probes == 1
    desk.monitor.poll_often(1.0)
    await settle()
    assert desk.engine.probes == 2
    await desk.clock.advance(0.5)
    assert desk.engine.probes == 4
    desk.gate.pause(PauseMode.RETRACT)
    await desk.clock.advance(10.0)
    assert desk.engine.probes == 44
    run.cancel()


async def test_a_router_whose_workers_are_out_of_reach_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    await desk.monitor.poll()
    assert not caplog.records
    desk.engine.can_abort = False
    await desk.monitor.poll()
    await desk.monitor.poll()
    assert [record.message.split()[0] for record in caplog.records] == [URL]


async def test_a_look_ends_with_the_watch() -> None:
    desk = Desk()
    ended = asyncio.Event()

    async def probe_for_ever() -> tuple[EngineStatus, ...]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ()

    desk.engine.fetch_status = probe_for_ever  # type: ignore[method-assign]
    run = asyncio.create_task(desk.monitor.run())
    await settle()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    assert not ended.is_set()
    await desk.monitor.close()
    assert ended.is_set()
