"""Several engines as one.

1. A session's order of engines depends on nothing but its id and the URLs; losing an engine moves only its sessions.
2. A call that nothing accepted moves on; a reply that breaks off, a refusal or a timeout does not.
3. A failed engine is passed over until its time is up or a probe finds it serving; then its sessions come back.
4. Aborts go to every engine.
"""

from collections import Counter
from typing import Any

import pytest

from engines.builders import make_generation, make_request
from turnkeeper.engines import EngineState, EngineStatus, GenerateRequest, Generation, RelayReply, RelayRequest
from turnkeeper.errors import EngineError, EngineProtocolError, EngineRefusedError, EngineTimeoutError
from turnkeeper.fleet import EnginePool, PoolMember
from turnkeeper.fleet.pool import rank_engines

URLS = ("http://a", "http://b", "http://c")


class FakeEngine:
    """Answers with its URL, or fails as told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.error: EngineError | None = None
        self.calls = 0
        self.aborted: list[str] = []

    async def generate(self, request: GenerateRequest, *, on_ids: Any = None) -> Generation:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return make_generation(url=self.url)

    async def relay(self, call: RelayRequest) -> RelayReply:
        return RelayReply(status=200, headers=(("x-from", self.url),), body=b"")

    async def abort(self, rid: str) -> None:
        self.aborted.append(rid)

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        state = EngineState.UNREACHABLE if self.error else EngineState.SERVING
        return (EngineStatus(url=self.url, state=state),)

    async def close(self) -> None: ...


class Fleet:
    """A pool over three fakes with a clock that the test turns."""

    def __init__(self) -> None:
        self.at = 100.0
        self.fakes = {url: FakeEngine(url) for url in URLS}
        members = [PoolMember(url=url, engine=engine) for url, engine in self.fakes.items()]
        self.pool = EnginePool(members, now=lambda: self.at, retry_s=5.0)

    async def serve(self) -> str:
        return (await self.pool.generate(make_request())).url


ORDER = rank_engines(make_request().session_id, URLS)
REFUSED = EngineError("no connection", accepted=False)


def test_the_order_does_not_depend_on_how_urls_are_listed() -> None:
    assert rank_engines("s", URLS) == rank_engines("s", URLS[::-1])
    assert sorted(rank_engines("s", URLS)) == sorted(URLS)


def test_losing_an_engine_moves_only_its_own_sessions_and_spreads_them() -> None:
    sessions = [f"{number:032x}" for number in range(300)]
    before = {session: rank_engines(session, URLS)[0] for session in sessions}
    after = {session: rank_engines(session, URLS[1:])[0] for session in sessions}
    moved = [session for session in sessions if before[session] != after[session]]
    assert all(before[session] == URLS[0] for session in moved)
    assert min(Counter(before.values()).values()) > 60
    assert min(Counter(after[session] for session in moved).values()) > 20


async def test_a_session_stays_with_its_engine() -> None:
    fleet = Fleet()
    assert [await fleet.serve() for _ in range(3)] == [ORDER[0]] * 3


async def test_a_call_that_nothing_accepted_moves_on_and_comes_back() -> None:
    fleet = Fleet()
    fleet.fakes[ORDER[0]].error = REFUSED
    assert await fleet.serve() == ORDER[1]
    assert await fleet.serve() == ORDER[1]
    assert fleet.fakes[ORDER[0]].calls == 1, "it is passed over while it is down"
    fleet.fakes[ORDER[0]].error = None
    assert await fleet.serve() == ORDER[1]
    fleet.at += 5.1
    assert await fleet.serve() == ORDER[0]


async def test_a_probe_brings_an_engine_back_before_its_time() -> None:
    fleet = Fleet()
    fleet.fakes[ORDER[0]].error = REFUSED
    await fleet.serve()
    fleet.fakes[ORDER[0]].error = None
    assert {status.state for status in await fleet.pool.fetch_status()} == {EngineState.SERVING}
    assert await fleet.serve() == ORDER[0]


async def test_a_probe_takes_an_engine_out_before_a_turn_meets_it() -> None:
    fleet = Fleet()
    fleet.fakes[ORDER[0]].error = REFUSED
    await fleet.pool.fetch_status()
    assert await fleet.serve() == ORDER[1]
    assert fleet.fakes[ORDER[0]].calls == 0


async def test_a_broken_reply_is_an_error_of_that_turn_and_the_next_goes_elsewhere() -> None:
    fleet = Fleet()
    fleet.fakes[ORDER[0]].error = EngineError("reset")
    with pytest.raises(EngineError, match="reset"):
        await fleet.serve()
    assert await fleet.serve() == ORDER[1]


@pytest.mark.parametrize(
    "error",
    [
        EngineProtocolError("odd"),
        EngineRefusedError("400", engine_status=400),
        EngineTimeoutError("slow"),
        EngineError("it takes no calls while it is paused", engine_status=503, engine_paused=True),
        EngineError("404", engine_status=404, engine_answers=True),
    ],
)
async def test_an_answer_that_would_not_differ_elsewhere_moves_nothing(error: EngineError) -> None:
    fleet = Fleet()
    fleet.fakes[ORDER[0]].error = error
    for _ in range(2):
        with pytest.raises(type(error)):
            await fleet.serve()
    assert fleet.fakes[ORDER[0]].calls == 2


async def test_when_nothing_is_up_every_url_is_tried_and_named() -> None:
    fleet = Fleet()
    for fake in fleet.fakes.values():
        fake.error = EngineError(f"no connection to {fake.url}", accepted=False)
    with pytest.raises(EngineError) as caught:
        await fleet.serve()
    assert all(url in str(caught.value) for url in URLS)


async def test_aborts_go_to_every_engine_and_relays_to_the_sessions_own() -> None:
    fleet = Fleet()
    await fleet.pool.abort("r")
    assert [fake.aborted for fake in fleet.fakes.values()] == [["r"]] * 3
    call = RelayRequest(method="GET", path="/v1/models", session_id=make_request().session_id)
    assert (await fleet.pool.relay(call)).headers == (("x-from", ORDER[0]),)
