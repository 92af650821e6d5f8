"""Sessions that requests name themselves (``--auto-create-sessions``).

1. A turn opens the session that it names, if the name is a session id that nobody has or lately had.
2. Without the option nothing is opened.
3. A session does not stay behind its refused first turn.
"""

import pytest

from servicekit import assistant, build_kit, user
from turnkeeper.errors import CapacityError, RequestError, SessionNotFoundError

SESSION = "ab" * 16


async def test_a_turn_opens_the_session_that_it_names() -> None:
    kit = build_kit(auto_create_sessions=True)
    assert await kit.say(SESSION, [user("a")], "hello") == "hello"
    assert len(kit.look(SESSION).forest) == 1


@pytest.mark.parametrize("name", ["short", "AB" * 16, "zz" * 16])
async def test_a_name_that_is_no_session_id_opens_nothing(name: str) -> None:
    kit = build_kit(auto_create_sessions=True)
    with pytest.raises(SessionNotFoundError):
        await kit.begin(name, [user("a")])


async def test_a_straggler_does_not_open_a_deleted_session_again() -> None:
    kit = build_kit(auto_create_sessions=True)
    await kit.say(SESSION, [user("a")])
    kit.service.delete(SESSION)
    with pytest.raises(SessionNotFoundError):
        await kit.begin(SESSION, [user("a")])
    await kit.clock.advance(601)
    kit.service.sweep()
    assert await kit.say(SESSION, [user("a")]) == "ok"


async def test_the_limit_of_sessions_holds() -> None:
    kit = build_kit(auto_create_sessions=True, max_sessions=1)
    kit.create()
    with pytest.raises(CapacityError):
        await kit.begin(SESSION, [user("a")])


async def test_without_the_option_nothing_is_opened() -> None:
    kit = build_kit()
    with pytest.raises(SessionNotFoundError):
        await kit.begin(SESSION, [user("a")])


@pytest.mark.parametrize("why", ["assistant last", "too long", "own example last"])
async def test_a_session_does_not_stay_behind_its_refused_first_turn(why: str) -> None:
    kit = build_kit(auto_create_sessions=True, max_seq_len=40)
    refused = {
        "assistant last": [user("a"), assistant("b")],
        "too long": [user("word " * 100)],
        "own example last": [user("b"), assistant("c"), user("d"), assistant("e")],
    }[why]
    with pytest.raises(RequestError):
        await kit.begin(SESSION, refused)
    assert (await kit.service.list_sessions())["sessions"] == []
    with pytest.raises(SessionNotFoundError):
        kit.find_entry(SESSION)
    assert await kit.say(SESSION, [user("a")]) == "ok"  # and the name may be used


async def test_a_session_that_another_request_uses_stays() -> None:
    kit = build_kit(auto_create_sessions=True, max_seq_len=40)
    turn = await kit.begin(SESSION, [user("a")])
    with pytest.raises(RequestError):
        await kit.begin(SESSION, [user("word " * 100)])
    kit.engine.answer(text="ok")
    assert await turn.text() == "ok"


async def test_a_refused_later_turn_leaves_its_session() -> None:
    kit = build_kit(auto_create_sessions=True, max_seq_len=40)
    await kit.say(SESSION, [user("a")])
    with pytest.raises(RequestError):
        await kit.begin(SESSION, [user("word " * 100)])
    assert len(kit.look(SESSION).forest) == 1


async def test_what_is_refused_leaves_no_memory_behind() -> None:
    kit = build_kit(auto_create_sessions=True, max_seq_len=40)
    for number in range(20):
        with pytest.raises(RequestError):
            await kit.begin(f"{number:032x}", [user("word " * 100)])
    assert "turnkeeper_session_bytes 0.0" in bytes(kit.backend.metrics.render()).decode()
    assert "turnkeeper_sessions 0.0" in bytes(kit.backend.metrics.render()).decode()
