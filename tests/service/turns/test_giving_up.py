"""What is accounted for when a turn is given up, by where it stands.

1. At the closed gate no engine was asked: nothing is counted.
2. Between an aborted call and the next one, the aborted piece is counted, and no call of unknown length.
3. During the next call both are.
4. A turn that runs out of its time counts in the same way.
"""

import pytest

from servicekit import Kit, Turn, build_kit, user
from turnkeeper.choices import PauseMode
from turnkeeper.core import DropReason
from turnkeeper.testing import settle


async def pause(kit: Kit) -> None:
    await kit.backend.control.pause(PauseMode.ABORT, forward=False)
    await settle()


async def begin_aborted_turn(kit: Kit, session_id: str) -> Turn:
    """A turn whose engine call an update cut short after four tokens, and that waits for the engines."""
    turn = await kit.begin(session_id, [user("a")])
    await pause(kit)
    kit.engine.answer(text="a b c d", finish_reason="abort")
    await settle()
    return turn


async def leave(kit: Kit, turn: Turn) -> None:
    await turn.hang_up()
    await kit.clock.advance(2)


def read_drops(kit: Kit, session_id: str) -> tuple[dict[DropReason, int], dict[DropReason, int]]:
    ledger = kit.look(session_id).ledger
    return dict(ledger.dropped), dict(ledger.calls)


async def test_at_the_gate_nothing_is_counted() -> None:
    kit = build_kit(pause_generation_mode="abort")
    session_id = kit.create()
    await pause(kit)
    await leave(kit, await kit.begin(session_id, [user("a")]))
    assert not kit.engine.calls
    assert read_drops(kit, session_id) == ({}, {})


@pytest.mark.parametrize("on_abort", ["restart", "resume"])
async def test_after_an_aborted_call_its_piece_is_counted(on_abort: str) -> None:
    kit = build_kit(pause_generation_mode="abort", on_abort=on_abort)
    session_id = kit.create()
    await leave(kit, await begin_aborted_turn(kit, session_id))
    assert len(kit.engine.calls) == 1
    dropped, calls = read_drops(kit, session_id)
    assert dropped.keys() == {DropReason.ABORTED_PIECE}
    assert dropped[DropReason.ABORTED_PIECE] > 0
    assert calls == {}


@pytest.mark.parametrize("on_abort", ["restart", "resume"])
async def test_during_the_next_call_both_are_counted(on_abort: str) -> None:
    kit = build_kit(pause_generation_mode="abort", on_abort=on_abort)
    session_id = kit.create()
    turn = await begin_aborted_turn(kit, session_id)
    await kit.backend.control.resume(forward=False)
    await settle()
    assert len(kit.engine.waiting) == 1
    await leave(kit, turn)
    dropped, calls = read_drops(kit, session_id)
    assert dropped.keys() == {DropReason.ABORTED_PIECE}
    assert calls == {DropReason.CLIENT_GONE: 1}


async def test_a_deleted_turn_counts_in_the_same_way() -> None:
    kit = build_kit(pause_generation_mode="abort")
    session_id = kit.create()
    await pause(kit)
    turn = await kit.begin(session_id, [user("a")])
    session = kit.look(session_id)
    kit.service.delete(session_id)
    await settle()
    assert turn.waiting.done()
    assert not session.ledger.calls


@pytest.mark.parametrize("is_paused", [True, False])
async def test_a_turn_out_of_time_counts_what_was_asked(is_paused: bool) -> None:
    kit = build_kit(pause_generation_mode="abort", request_timeout=0.01, engine_timeout=0.005, gate_timeout=0.005)
    session_id = kit.create()
    if is_paused:
        await pause(kit)
    turn = await kit.begin(session_id, [user("a")])
    with pytest.raises(Exception, match="no reply within"):
        await turn.waiting
    _, calls = read_drops(kit, session_id)
    assert calls == ({} if is_paused else {DropReason.REFUSED_REPLY: 1})
