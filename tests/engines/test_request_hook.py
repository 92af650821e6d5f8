"""The operator's hook on engine calls.

1. It is asked before each call, as a plain or a coroutine function, with its arguments and the session's id.
2. Headers and fields on no list that it adds reach the engine; the turn's own fields stay as they are, or the turn is
   refused by the name of what was changed.
3. A call is sent again only where nothing was sampled: on 409, on 429, and where no connection was made.
4. Whatever it does wrong is one error that names it; the next turn asks it anew.
"""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from engines.builders import make_request
from servicekit import FakeEngine, build_kit, user
from turnkeeper.engines import EngineClient, SglangEngine
from turnkeeper.engines.request_hook import HookedEngine, RequestHook, load_request_hook
from turnkeeper.errors import ConfigError, EngineError, EngineRefusedError, RequestHookError, TurnkeeperError
from turnkeeper.testing import Phase, ScriptedEngine, ScriptedReply, running

BUSY = ScriptedReply(status=409, body=b'{"error":"behind"}')


def build_hook(function: Any, **args: Any) -> RequestHook:
    return RequestHook(path="box.hook", function=function, args=args)


async def generate(hook: RequestHook, *script: ScriptedReply, **fields: Any) -> tuple[ScriptedEngine, list[float]]:
    """One call of an engine with this script; the engine, and the waits between attempts."""
    engine, client, waits = ScriptedEngine(script=list(script)), EngineClient(), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async with running(engine) as url:
        hooked = HookedEngine(SglangEngine(url, client), hook, sleep=sleep)
        try:
            await hooked.generate(make_request(**fields))
        finally:
            await client.close()
    return engine, waits


def add_policy(args: Any, context: Any, request: Any) -> None:
    request["payload"]["weight_version"] = {"min_version": args["version"]}
    request["headers"]["X-Session-ID"] = context.session_id


async def add_policy_later(args: Any, context: Any, request: Any) -> None:
    add_policy(args, context, request)


def return_policy(args: Any, context: Any, request: Any) -> dict[str, Any]:
    payload = {**request["payload"], "weight_version": {"min_version": args["version"]}}
    return {"payload": payload, "headers": {"x-session-id": context.session_id}}


@pytest.mark.parametrize("function", [add_policy, add_policy_later, return_policy])
async def test_what_a_hook_adds_reaches_the_engine(function: Any) -> None:
    engine, _ = await generate(build_hook(function, version=3), ScriptedReply(), session_id="s1")
    [sent] = engine.generations
    assert sent.json["weight_version"] == {"min_version": 3}
    assert sent.header("x-session-id") == "s1"
    assert sent.json["input_ids"] == [11, 12, 13, 14, 15]


async def test_a_header_of_the_hook_wins_and_those_of_the_body_do_not() -> None:
    def name(_args: Any, _context: Any, request: Any) -> None:
        request["headers"] |= {"traceparent": "hook", "Content-Length": "1", "HOST": "elsewhere"}

    engine, _ = await generate(build_hook(name), ScriptedReply(), trace={"traceparent": "agent", "tracestate": "a"})
    [sent] = engine.generations
    assert (sent.header("traceparent"), sent.header("tracestate")) == ("hook", "a")
    assert sent.json["input_ids"]


def admit(attempts: Any, interval_s: Any = 0.25) -> Any:
    def hook(_args: Any, _context: Any, request: Any) -> None:
        request["max_attempts"], request["retry_interval"] = attempts, interval_s

    return hook


@pytest.mark.parametrize(
    ("reply", "attempts", "calls"),
    [
        pytest.param(BUSY, 3, 2, id="behind the wanted weights"),
        pytest.param(ScriptedReply(status=429, body=b"{}"), 2, 2, id="too many requests"),
    ],
)
async def test_a_call_that_is_turned_away_is_sent_again(reply: ScriptedReply, attempts: int, calls: int) -> None:
    engine, waits = await generate(build_hook(admit(attempts)), reply, ScriptedReply())
    assert (len(engine.generations), waits) == (calls, [0.25])


@pytest.mark.parametrize(
    ("replies", "attempts", "error"),
    [
        pytest.param([BUSY, BUSY], 2, EngineError, id="turned away each time"),
        pytest.param([BUSY], 1, EngineError, id="not sent again unless the hook says so"),
        pytest.param([ScriptedReply(status=500, body=b"{}")], 3, EngineError, id="failed after it was taken"),
        pytest.param([ScriptedReply(status=400, body=b"{}")], 3, EngineRefusedError, id="refused"),
        pytest.param([ScriptedReply(fault=Phase.BODY)], 3, EngineError, id="cut in its reply"),
    ],
)
async def test_no_call_is_sent_again_that_may_have_sampled(
    replies: list[ScriptedReply], attempts: int, error: type[TurnkeeperError]
) -> None:
    with pytest.raises(error):
        await generate(build_hook(admit(attempts)), *replies)


async def test_a_call_that_reaches_nobody_is_sent_again() -> None:
    client, waits = EngineClient(), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    engine = SglangEngine("http://127.0.0.1:9", client)
    with pytest.raises(EngineError, match="no connection"):
        await HookedEngine(engine, build_hook(admit(3)), sleep=sleep).generate(make_request())
    await client.close()
    assert waits == [0.25, 0.25]


def change(**fields: Any) -> Any:
    def hook(_args: Any, _context: Any, request: Any) -> None:
        request["payload"] |= fields

    return hook


def leave_out(_args: Any, _context: Any, request: Any) -> None:
    del request["payload"]["messages"]


def fail(*_: Any) -> None:
    raise KeyError("nothing")


def rewrite(**members: Any) -> Any:
    return lambda *_: members


WRONG: dict[str, tuple[Any, str]] = {
    "changes the sampler": (change(temperature=0.5), "changed temperature"),
    "adds a sampler": (change(top_p=0.5), "changed top_p"),
    "asks for other weights": (change(lora_path="x"), "changed lora_path"),
    "sends its own ids": (change(input_ids=[1]), "changed input_ids"),
    "asks for a stream": (change(stream=True), "changed stream"),
    "changes a message": (change(messages=[]), "changed messages"),
    "leaves messages out": (leave_out, "changed messages"),
    "raises": (fail, "failed: KeyError"),
    "returns a list": (lambda *_: [], "must return None or an object, got list"),
    "returns no payload": (rewrite(payload=None), "must leave payload"),
    "returns a number as a header": (rewrite(headers={"x": 1}), "must leave payload"),
    "breaks a header": (rewrite(headers={"x": "a\r\nb: c"}), "must leave payload"),
    "breaks a header's name": (rewrite(headers={"x y": "a"}), "must leave payload"),
    "allows no attempt": (admit(0), "max_attempts at 1 or more"),
    "allows attempts in words": (admit("2"), "max_attempts at 1 or more"),
    "waits for ever": (admit(2, float("inf")), "retry_interval at 0 or more"),
    "waits backwards": (admit(2, -1), "retry_interval at 0 or more"),
}


@pytest.mark.parametrize(("function", "problem"), WRONG.values(), ids=WRONG)
async def test_what_a_hook_does_wrong_is_said(function: Any, problem: str) -> None:
    hook = build_hook(function)
    request = make_request(sampling={"temperature": 1.0}, messages=({"role": "user", "content": "a"},))
    with pytest.raises(RequestHookError, match=problem) as caught:
        await hook.prepare(request)
    assert caught.value.facts["hook"] == "box.hook"
    assert request.messages == ({"role": "user", "content": "a"},)


async def test_a_turn_whose_hook_failed_leaves_the_session_as_it_was() -> None:
    engine, answers = FakeEngine(auto="yes"), [fail, add_policy]
    hook = build_hook(lambda *each: answers.pop(0)(*each), version=1)
    kit = build_kit(engine=HookedEngine(engine, hook))  # pyright: ignore[reportArgumentType] - the service takes any
    session = kit.create()
    turn = await kit.begin(session, [user("hi")])
    with pytest.raises(RequestHookError):
        await turn.read()
    again = await kit.begin(session, [user("hi")])
    assert await again.text() == "yes"
    [call] = engine.calls
    assert call.request.forwarded["weight_version"] == {"min_version": 1}
    assert len(kit.look(session).forest) == 1


@pytest.mark.parametrize(
    "path", [pytest.param("nowhere.hook", id="no module"), pytest.param("sys.nothing", id="no function"), "sys.path"]
)
def test_a_hook_that_is_not_there_is_said_at_start(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--custom-rollout-request-hook-path .*{path}"):
        load_request_hook(path, {})


def test_a_hook_is_found_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hookshop", SimpleNamespace(add=add_policy))  # pyright: ignore[reportArgumentType]
    hook = load_request_hook("hookshop.add", {"version": 2})
    assert hook is not None
    assert (hook.function, hook.args) == (add_policy, {"version": 2})
    assert load_request_hook(None, {}) is None
