"""Turns that take long.

1. A turn is reported once it is old enough, and again each time its age has doubled.
2. The report says what the turn waits for, and which engine has it.
3. A turn that has ended is forgotten.
"""

from servicekit import ENGINE_URL, Kit, build_kit, user
from turnkeeper.service.turns import DelayWatch
from turnkeeper.telemetry import TurnDelayed, TurnPhase


def build_watch(kit: Kit) -> DelayWatch:
    return DelayWatch(
        kit.parts.registry, kit.clock, after_s=10.0, publish=kit.reports.append, find_engine=lambda _: ENGINE_URL
    )


def list_delays(kit: Kit) -> list[TurnDelayed]:
    return [report for report in kit.reports if isinstance(report, TurnDelayed)]


async def test_a_turn_is_reported_at_an_age_and_each_time_it_has_doubled() -> None:
    kit = build_kit()
    watch, flight = build_watch(kit), await kit.begin(kit.create(), [user("a")])
    for _ in range(17):
        watch.look()
        await kit.clock.advance(2.5)
    watch.look()
    assert [report.age_s for report in list_delays(kit)] == [10.0, 20.0, 40.0]
    kit.engine.answer(text="done")
    await flight.read()
    await kit.clock.advance(100)
    watch.look()
    assert len(list_delays(kit)) == 3


async def test_the_report_says_what_the_turn_waits_for() -> None:
    kit = build_kit()
    watch, session_id = build_watch(kit), kit.create()
    flight = await kit.begin(session_id, [user("a")])
    await kit.clock.advance(12.5)
    watch.look()
    (report,) = list_delays(kit)
    assert (report.session_id, report.number, report.phase) == (session_id, 0, TurnPhase.ENGINE)
    assert (report.age_s, report.phase_age_s, report.engine_calls, report.engine_url) == (12.5, 12.5, 1, ENGINE_URL)
    kit.engine.answer(text="done")
    await flight.read()


async def test_a_number_that_is_used_again_elsewhere_is_another_turn() -> None:
    kit = build_kit()
    watch = build_watch(kit)
    flights = [await kit.begin(kit.create(), [user("a")])]
    await kit.clock.advance(10)
    watch.look()
    flights.append(await kit.begin(kit.create(), [user("a")]))
    await kit.clock.advance(9)
    watch.look()
    assert len(list_delays(kit)) == 1
    await kit.clock.advance(1)
    watch.look()
    assert len({report.session_id for report in list_delays(kit)}) == 2
    for flight in flights:
        kit.engine.answer(text="done")
        await flight.read()
