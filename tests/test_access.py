"""Who may do what, as a pure decision.

1. A stranger is let in nowhere but where the route is open, and is told the same wherever it knocks: 401.
2. The key of a session opens what its scopes say, in its own session alone; ``turn`` it always has. What it does not
   open is a 403 that says what is needed.
3. The admin's key opens everything. A reward is the admin's alone.
4. A route without a row has no answer.
"""

import pytest

from turnkeeper.access import ACCESS, GRANTABLE, Caller, Grant, Right, authorize, find_right, refuse_reward
from turnkeeper.errors import AuthenticationError, PermissionDeniedError, TurnkeeperError
from turnkeeper.ids import SessionId

MINE, OTHER = SessionId("a" * 32), SessionId("b" * 32)
STRANGER = Caller()
ADMIN = Caller(is_admin=True)


def hold(*scopes: Right, session_id: SessionId = MINE) -> Grant:
    return Grant(session_id=session_id, scopes=frozenset(scopes))


def agent(*scopes: Right) -> Caller:
    return Caller(grants=(hold(Right.TURN, *scopes),))


def decide(right: Right, caller: Caller, session_id: str | None = MINE) -> type[TurnkeeperError] | None:
    try:
        authorize(right, caller, session_id)
    except (AuthenticationError, PermissionDeniedError) as error:
        return type(error)
    return None


@pytest.mark.parametrize("right", Right)
@pytest.mark.parametrize("session_id", [MINE, OTHER, "no id at all", "", None])
def test_a_stranger_is_told_the_same_everywhere(right: Right, session_id: str | None) -> None:
    for caller in (STRANGER, Caller(other_keys=("sk-1",)), Caller(other_keys=(MINE,))):
        assert decide(right, caller, session_id) is (None if right is Right.OPEN else AuthenticationError)


@pytest.mark.parametrize("right", Right)
@pytest.mark.parametrize("session_id", [MINE, OTHER, "no id at all", None])
def test_the_admin_may_do_everything(right: Right, session_id: str | None) -> None:
    assert decide(right, ADMIN, session_id) is None
    assert decide(right, Caller(is_admin=True, other_keys=("x",), grants=(hold(Right.TURN),)), session_id) is None


SCOPES = [Right.READ, Right.COLLECT, Right.DELETE]


@pytest.mark.parametrize("granted", [(), *[(scope,) for scope in SCOPES], tuple(SCOPES)])
@pytest.mark.parametrize("right", Right)
def test_a_key_opens_its_scopes(right: Right, granted: tuple[Right, ...]) -> None:
    expected = None if right in (Right.OPEN, Right.TURN, *granted) else PermissionDeniedError
    assert decide(right, agent(*granted)) is expected
    assert decide(right, agent(*granted), OTHER) is (None if right is Right.OPEN else PermissionDeniedError)
    assert decide(right, agent(*granted), "whatever") is (None if right is Right.OPEN else PermissionDeniedError)


def test_what_two_keys_open_is_open() -> None:
    both = Caller(grants=(hold(Right.TURN), hold(Right.TURN, Right.READ, session_id=OTHER)), other_keys=("stale",))
    assert decide(Right.TURN, both, MINE) is None
    assert decide(Right.READ, both, OTHER) is None
    assert decide(Right.READ, both, MINE) is PermissionDeniedError
    assert decide(Right.ADMIN, both, None) is PermissionDeniedError


def test_a_refusal_says_what_is_needed() -> None:
    with pytest.raises(PermissionDeniedError, match=r'scope read .*POST /sessions \{"scopes": \["read"\]\}'):
        authorize(Right.READ, agent(), MINE)
    with pytest.raises(PermissionDeniedError, match=r"another session"):
        authorize(Right.TURN, agent(), OTHER)
    with pytest.raises(PermissionDeniedError, match=r"the admin's key is needed .*--api-key"):
        authorize(Right.ADMIN, agent(*GRANTABLE), None)
    with pytest.raises(AuthenticationError, match=r"missing .*the session's key as Authorization: Bearer or x-api-key"):
        authorize(Right.TURN, STRANGER, MINE)
    with pytest.raises(AuthenticationError, match=r"unknown, or its session has ended .*the admin's key"):
        authorize(Right.ADMIN, Caller(other_keys=("sk-1",)), None)


def test_no_refusal_repeats_a_key_or_an_id() -> None:
    for right in (each for each in Right if each is not Right.OPEN):
        for caller in (Caller(other_keys=("sk-secret",)), agent()):
            with pytest.raises((AuthenticationError, PermissionDeniedError)) as caught:
                authorize(right, caller, OTHER)
            shown = f"{caught.value} {caught.value.facts}"
            assert not any(text in shown for text in ("sk-secret", MINE, OTHER))


def test_a_reward_is_the_admins_alone() -> None:
    refuse_reward(ADMIN)
    for caller in (agent(*GRANTABLE), agent(Right.COLLECT), STRANGER):
        with pytest.raises(PermissionDeniedError, match="a reward needs the admin's key"):
            refuse_reward(caller)


def test_a_route_without_a_row_has_no_answer() -> None:
    for method, path in [("GET", "/new"), ("POST", "/health"), ("PUT", "/sessions"), ("GET", "/sessions/{id}")]:
        with pytest.raises(LookupError, match=f"no row for {method} {path}"):
            find_right(method, path)


def test_head_asks_for_what_get_asks_for_unless_it_has_a_row() -> None:
    assert find_right("HEAD", "/sessions/{session_id}") is Right.TURN
    assert find_right("GET", "/sessions/{session_id}") is Right.READ
    assert find_right("HEAD", "/metrics") is Right.ADMIN


def test_every_right_stands_in_the_table() -> None:
    assert set(ACCESS.values()) == set(Right)
