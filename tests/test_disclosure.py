"""What a caller is told who is not the admin.

1. No text keeps an address: a URL, an IP address, a name with a port, a private name, the name of a known engine.
2. What is no address stays: times, versions, numbers, code.
3. An error stays what it is: class, status, code, and when to try again. Where its text holds what somebody else said,
   a sentence stands in its place; an engine's refusal keeps its words.
"""

from collections.abc import Iterator

import pytest

from turnkeeper import errors
from turnkeeper.disclosure import hide_addresses, hide_addresses_in, list_hosts, tell
from turnkeeper.errors import EngineError, EngineRefusedError, RequestError, TurnkeeperError

HIDDEN: dict[str, str] = {
    "the engine at http://10.0.0.3:30000 refuses the request: too long": "the engine refuses the request: too long",
    "the reply of http://gpu-7:30000/v1/chat/completions has no id": "the reply of the engine has no id",
    "https://user:secret@engine.example/v1 answered 400": "the engine answered 400",
    "see http://a.b/c, http://d.e.": "see the engine, the engine.",
    "ws://[::1]:80/x": "the engine",
    "to=http%3A%2F%2Fgpu-7%3A30000%2Fv1&x": "to=the engine",
    "HTTPS%3a%2f%2Fgpu-7.": "the engine.",
    "Cannot connect to host 127.0.0.1:9 ssl:default": "Cannot connect to host [address] ssl:default",
    "[Connect call failed ('127.0.0.1', 9)]": "[Connect call failed [address]]",
    "[Connect call failed ('fe80::1', 9, 0, 2)]": "[Connect call failed [address]]",
    "worker gpu-node-17:30000 is gone": "worker [address] is gone",
    "worker engine:8000, or engine_2:8001.": "worker [address], or [address].",
    "at 192.168.1.20": "at [address]",
    "at 192.168.1.20, and 10.0.0.1:80": "at [address], and [address]",
    "peer=10.1.2.3;": "peer=[address];",
    "from ::1": "from [address]",
    "from [2001:db8::5]:30000 to 2001:db8:0:0:0:0:0:5": "from [address] to [address]",
    "rpc to sgl-0.sgl.default.svc.cluster.local failed": "rpc to [address] failed",
    "rpc to worker-3.internal:1 failed": "rpc to [address] failed",
    "localhost refused": "[address] refused",
    "LOCALHOST:30000 refused": "[address] refused",
    "gaierror: h200-a is unknown": "gaierror: [address] is unknown",
    "H200-A, (h200-a) h200-a:80": "[address], ([address]) [address]",
}
KEPT = (
    "the request has 40000 tokens, the limit is 32768",
    "at 12:30:45 on 2026-12-01T06:31:30Z",
    "sglang 0.5.9, torch 2.9.1+cu129",
    "a.b.c and x.y",
    "temperature must be 0.0 to 2.0, got -1.5",
    "C::D, f(x)[1:3], {'a': 1, 'b': [2, 3]}",
    "regex [0-9a-f]+ and [a:b]",
    "::",
    "h200-ab and my-h200-a",
    "",
)


@pytest.mark.parametrize(("text", "told"), HIDDEN.items())
def test_an_address_is_hidden(text: str, told: str) -> None:
    assert hide_addresses(text, ["h200-a"]) == told


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_address_stays(text: str) -> None:
    assert hide_addresses(text, ["h200-a", ""]) == text


def test_all_texts_of_a_value_are_looked_through() -> None:
    value = {"id": "x", "at": ["http://a:1", {"10.0.0.1": 1.5, "n": None}], "ok": True}
    assert hide_addresses_in(value) == {"id": "x", "at": ["the engine", {"[address]": 1.5, "n": None}], "ok": True}


def test_hosts_of_urls() -> None:
    urls = ["http://gpu-1:30000/x", "https://u:p@E.example", "not a url", "http://[::1]:3", "http://[broken"]
    assert list_hosts(urls) == ["gpu-1", "e.example", "::1"]


def walk(error: type[TurnkeeperError]) -> Iterator[type[TurnkeeperError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from walk(child)


FOREIGN = "http://10.0.0.3:30000 said: gpu-17 is on fire"
TEXTS_OF_OTHERS = {
    "EngineError",
    "EngineProtocolError",
    "EngineTimeoutError",
    "HookError",
    "MatcherError",
    "RequestHookError",
    "StoreRecordError",
    "StoreWriteError",
}


@pytest.mark.parametrize("kind", tuple(walk(TurnkeeperError)))
def test_an_error_stays_what_it_is(kind: type[TurnkeeperError]) -> None:
    raised = kind(FOREIGN, hint="ask http://10.0.0.3:30000", url="http://10.0.0.3:30000", retry_after_s=7, param="x")
    told = tell(raised)
    assert type(told) is kind
    assert (told.http_status, told.code, told.retry_after_s) == (raised.http_status, raised.code, raised.retry_after_s)
    assert told.facts == {"retry_after_s": 7, "param": "x"}
    assert "10.0.0.3" not in str(told)
    assert ("gpu-17" not in str(told)) is (kind.__name__ in TEXTS_OF_OTHERS)


def test_a_failing_hook_has_a_sentence_of_its_own() -> None:
    assert str(tell(errors.RequestHookError(FOREIGN))).startswith("a hook of the server failed on the engine call")


def test_what_only_the_server_says_is_told_as_it_is() -> None:
    for error in (RequestError("http://10.0.0.3/a.png is no image", param="x"), errors.EnginePausedError("paused")):
        assert tell(error) is error


def test_a_refusal_keeps_the_engines_words() -> None:
    raised = EngineRefusedError(
        "the engine at http://h200-a:1 refuses the request: bad regex", url="http://h200-a:1", engine_status=413
    )
    assert (str(tell(raised)), tell(raised).http_status) == ("the engine refuses the request: bad regex", 413)
    assert "the server's log" in str(tell(EngineError("x")))
