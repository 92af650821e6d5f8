"""The access log: a line for each request, also for one that no route takes, and never a query or a key."""

import logging

import httpx
import pytest

from turnkeeper.http.access_log import AccessLog
from turnkeeper.http.exchange import Receive, Scope, Send
from turnkeeper.logs import LogEvent
from turnkeeper.logs.path import LONGEST_PATH
from turnkeeper.testing import ManualClock


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/fails":
        raise RuntimeError("it fails")
    headers = [(b"x-request-id", b"r-2")] if scope["path"] == "/named" else []
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": b"abc", "more_body": True})
    await send({"type": "http.response.body", "body": b"de"})


async def ask(path: str, caplog: pytest.LogCaptureFixture, **headers: str) -> dict[str, object]:
    caplog.set_level(logging.INFO, "turnkeeper.access")
    transport = httpx.ASGITransport(app=AccessLog(answer, ManualClock()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        await client.get(path, headers=headers)
    (record,) = [each for each in caplog.records if each.name == "turnkeeper.access"]
    assert isinstance(record.msg, LogEvent)
    assert record.msg.name == "http_request"
    return {name: value for name, value in record.msg.fields.items() if value is not None}


async def test_a_request_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert await ask("/a?key=s3cret", caplog, authorization="Bearer s3cret") == {
        "method": "GET",
        "path": "/a",
        "status": 404,
        "size_bytes": 5,
        "seconds": 0.0,
    }


@pytest.mark.parametrize(("path", "expected"), [("/a", "r-1"), ("/named", "r-2")])
async def test_the_id_that_the_response_carries_counts(
    path: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await ask(path, caplog, **{"x-request-id": "r-1"}))["request"] == expected


async def test_a_request_without_a_response_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    fields = await ask("/fails", caplog)
    assert ("status" not in fields, fields["size_bytes"]) == (True, 0)


async def test_what_stands_in_the_place_of_a_session_id_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    assert (await ask("/sessions/s3cret/v1/messages", caplog))["path"] == "/sessions/*/v1/messages"


async def test_a_long_path_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    assert len(str((await ask("/" + "a" * 1000, caplog))["path"])) == LONGEST_PATH
