"""When the client asks again.

1. A wait that the server asks for is kept to; others double up to a bound; each has a random part.
2. The calls are bounded in number and time; a wait that is too long is not begun.
3. What was refused is sent again; what may have been served only where that does no harm; anything else never.
4. Where the reply of a deletion got lost, a session that is gone was deleted.
5. A session whose opening is sent again is opened once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from client.forms import LossyTransport
from httpkit import running_site
from turnkeeper.client import NO_RETRY, Retry, SessionClient
from turnkeeper.client.requester import Reply, Request, Requester, build_unreachable
from turnkeeper.client.transports import AiohttpTransport
from turnkeeper.errors import (
    CapacityError,
    RequestError,
    ServerDrainingError,
    ServerReplyError,
    ServerUnreachableError,
    SessionNotFoundError,
    TurnkeeperError,
)

URL = "http://127.0.0.1:1/x"


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The wait after some calls."""

    calls: int = 1
    elapsed_s: float = 0.0
    asked_s: float | None = None
    chance: float = 0.0
    expected: float | None


WAITS = {
    "the first, at least": Wait(expected=0.25),
    "the first, at most": Wait(chance=1.0, expected=0.5),
    "the second": Wait(calls=2, chance=1.0, expected=1.0),
    "a late one": Wait(calls=5, chance=1.0, expected=8.0),
    "asked for": Wait(asked_s=3, expected=3.0),
    "asked for, with its random part": Wait(asked_s=3, chance=1.0, expected=3.25),
    "asked for, at once": Wait(asked_s=0, expected=0.0),
    "calls are used up": Wait(calls=6, expected=None),
    "the time is up": Wait(elapsed_s=59.9, expected=None),
    "longer than the time": Wait(asked_s=61, expected=None),
}


@pytest.mark.parametrize("case", WAITS.values(), ids=WAITS)
def test_the_wait_before_the_next_call(case: Wait) -> None:
    wait_s = Retry().find_wait(case.calls, elapsed_s=case.elapsed_s, asked_s=case.asked_s, chance=case.chance)
    assert wait_s == case.expected


def test_one_attempt_is_no_second_one() -> None:
    assert NO_RETRY.find_wait(1, elapsed_s=0, asked_s=0, chance=0) is None


class ScriptedTransport:
    """Answers what it is told to, one answer a request, and counts the seconds that it is asked to wait."""

    def __init__(self, answers: Sequence[Reply | ServerUnreachableError]) -> None:
        self._answers = list(answers)
        self.waited_s: list[float] = []

    async def __aenter__(self) -> "ScriptedTransport":
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def send(self, request: Request) -> Reply:
        answer = self._answers.pop(0)
        if isinstance(answer, Reply):
            return answer
        raise answer

    async def sleep(self, seconds: float) -> None:
        self.waited_s.append(seconds)

    def now(self) -> float:
        return sum(self.waited_s)


def _reply(status: int, code: str = "", **headers: str) -> Reply:
    body = f'{{"error": "said", "code": "{code}"}}'.encode() if code else b"{}" if status == 200 else b"<html>"
    return Reply(url=URL, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=body)


OK = _reply(200)
REFUSED: dict[str, Reply | ServerUnreachableError] = {
    "no connection": build_unreachable(URL, ConnectionRefusedError(), is_sent=False),
    "full": _reply(429, "capacity", retry_after="1"),
    "draining": _reply(503, "server_draining", retry_after="1"),
}
UNKNOWN: dict[str, Reply | ServerUnreachableError] = {
    "connection lost": build_unreachable(URL, ConnectionResetError(), is_sent=True),
    "no answer in time": build_unreachable(URL, TimeoutError(), is_sent=True),
    "a proxy's 502": _reply(502),
    "a proxy's 503": _reply(503),
    "a proxy's 504": _reply(504),
    "a body that did not come in": _reply(408, "request_timeout"),
}
FINAL: dict[str, tuple[Reply, type[TurnkeeperError]]] = {
    "a bad request": (_reply(400, "request"), RequestError),
    "no session": (_reply(404, "session_not_found"), SessionNotFoundError),
    "another server": (_reply(404), ServerReplyError),
    "an end for good": (_reply(503, "turn_aborted", x_should_retry="false"), TurnkeeperError),
    "an engine that is not there": (_reply(502, "engine"), TurnkeeperError),
    "a redirect": (_reply(302), ServerReplyError),
}


def _build(answers: Sequence[Reply | ServerUnreachableError]) -> tuple[Requester, ScriptedTransport]:
    transport = ScriptedTransport(answers)
    requester = Requester(transport=transport, retry=Retry(), headers={}, now=transport.now, chance=lambda: 1.0)
    return requester, transport


@pytest.mark.parametrize("is_repeatable", [True, False])
@pytest.mark.parametrize("failure", REFUSED.values(), ids=REFUSED)
async def test_what_was_refused_is_sent_again(failure: Any, is_repeatable: bool) -> None:
    requester, transport = _build([failure, failure, OK])
    assert (await requester.call("POST", URL, {}, is_repeatable=is_repeatable)).status == 200
    assert transport.waited_s == ([0.5, 1.0] if isinstance(failure, Exception) else [1.25, 1.5])


@pytest.mark.parametrize("failure", UNKNOWN.values(), ids=UNKNOWN)
async def test_what_may_have_been_served_is_sent_again_where_that_does_no_harm(failure: Any) -> None:
    requester, _ = _build([failure, OK])
    assert (await requester.call("POST", URL, {})).status == 200
    requester, transport = _build([failure, OK])
    with pytest.raises(TurnkeeperError):
        await requester.call("POST", URL, {}, is_repeatable=False)
    assert transport.waited_s == []


@pytest.mark.parametrize(("failure", "kind"), FINAL.values(), ids=FINAL)
async def test_anything_else_is_raised_at_once(failure: Reply, kind: type[TurnkeeperError]) -> None:
    requester, transport = _build([failure, OK])
    with pytest.raises(kind):
        await requester.call("GET", URL)
    assert transport.waited_s == []


async def test_the_calls_are_bounded_in_number_and_in_time() -> None:
    requester, transport = _build([REFUSED["no connection"]] * 6)
    with pytest.raises(ServerUnreachableError):
        await requester.call("GET", URL)
    assert transport.waited_s == [0.5, 1, 2, 4, 8]
    requester, transport = _build([_reply(503, "server_draining", retry_after="25")] * 6)
    with pytest.raises(ServerDrainingError) as caught:
        await requester.call("GET", URL)
    assert (transport.waited_s, caught.value.retry_after_s) == ([25.25, 25.5], 25)


async def test_every_wait_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    requester, _ = _build([REFUSED["full"], OK])
    await requester.call("GET", URL)
    assert [record.getMessage() for record in caplog.records] == [f"GET {URL} failed, trying again in 1.2 s: said"]


async def test_behind_a_lost_reply_a_session_that_is_gone_was_deleted() -> None:
    gone = _reply(404, "session_not_found")
    requester, _ = _build([UNKNOWN["connection lost"], gone])
    await requester.call("DELETE", URL, done=SessionNotFoundError)
    for before in ([], [REFUSED["no connection"]]):
        requester, _ = _build([*before, gone])
        with pytest.raises(SessionNotFoundError):
            await requester.call("DELETE", URL, done=SessionNotFoundError)


Act = Callable[[SessionClient, str], Any]
ACTS: dict[str, Act] = {
    "by its handle": lambda client, session_id: _delete(client, session_id),
    "by its id": lambda client, session_id: client.delete(session_id),
}


async def _delete(client: SessionClient, session_id: str) -> None:
    handle = await client.open(session_id)
    await handle.delete()


@pytest.mark.parametrize("options", [{}, {"api_key": "admin"}], ids=["no keys", "keys"])
async def test_a_session_whose_reply_got_lost_is_opened_once(options: dict[str, str]) -> None:
    async with running_site(max_sessions=1, **options) as site:
        transport = LossyTransport(AiohttpTransport(timeout_s=30), losses=2)
        session = await SessionClient(site.url, transport=transport, **options).create(scopes=["read"])
        assert transport.sent == [("POST", "/sessions")] * 3
        assert [row["session_id"] async for row in SessionClient(site.url, **options).sessions()] == [
            session.session_id
        ]
        headers = {"authorization": f"Bearer {session.key}"}
        assert (await site.call("GET", f"/sessions/{session.session_id}", **headers)).status == 200


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_a_deletion_whose_reply_got_lost_is_done(act: Act) -> None:
    async with running_site() as site:
        transport = LossyTransport(AiohttpTransport(timeout_s=30), losses=0)
        client = SessionClient(site.url, transport=transport)
        session = await client.create()
        transport.losses = 1
        await act(client, session.session_id)
        assert await client.find(session.session_id) is None
        with pytest.raises(SessionNotFoundError):
            await act(client, session.session_id)


async def test_an_abort_whose_reply_got_lost_is_not_sent_again() -> None:
    async with running_site() as site:
        transport = LossyTransport(AiohttpTransport(timeout_s=30), losses=1)
        with pytest.raises(ServerUnreachableError):
            await SessionClient(site.url, transport=transport).abort()
        assert len(transport.sent) == 1


async def test_a_place_for_a_session_is_waited_for() -> None:
    async with running_site(max_sessions=1) as site:
        first = await SessionClient(site.url).create()

        class Transport(AiohttpTransport):
            async def sleep(self, seconds: float) -> None:
                assert seconds >= 1
                await first.delete()

        async with SessionClient(site.url, transport=Transport(timeout_s=30)).session() as second:
            assert second.session_id != first.session_id
            with pytest.raises(CapacityError) as caught:
                await SessionClient(site.url, retry=NO_RETRY).create()
        assert caught.value.retry_after_s == 1
        assert caught.value.hint.startswith("delete sessions")
