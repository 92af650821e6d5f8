"""Query parameters of the control plane.

1. Each parameter of the list sets its field; conditions on metadata are as many as there are keys.
2. What is unknown, or has a value that it cannot have, is refused by name, with what is allowed.
3. The flags of a session are on, off or refused; other parameters mean nothing there.
4. The list's route answers with what was asked for, and with a 400 where that makes no sense.
"""

from typing import Any

import pytest

from httpkit import running_site
from turnkeeper.errors import RequestError
from turnkeeper.http.queries import LIST_PARAMETERS, SESSION_FLAGS, parse_session_flags, parse_session_query
from turnkeeper.service.sessions import ListOrder, SessionQuery, SessionStatus
from turnkeeper.telemetry import TurnPhase

QUERIES: dict[str, SessionQuery] = {
    "": SessionQuery(),
    "limit=7": SessionQuery(limit=7),
    "limit=7&limit=8": SessionQuery(limit=8),
    "after=abc": SessionQuery(after="abc"),
    "after=": SessionQuery(after=""),
    "order=in_flight": SessionQuery(order=ListOrder.IN_FLIGHT),
    "state=closed": SessionQuery(state=SessionStatus.CLOSED),
    "in_flight=1": SessionQuery(in_flight=True),
    "in_flight=false": SessionQuery(in_flight=False),
    "phase=gate&min_age=2.5": SessionQuery(phase=TurnPhase.GATE, min_age_s=2.5),
    "min_idle=60": SessionQuery(min_idle_s=60.0),
    "metadata.task=7&metadata.a.b=x%20y&metadata.e=": SessionQuery(metadata={"task": "7", "a.b": "x y", "e": ""}),
    "metadata.task=7&metadata.task=8": SessionQuery(metadata={"task": "8"}),
}


@pytest.mark.parametrize(("text", "query"), QUERIES.items(), ids=QUERIES)
def test_parameters_set_their_fields(text: str, query: SessionQuery) -> None:
    assert parse_session_query(text) == query


REFUSED: dict[str, tuple[str, str]] = {
    "phse=gate": ("phse", "known: limit, after, order, state, in_flight, phase, min_age, min_idle, metadata.KEY"),
    "metadata=1": ("metadata", "metadata.KEY"),
    "limit=0": ("limit", "from 1 to 1000"),
    "limit=": ("limit", "from 1 to 1000"),
    "limit=%D9%A3": ("limit", "from 1 to 1000"),
    "order=newest": ("order", "id, in_flight, created, idle, bytes"),
    "state=OPEN": ("state", "open, closed"),
    "in_flight=yes": ("in_flight", "1, true, 0 or false"),
    "phase=": ("phase", "rendering, gate, engine, held, recording"),
    "min_age=-1": ("min_age", "seconds from 0 on"),
    "min_age=nan": ("min_age", "seconds from 0 on"),
    "min_age=inf": ("min_age", "seconds from 0 on"),
    "min_idle=soon": ("min_idle", "seconds from 0 on"),
    f"min_idle={'9' * 5000}": ("min_idle", "seconds from 0 on"),
}


@pytest.mark.parametrize(("text", "expected"), REFUSED.items(), ids=[text[:20] for text in REFUSED])
def test_what_makes_no_sense_is_refused_by_name(text: str, expected: tuple[str, str]) -> None:
    name, allowed = expected
    with pytest.raises(RequestError) as caught:
        parse_session_query(text)
    assert caught.value.facts["param"] == name
    assert allowed in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_row_of_the_table_sets_a_field_of_the_query() -> None:
    fields = [row.field for row in LIST_PARAMETERS.values()]
    assert {*fields, "metadata"} == set(SessionQuery.__dataclass_fields__)


@pytest.mark.parametrize("name", SESSION_FLAGS)
def test_flags_are_on_or_off(name: str) -> None:
    off = dict.fromkeys(SESSION_FLAGS, False)
    assert parse_session_flags("") == parse_session_flags(f"{name}=0") == parse_session_flags("other=x") == off
    assert parse_session_flags(f"{name}=1") == parse_session_flags(f"{name}=true") == off | {name: True}
    with pytest.raises(RequestError, match=f"{name} must be 1, true, 0 or false, got 'x'"):
        parse_session_flags(f"{name}=x")


async def test_the_list_answers_what_was_asked_for() -> None:
    async with running_site() as site:
        session_id = (await site.create(metadata={"task": 7})).removeprefix("/sessions/")
        await site.create()
        found = (await site.call("GET", "/sessions?metadata.task=7&order=created&state=open")).json()
        assert [row["session_id"] for row in found["sessions"]] == [session_id]
        none = (await site.call("GET", "/sessions?in_flight=1")).json()
        worker = none.pop("worker")
        assert none == {"sessions": [], "next": None}
        assert worker == (await site.call("GET", "/health")).json()["worker"]
        assert (worker["number"], worker["count"]) == (0, 1)
        bad: list[tuple[str, Any]] = [("?phse=1", "phse"), ("?order=idle&after=x", "after"), ("?min_age=x", "min_age")]
        for query, name in bad:
            reply = await site.call("GET", f"/sessions{query}")
            assert (reply.status, reply.json()["code"]) == (400, "request")
            assert name in reply.json()["error"]
        assert (await site.call("GET", f"/sessions/{session_id}?branches=2")).status == 400
