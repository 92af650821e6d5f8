"""Whether engines take new turns.

1. Closed while the trainer says so or any engine was seen paused; repeating is harmless, another mode is refused.
2. A turn that waits goes on when it opens, and is a retryable 503 at its deadline.
3. A wait for a closing ends at the closing, at its end, or at the signal, and does not miss a short pause.
4. Ending all turns reaches those in flight and no later one.
"""

import asyncio

import pytest

from turnkeeper.choices import PauseMode
from turnkeeper.errors import EnginePausedError, RequestError
from turnkeeper.generation import Gate
from turnkeeper.testing import ManualClock, settle


def never() -> asyncio.Event:
    return asyncio.Event()


def test_it_is_closed_while_the_trainer_says_so_or_an_engine_was_seen_paused() -> None:
    gate = Gate(ManualClock())
    assert gate.is_open
    gate.pause(PauseMode.RETRACT)
    gate.pause(PauseMode.RETRACT)
    assert (gate.is_open, gate.mode, gate.closings) == (False, PauseMode.RETRACT, 1)
    gate.resume()
    gate.resume()
    gate.observe("a", is_paused=True)
    gate.observe("b", is_paused=True)
    gate.observe("a", is_paused=False)
    assert (gate.is_open, gate.mode, gate.closings) == (False, None, 2)
    gate.observe("b", is_paused=False)
    assert gate.is_open


def test_the_trainers_word_outweighs_what_was_seen_before() -> None:
    gate = Gate(ManualClock())
    gate.observe("a", is_paused=True)
    gate.resume()
    assert gate.is_open


def test_another_mode_while_paused_is_refused_and_changes_nothing() -> None:
    gate = Gate(ManualClock())
    gate.pause(PauseMode.ABORT)
    with pytest.raises(RequestError, match=r"mode abort.*mode in_place"):
        gate.pause(PauseMode.IN_PLACE)
    assert gate.mode is PauseMode.ABORT


async def test_a_turn_waits_until_it_opens() -> None:
    clock = ManualClock()
    gate = Gate(clock)
    gate.pause(PauseMode.RETRACT)
    turn = asyncio.create_task(gate.wait_open(600, never()))
    await clock.wait_for_sleepers(1)
    await clock.advance(599)
    assert not turn.done()
    gate.resume()
    await turn
    await gate.wait_open(600, never())


async def test_the_deadline_is_a_retryable_503() -> None:
    clock = ManualClock()
    gate = Gate(clock)
    gate.pause(PauseMode.RETRACT)
    turn = asyncio.create_task(gate.wait_open(600, never()))
    await clock.wait_for_sleepers(1)
    await clock.advance(600)
    with pytest.raises(EnginePausedError, match="600 s") as caught:
        await turn
    assert (caught.value.http_status, caught.value.is_retryable, caught.value.retry_after_s) == (503, True, 30)


async def test_a_wait_for_a_closing_sees_even_a_short_one() -> None:
    clock = ManualClock()
    gate = Gate(clock)
    wait = asyncio.create_task(gate.wait_closed(2.0, never()))
    await clock.wait_for_sleepers(1)
    gate.pause(PauseMode.ABORT)
    gate.resume()
    await clock.advance(2.0)
    assert await wait
    gate.pause(PauseMode.ABORT)
    assert await gate.wait_closed(2.0, never())


async def test_a_wait_for_a_closing_ends_at_its_time_or_at_the_signal() -> None:
    clock = ManualClock()
    gate = Gate(clock)
    late = asyncio.create_task(gate.wait_closed(2.0, never()))
    ended = asyncio.create_task(gate.wait_closed(2.0, gate.abort_signal))
    await clock.wait_for_sleepers(2)
    gate.abort_turns()
    await settle()
    assert (ended.done(), late.done()) == (True, False)
    await clock.advance(2.0)
    assert (await ended, await late) == (False, False)


async def test_ending_turns_reaches_those_that_wait_and_no_later_one() -> None:
    clock = ManualClock()
    gate = Gate(clock)
    gate.pause(PauseMode.RETRACT)
    signal = gate.abort_signal
    turn = asyncio.create_task(gate.wait_open(600, signal))
    await clock.wait_for_sleepers(1)
    gate.abort_turns()
    await turn
    assert signal.is_set()
    assert not gate.abort_signal.is_set()
