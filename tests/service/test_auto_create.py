"""Sessions that requests name themselves (``--auto-create-sessions``).

1. A turn opens the session that it names, if the name is a session id that nobody has or lately had.
2. Without the option nothing is opened.
"""

import pytest

from servicekit import build_kit, user
from turnkeeper.errors import CapacityError, SessionNotFoundError

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
