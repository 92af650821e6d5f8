"""A turn in flight: its states, and what may happen while it is being recorded.

1. Only the transitions of the table are legal; recorded, failed and abandoned turns stay what they are.
2. A turn is invisible until it is stored; a store that fails leaves the session as it was, and its client gets the
   error.
3. While a turn is being recorded a hang-up does not end it, an equal retry joins it, and a request that would go on
   from it waits for it.
4. DELETE and an abort of everything take effect behind the recording.
5. Turns of one session are recorded one after the other, each under the next id.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import product

import pytest

from servicekit import Kit, Turn, assistant, build_kit, user
from turnkeeper.core import DropReason
from turnkeeper.core import Turn as CommittedTurn
from turnkeeper.errors import SessionClosedError, SessionNotFoundError
from turnkeeper.service.sessions import SessionEntry
from turnkeeper.service.turns import TurnInFlight, TurnState
from turnkeeper.service.turns.in_flight import TRANSITIONS
from turnkeeper.testing import settle


@dataclass
class SlowStore:
    """Stores a turn when it is told to."""

    begun: list[CommittedTurn] = field(default_factory=list[CommittedTurn])
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None

    async def store(self, entry: SessionEntry, turn: CommittedTurn) -> None:
        assert len(entry.session.forest) == turn.id, "the turn is not part of the session yet"
        self.begun.append(turn)
        await self.go_on.wait()
        if self.error is not None:
            raise self.error

    async def finish(self) -> None:
        self.go_on.set()
        await settle()


@dataclass(kw_only=True)
class Stage:
    """A session whose first turn is being recorded."""

    kit: Kit
    store: SlowStore
    session_id: str
    turn: Turn

    @classmethod
    async def build(cls, **options: object) -> "Stage":
        store = SlowStore()
        kit = build_kit(store_turn=store.store, **options)
        session_id = kit.create()
        turn = await kit.begin(session_id, [user("a")], key="k")
        kit.engine.answer(text="hello")
        await settle()
        assert [each.id for each in store.begun] == [0]
        return cls(kit=kit, store=store, session_id=session_id, turn=turn)

    def count_turns(self) -> int:
        return len(self.kit.look(self.session_id).forest)


LEGAL = [(state, after) for state, follow in TRANSITIONS.items() for after in follow]
ILLEGAL = [pair for pair in product(TurnState, TurnState) if pair not in LEGAL]


async def begin_turn() -> TurnInFlight:
    kit = build_kit()
    session_id = kit.create()
    await kit.begin(session_id, [user("a")])
    return kit.find_entry(session_id).in_flight[0]


def test_every_state_has_its_row() -> None:
    assert set(TRANSITIONS) == set(TurnState)


@pytest.mark.parametrize(("state", "after"), ILLEGAL)
async def test_a_transition_that_is_not_in_the_table_is_refused(state: TurnState, after: TurnState) -> None:
    turn = await begin_turn()
    turn.state = state
    with pytest.raises(RuntimeError, match=f"a turn that is {state} cannot become {after}"):
        turn._move(after)
    assert turn.state is state


@pytest.mark.parametrize("state", [state for state, follow in TRANSITIONS.items() if not follow])
async def test_a_turn_that_is_over_is_neither_failed_nor_abandoned(state: TurnState) -> None:
    turn = await begin_turn()
    turn.state = state
    turn.fail(ValueError("late"))
    turn.abandon(DropReason.DELETED, ValueError("late"))
    assert turn.state is state
    assert turn.is_over


async def test_a_turn_is_invisible_until_it_is_stored() -> None:
    stage = await Stage.build()
    assert stage.count_turns() == 0
    assert not stage.turn.waiting.done()
    await stage.store.finish()
    assert stage.count_turns() == 1
    assert await stage.turn.text() == "hello"


async def test_a_store_that_fails_leaves_the_session_as_it_was() -> None:
    stage = await Stage.build()
    stage.store.error = OSError("no space left")
    await stage.store.finish()
    with pytest.raises(OSError, match="no space left"):
        await stage.turn.waiting
    session = stage.kit.look(stage.session_id)
    assert (len(session.forest), session.in_flight) == (0, 0)
    assert session.ledger.dropped.keys() == {DropReason.STREAM_FAILED}
    stage.store.error = None
    assert await stage.kit.say(stage.session_id, [user("a")], "again") == "again"


async def test_a_hang_up_does_not_end_a_recording() -> None:
    stage = await Stage.build()
    await stage.turn.hang_up()
    await stage.kit.clock.advance(60)
    await stage.store.finish()
    assert stage.count_turns() == 1
    assert stage.kit.look(stage.session_id).ledger.dropped == {}


async def test_an_equal_retry_joins_a_recording() -> None:
    stage = await Stage.build()
    again = await stage.kit.begin(stage.session_id, [user("a")], key="k")
    assert not again.waiting.done()
    await stage.store.finish()
    assert [await stage.turn.text(), await again.text()] == ["hello", "hello"]
    assert (len(stage.kit.engine.calls), stage.count_turns()) == (1, 1)


async def test_a_request_that_would_go_on_from_the_turn_waits_for_it() -> None:
    stage = await Stage.build()
    history = [user("a"), assistant("hello"), user("b")]
    begun = asyncio.create_task(stage.kit.begin(stage.session_id, history))
    await settle()
    assert not begun.done()
    assert len(stage.kit.engine.calls) == 1
    await stage.store.finish()
    second = await begun
    stage.kit.engine.answer(text="more")
    assert await second.text() == "more"
    assert [turn.parent for turn in stage.kit.look(stage.session_id).forest.turns] == [None, 0]


async def test_a_delete_takes_effect_behind_the_recording() -> None:
    stage = await Stage.build()
    session = stage.kit.look(stage.session_id)
    stage.kit.service.delete(stage.session_id)
    with pytest.raises(SessionNotFoundError):
        stage.kit.look(stage.session_id)
    assert session.closed_as is None
    await stage.store.finish()
    assert await stage.turn.text() == "hello"
    assert (len(session.forest), session.closed_as) == (1, "deleted")


async def test_an_abort_of_everything_takes_effect_behind_the_recording() -> None:
    stage = await Stage.build()
    stage.kit.service.abort_all()
    await stage.store.finish()
    assert await stage.turn.text() == "hello"
    assert stage.count_turns() == 1
    with pytest.raises(SessionClosedError):
        await stage.kit.begin(stage.session_id, [user("b")])


async def test_turns_of_a_session_are_recorded_one_after_the_other() -> None:
    stage = await Stage.build(use_session_server="v2")
    other = asyncio.create_task(stage.kit.begin(stage.session_id, [user("a")], seed=2))
    await settle()
    assert not other.done(), "it might go on from the turn that is being recorded"
    await stage.store.finish()
    second = await other
    stage.store.go_on.clear()
    third = await stage.kit.begin(stage.session_id, [user("c")])
    stage.kit.engine.answer(1, text="third")
    await settle()
    stage.kit.engine.answer(0, text="second")
    await settle()
    assert [turn.id for turn in stage.store.begun] == [0, 1]
    await stage.store.finish()
    assert [await third.text(), await second.text()] == ["third", "second"]
    assert [turn.id for turn in stage.store.begun] == [0, 1, 2]
