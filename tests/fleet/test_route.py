"""What is known of the route to each engine, and what that means for turns.

1. A route is probed once, when its URL is first seen serving; again when it came back, or something else serves there.
2. None is probed while the gate is closed, the engine is paused or not there; a pause ends the probe it meets.
3. A turn waits a little for the first result; a check without an answer, or one that failed, holds up none.
4. A turn on an unfit route is refused with the reason and makes no engine call; only a fatal result does that.
5. A bad result is renewed by a turn once it has some age, and at intervals without one; a good one stands.
6. One warning for one problem; the problems and the counts are those of now.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from engines.builders import make_generation, make_request
from engines.fakes import URL, FakeEngine
from turnkeeper.choices import EngineWire, PauseMode
from turnkeeper.engines import EngineState, EngineStatus, GenerateRequest, Generation, RelayRequest
from turnkeeper.errors import EngineProtocolError
from turnkeeper.fleet.check_result import RouteCheckResult, RouteState
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.fleet.route_check import RouteStatus
from turnkeeper.generation import Gate
from turnkeeper.telemetry import Report, RouteChanged
from turnkeeper.testing import ManualClock, settle

SERVING = EngineStatus(url=URL, state=EngineState.SERVING)
GONE = EngineStatus(url=URL, state=EngineState.UNREACHABLE)
PAUSED = EngineStatus(url=URL, state=EngineState.PAUSED)
SOUND = RouteCheckResult(state=RouteState.SOUND, sampled_tokens=2)
UNFIT = RouteCheckResult(state=RouteState.UNFIT, reason="the flag --x is missing", is_fatal=True)
SILENT = RouteCheckResult(state=RouteState.UNCHECKED, reason="no answer")


@dataclass(eq=False)
class Stage:
    """A checker of one route whose probes wait until the test answers them."""

    clock: ManualClock = field(default_factory=ManualClock)
    checks: list[asyncio.Future[RouteCheckResult]] = field(default_factory=list)
    results: list[RouteCheckResult] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = Gate(self.clock)
        self.routes = RouteChecker(
            [f"{URL}/"],
            gate=self.gate,
            clock=self.clock,
            check=self.check,
            on_result=self.results.append,
            publish=self.reports.append,
        )
        self.engine = FakeEngine(answer)
        self.checked = self.routes.wrap(URL, self.engine)

    async def check(self, url: str) -> RouteStatus:
        assert url == URL
        self.checks.append(asyncio.get_running_loop().create_future())
        return RouteStatus(engine=SERVING, result=await self.checks[-1])

    async def see(self, *statuses: EngineStatus) -> None:
        for status in statuses:
            self.routes.note_statuses([status])
            await settle()

    async def answer(self, result: RouteCheckResult) -> None:
        self.checks[-1].set_result(result)
        await settle()

    async def begin_turn(self) -> asyncio.Task[Generation]:
        turn = asyncio.create_task(self.checked.generate(make_request()))
        await settle()
        return turn


async def answer(request: GenerateRequest) -> Generation:
    return make_generation()


@asynccontextmanager
async def staged() -> AsyncGenerator[Stage]:
    stage = Stage()
    owner = asyncio.create_task(stage.routes.run())
    await settle()
    yield stage
    owner.cancel()
    await asyncio.gather(owner, return_exceptions=True)


async def test_a_route_is_probed_once() -> None:
    async with staged() as stage:
        await stage.see(SERVING, SERVING)
        await stage.answer(SOUND)
        await stage.clock.advance(10_000)
        await stage.see(SERVING)
        assert len(stage.checks) == 1
        assert stage.results == [SOUND]


@pytest.mark.parametrize(
    "statuses",
    [
        pytest.param([GONE, SERVING], id="came back"),
        pytest.param([replace(SERVING, workers=("http://w",))], id="other workers"),
        pytest.param([replace(SERVING, wire=EngineWire.GENERATE, is_disaggregated=True)], id="serves otherwise"),
    ],
)
async def test_a_route_is_probed_again_when_something_else_may_serve(statuses: list[EngineStatus]) -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        await stage.answer(SOUND)
        await stage.see(*statuses)
        assert len(stage.checks) == 2


@pytest.mark.parametrize("status", [GONE, PAUSED])
async def test_an_engine_that_cannot_answer_is_not_probed(status: EngineStatus) -> None:
    async with staged() as stage:
        await stage.see(status)
        assert not stage.checks
        assert (await stage.checked.generate(make_request())).url  # and holds no turn up


async def test_no_probe_runs_during_a_pause() -> None:
    async with staged() as stage:
        stage.gate.pause(PauseMode.IN_PLACE)
        await stage.see(SERVING)
        assert not stage.checks
        stage.gate.resume()
        await stage.see(SERVING)
        assert len(stage.checks) == 1


async def test_a_pause_ends_the_probe_it_meets() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        stage.gate.pause(PauseMode.RETRACT)
        await settle()
        assert stage.checks[0].cancelled()
        stage.gate.resume()
        await stage.see(SERVING)
        assert len(stage.checks) == 2


async def test_the_end_of_the_keeper_ends_its_probes() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
    assert stage.checks[0].cancelled()
    assert (await stage.checked.generate(make_request())).url


@pytest.mark.parametrize("result", [SOUND, SILENT, replace(UNFIT, is_fatal=False)])
async def test_a_turn_waits_for_the_first_result(result: RouteCheckResult) -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        turn = await stage.begin_turn()
        assert not stage.engine.requests
        await stage.answer(result)
        assert (await turn).url


async def test_a_turn_that_waits_is_refused_by_the_result() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        turn = await stage.begin_turn()
        await stage.answer(UNFIT)
        with pytest.raises(EngineProtocolError, match="the flag --x is missing") as caught:
            await turn
        assert caught.value.facts["url"] == URL
        assert not stage.engine.requests


async def test_a_probe_without_an_answer_holds_no_turn_up_for_long() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        turn = await stage.begin_turn()
        await stage.clock.advance(5)
        assert turn.done()
        assert len(stage.engine.requests) == 1


async def test_a_probe_that_fails_on_its_own_holds_no_turn_up(caplog: pytest.LogCaptureFixture) -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        turn = await stage.begin_turn()
        stage.checks[0].set_exception(RuntimeError("a mistake"))
        assert (await turn).url
    assert "the probe of" in caplog.text


async def test_turns_on_an_unfit_route_are_refused_without_an_engine_call() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        await stage.answer(UNFIT)
        for _ in range(3):
            with pytest.raises(EngineProtocolError, match="--x"):
                await stage.checked.generate(make_request())
        assert (len(stage.checks), stage.engine.requests) == (1, [])


async def test_a_turn_renews_a_bad_result_of_some_age() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        await stage.answer(UNFIT)
        await stage.clock.advance(5)
        turns = [await stage.begin_turn() for _ in range(2)]
        assert len(stage.checks) == 2
        await stage.answer(SOUND)
        assert [(await turn).url for turn in turns]


async def test_a_renewed_result_may_be_as_bad() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        await stage.answer(UNFIT)
        await stage.clock.advance(5)
        turn = await stage.begin_turn()
        await stage.answer(UNFIT)
        with pytest.raises(EngineProtocolError, match="--x"):
            await turn
        assert not stage.engine.requests


@pytest.mark.parametrize("result", [UNFIT, SILENT])
async def test_looks_renew_what_is_not_good(result: RouteCheckResult) -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        await stage.answer(result)
        await stage.clock.advance(29)
        await stage.see(SERVING)
        assert len(stage.checks) == 1
        await stage.clock.advance(1)
        await stage.see(SERVING)
        assert len(stage.checks) == 2


async def test_one_problem_is_reported_once() -> None:
    async with staged() as stage:
        await stage.see(SERVING)
        for result in (UNFIT, UNFIT, SOUND):
            await stage.answer(result)
            problems = stage.routes.list_problems()
            assert bool(problems) == (result is UNFIT)
            await stage.clock.advance(30)
            await stage.see(SERVING)
        counts = [stage.routes.count(state) for state in RouteState]
    assert counts == [0, 1, 0]
    changes = [(each.url, each.state, each.reason) for each in stage.reports if isinstance(each, RouteChanged)]
    assert changes == [(URL, "unfit", "the flag --x is missing"), (URL, "sound", "")]


async def test_the_guard_passes_everything_else_through() -> None:
    stage = Stage()
    await stage.checked.abort("r")
    assert stage.engine.aborted == ["r"]
    assert (await stage.checked.fetch_status())[0].url == URL
    with pytest.raises(NotImplementedError):
        await stage.checked.relay(RelayRequest(method="GET", path="/"))
    await stage.checked.close()
    await stage.see(replace(SERVING, url="http://stranger"))
    assert not stage.checks
