"""Headers of requests and of errors.

1. The key of a session is a bearer token or an ``x-api-key``; only headers of harnesses are kept, at most
   256 characters of each.
2. 429 and a passing 503 say when to retry; what stays refused says not to; a final abort says not to.
"""

import pytest

from turnkeeper.errors import (
    CapacityError,
    EngineError,
    EnginePausedError,
    EngineProtocolError,
    EngineRefusedError,
    EngineTimeoutError,
    HistoryDivergedError,
    SessionClosedError,
    TurnAbortedError,
    TurnkeeperError,
    UnsupportedEncodingError,
)
from turnkeeper.http.headers import (
    build_error_headers,
    list_session_keys,
    read_marks,
    select_harness_headers,
)

KEYS = {
    "none": ({}, ()),
    "bearer": ({"authorization": "Bearer abc"}, ("abc",)),
    "bearer in lower case": ({"authorization": "bearer abc "}, ("abc",)),
    "basic": ({"authorization": "Basic abc"}, ()),
    "bearer without token": ({"authorization": "Bearer ", "x-api-key": "k"}, ("k",)),
    "x-api-key": ({"x-api-key": "k"}, ("k",)),
    "both": ({"authorization": "Bearer a", "x-api-key": " b "}, ("a", "b")),
    "spaces and tabs around": ({"authorization": "Bearer \t a \t", "x-api-key": "\tb "}, ("a", "b")),
    "a space that is no blank behind": ({"authorization": "Bearer a\xa0", "x-api-key": "b\x85"}, ("a\xa0", "b\x85")),
    "two in one line": ({"authorization": "Bearer a, Bearer b"}, ("a, Bearer b",)),
    "a tab behind the scheme": ({"authorization": "Bearer\ta"}, ()),
    "no scheme": ({"authorization": "a"}, ()),
}


@pytest.mark.parametrize(("headers", "keys"), KEYS.values(), ids=KEYS.keys())
def test_the_keys_of_a_request(headers: dict[str, str], keys: tuple[str, ...]) -> None:
    assert list_session_keys(headers) == keys


def test_only_headers_of_harnesses_are_kept() -> None:
    assert select_harness_headers({"session-id": "a", "cookie": "b"}) == {"session-id": "a"}


def test_a_long_header_is_kept_short_and_stays_itself() -> None:
    long, other = "a" * 5000, "a" * 4999 + "b"
    kept = [select_harness_headers({"session-id": each})["session-id"] for each in (long, other)]
    assert kept[0] != kept[1]
    assert kept[0] == select_harness_headers({"session-id": long})["session-id"]
    assert {len(each) for each in kept} == {256}
    assert len(read_marks({"idempotency-key": long}).key) == 256
    assert read_marks({"idempotency-key": "a" * 256}).key == "a" * 256


NO_RETRY = {"x-should-retry": "false"}
ERRORS: list[tuple[TurnkeeperError, dict[str, str]]] = [
    (HistoryDivergedError("x"), NO_RETRY),
    (SessionClosedError("x"), NO_RETRY),
    (UnsupportedEncodingError("x"), {"accept-encoding": "identity", **NO_RETRY}),
    (EngineProtocolError("x"), NO_RETRY),
    (TurnAbortedError("x"), NO_RETRY),
    (EngineRefusedError("x", engine_status=400), NO_RETRY),
    (EngineRefusedError("x", engine_status=429), {"retry-after": "1"}),
    (EngineRefusedError("x", engine_status=429, retry_after_s=9), {"retry-after": "9"}),
    (CapacityError("x"), {"retry-after": "1"}),
    (EnginePausedError("x"), {"retry-after": "1"}),
    (EngineError("x"), {}),
    (EngineTimeoutError("x"), {}),
]


@pytest.mark.parametrize(("error", "headers"), ERRORS, ids=[f"{type(error).__name__}" for error, _ in ERRORS])
def test_an_error_tells_whether_to_try_again(error: TurnkeeperError, headers: dict[str, str]) -> None:
    assert build_error_headers(error) == headers
