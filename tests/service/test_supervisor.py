"""Background tasks that fail.

1. A task that fails, with whatever exception, is logged with its traceback, counted, and started again.
2. The wait before the next run doubles up to a limit, and starts anew once the task was sound for a while.
3. The health of the server names a task that failed until the task is sound again.
4. A task that ends properly is not started again; closing ends all tasks, those that wait to be started again too.
5. A failure of one task leaves the others alone.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from servicekit import FakeEngine, build_kit
from turnkeeper.engines import EngineStatus
from turnkeeper.metrics import Metrics
from turnkeeper.service.supervisor import FIRST_PAUSE_S, LONGEST_PAUSE_S, SOUND_AFTER_S, Supervisor
from turnkeeper.testing import ManualClock, settle


class Work:
    """Fails at once with each exception in turn, then waits for ever."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.runs = 0

    async def __call__(self) -> None:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        await asyncio.Event().wait()


FAILURES: dict[str, Callable[[], BaseException]] = {
    "a value error": lambda: ValueError("odd reply"),
    "a key error": lambda: KeyError("state"),
    "a type error": lambda: TypeError("None is no dict"),
    "an operating system error": lambda: OSError("no space left"),
    "a timeout": TimeoutError,
    "a recursion error": RecursionError,
    "an error without memory": MemoryError,
    "a cancelled future that the task waited for": asyncio.CancelledError,
    "a group of errors": lambda: ExceptionGroup("probes", [ValueError("one")]),
    "a very long text": lambda: ValueError("x" * 100_000),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_a_task_that_fails_is_logged_counted_and_started_again(
    failure: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    clock, metrics, work = ManualClock(), Metrics(), Work(failure())
    supervisor = Supervisor(clock, metrics)
    supervisor.start("watch", work)
    await settle()
    assert work.runs == 1
    assert "watch" in caplog.text
    assert "Traceback" in caplog.text
    assert 'turnkeeper_task_failures_total{task="watch"} 1' in bytes(metrics.render()).decode()
    described: Any = supervisor.describe()
    assert described["watch"]["state"] == "restarting"
    assert len(supervisor.list_problems()[0]) < 1000
    await clock.advance(FIRST_PAUSE_S)
    assert work.runs == 2
    described = supervisor.describe()
    assert (described["watch"]["state"], described["watch"]["failures"]) == ("running", 1)
    await supervisor.close()


async def test_the_wait_doubles_up_to_a_limit() -> None:
    clock, work = ManualClock(), Work(*(ValueError() for _ in range(12)))
    supervisor = Supervisor(clock, Metrics())
    supervisor.start("watch", work)
    await settle()
    for failed in range(12):
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**failed)
        await clock.advance(pause_s - 0.01)
        assert work.runs == failed + 1
        await clock.advance(0.01)
        assert work.runs == failed + 2
    await supervisor.close()


async def test_a_problem_is_named_until_the_task_is_sound_again() -> None:
    clock, work = ManualClock(), Work(ValueError("odd reply"))
    supervisor = Supervisor(clock, Metrics())
    supervisor.start("watch", work)
    await settle()
    await clock.advance(FIRST_PAUSE_S + SOUND_AFTER_S - 1)
    assert "watch" in supervisor.list_problems()[0]
    assert "ValueError: odd reply" in supervisor.list_problems()[0]
    await clock.advance(1)
    assert supervisor.list_problems() == ()
    await supervisor.close()


async def test_a_task_that_ends_stays_ended_and_the_others_go_on() -> None:
    async def end() -> None:
        pass

    clock, sound, failing = ManualClock(), Work(), Work(ValueError())
    supervisor = Supervisor(clock, Metrics())
    supervisor.start("load", end)
    supervisor.start("sweep", sound)
    supervisor.start("watch", failing)
    await settle()
    described: Any = supervisor.describe()
    assert {name: each["state"] for name, each in described.items()} == {
        "load": "ended",
        "sweep": "running",
        "watch": "restarting",
    }
    await supervisor.close()
    await clock.advance(LONGEST_PAUSE_S)
    assert (sound.runs, failing.runs) == (1, 1)


class OddEngine(FakeEngine):
    """Its first probe meets something that nobody thought of."""

    probes = 0

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        OddEngine.probes += 1
        if OddEngine.probes == 1:
            raise KeyError("workers")
        return await super().fetch_status()


async def test_health_names_a_watch_that_failed() -> None:
    OddEngine.probes = 0
    kit = build_kit(engine=OddEngine())
    kit.backend.lifecycle.start()
    await settle()
    health: Any = kit.backend.health.describe()
    assert any("engine_watch" in each for each in health["problems"])
    await kit.clock.advance(FIRST_PAUSE_S)
    health = kit.backend.health.describe()
    assert health["tasks"]["engine_watch"] == {"state": "running", "failures": 1, "error": "KeyError: 'workers'"}
    assert health["engines"]
    await kit.backend.lifecycle.close()
