"""Weight updates on running engines.

1. Each mode has its sequence on every engine, each step on all engines before the next on any.
2. Every default is sent explicitly: nothing is aborted by publishing a label, nothing is flushed in place.
3. What cannot work is refused before anything is called.
4. A failure names the engine; while pausing everything goes on as it was, later the engines stay paused.
5. Turns in flight end as the mode says: aborted, or finished under the new label.
6. vLLM is told the same on its own routes; what cannot be done there is refused.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.builders import make_request
from httpkit import running_site
from turnkeeper.choices import EngineKind, PauseMode
from turnkeeper.engines import EngineClient, SglangEngine, VllmEngine
from turnkeeper.errors import AuthenticationError, ConfigError, EngineError
from turnkeeper.fleet import EngineFleet
from turnkeeper.testing import (
    ManualClock,
    RecordedRequest,
    ScriptedEngine,
    ScriptedReply,
    ScriptedVllm,
    running,
    unreachable_url,
)

DISK = {"model_path": "/weights", "weight_version": "8", "abort_all_requests": False}
STEPS = {
    PauseMode.ABORT: [
        ("/pause_generation", {"mode": "abort"}),
        ("/flush_cache", {}),
        ("/update_weights_from_disk", {**DISK, "flush_cache": True}),
        ("/continue_generation", {}),
    ],
    PauseMode.RETRACT: [
        ("/pause_generation", {"mode": "retract"}),
        ("/flush_cache", {}),
        ("/update_weights_from_disk", {**DISK, "flush_cache": True}),
        ("/continue_generation", {}),
    ],
    PauseMode.IN_PLACE: [
        ("/pause_generation", {"mode": "in_place"}),
        ("/update_weights_from_disk", {**DISK, "flush_cache": False}),
        ("/continue_generation", {}),
    ],
}


@pytest.fixture
async def client() -> AsyncGenerator[EngineClient]:
    client = EngineClient()
    yield client
    await client.close()


class Fleet:
    """Two scripted engines and a fleet over them."""

    def __init__(self, client: EngineClient, **options: Any) -> None:
        kind: type[ScriptedEngine] = options.pop("app", ScriptedEngine)
        self.engines = [kind(), kind()]
        self.client = client
        self.options = options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> EngineFleet:
        urls = [await self._stack.enter_async_context(running(engine)) for engine in self.engines]
        return EngineFleet(urls, client=self.client, **self.options)

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()


def calls(engine: ScriptedEngine) -> list[tuple[str, dict[str, Any]]]:
    return [(call.path, call.json) for call in engine.requests if call.method == "POST"]


@pytest.mark.parametrize("mode", PauseMode)
async def test_each_mode_has_its_sequence_with_every_default_sent(client: EngineClient, mode: PauseMode) -> None:
    setup = Fleet(client, mode=mode)
    async with setup as fleet:
        status = await fleet.update_from_disk("/weights", "8")
    assert [calls(engine) for engine in setup.engines] == [STEPS[mode]] * 2
    assert [engine.weight_version for engine in setup.engines] == ["8", "8"]
    assert not any(engine.is_paused for engine in setup.engines)
    assert (status.version, status.mode, status.engines) == ("8", mode, 2)


async def test_colocated_engines_release_their_memory_while_training(client: EngineClient) -> None:
    setup = Fleet(client, mode=PauseMode.ABORT, is_colocated=True)
    seen: list[str] = []

    async def train() -> None:
        seen.extend(path for path, _ in calls(setup.engines[0]))

    async with setup as fleet:
        await fleet.update_from_disk("/weights", "8", train=train)
    assert seen == ["/pause_generation", "/flush_cache", "/release_memory_occupation"]
    assert calls(setup.engines[0])[3:] == [("/resume_memory_occupation", {"tags": None}), *STEPS[PauseMode.ABORT][2:]]


def test_in_place_on_colocated_engines_is_refused(client: EngineClient) -> None:
    with pytest.raises(ConfigError, match=r"in_place.*colocated"):
        EngineFleet(["http://e"], client=client, mode=PauseMode.IN_PLACE, is_colocated=True)


@pytest.mark.parametrize(
    ("urls", "words", "message"),
    [
        ([], {"mode": "abort"}, "expected as a list"),
        ("http://e", {"mode": "abort"}, "expected as a list"),
        (["http://e"], {"mode": "softly"}, "mode must be one of abort, retract, in_place"),
        (["http://e"], {"mode": "abort", "kind": "trt"}, "kind must be one of auto, sglang, vllm"),
        (["http://e"], {"mode": "abort", "session_servers": ["s:30100"]}, "address of a session server"),
    ],
)
def test_what_cannot_work_is_refused_when_the_fleet_is_made(urls: Any, words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineFleet(urls, **words)


async def test_a_fleet_needs_no_more_than_addresses_and_a_word(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    async with running(engine) as url, EngineFleet([f"{url}/"], mode="in_place", kind="sglang") as fleet:
        assert repr(fleet) == f"<EngineFleet of 1, in_place: {url}>"
        result = await fleet.update_from_disk(tmp_path, 8)
        async with fleet.paused(9):
            assert engine.weight_version == "8"
    assert (result.version, engine.weight_version, engine.is_paused) == ("8", "9", False)
    assert calls(engine)[1][1]["model_path"] == str(tmp_path)


async def test_session_servers_with_keys_are_told_with_the_admins() -> None:
    async with running_site(api_key="admin") as site:
        async with (
            EngineFleet([site.engine_url], mode="in_place", session_servers=[site.url], api_key="admin") as fleet,
            fleet.paused("2"),
        ):
            assert str(site.backend.control.state) == "paused"
        assert str(site.backend.control.state) == "serving"
        async with EngineFleet([site.engine_url], mode="in_place", session_servers=[site.url]) as fleet:
            with pytest.raises(AuthenticationError):
                await fleet.pause()
        assert not site.engine.is_paused


async def test_an_engine_that_cannot_be_paused_lets_the_turns_of_session_servers_go_on() -> None:
    async with running_site() as site:
        site.engine.control_answers["/pause_generation"] = (500, b"{}")
        async with EngineFleet([site.engine_url], mode="abort", session_servers=[site.url]) as fleet:
            with pytest.raises(EngineError):
                await fleet.pause()
        assert str(site.backend.control.state) == "serving"


async def test_a_caller_who_moves_the_weights_publishes_the_label_at_the_end(client: EngineClient) -> None:
    setup = Fleet(client, mode=PauseMode.IN_PLACE)
    async with setup as fleet:
        async with fleet.paused("9"):
            assert all(engine.is_paused for engine in setup.engines)
        assert calls(setup.engines[1])[1:] == [
            ("/update_weight_version", {"new_version": "9", "abort_all_requests": False}),
            ("/continue_generation", {}),
        ]
        with pytest.raises(RuntimeError, match="broke"):
            async with fleet.paused("10"):
                raise RuntimeError("broke")
    assert [(engine.weight_version, engine.is_paused) for engine in setup.engines] == [("9", True)] * 2


async def test_an_engine_that_is_not_there_leaves_the_others_as_they_were(client: EngineClient) -> None:
    engine = ScriptedEngine()
    async with running(engine) as url:
        with unreachable_url() as gone:
            fleet = EngineFleet([url, gone], client=client, mode=PauseMode.RETRACT)
            with pytest.raises(EngineError, match="1 of 2 engines") as caught:
                await fleet.update_from_disk("/weights", "8")
        assert gone in str(caught.value)
    assert not engine.is_paused
    assert engine.weight_version == "default"


@pytest.mark.parametrize(
    "answer",
    [(400, b'{"success":false,"message":"no such folder"}'), (200, b'{"success":false,"message":"no such folder"}')],
)
async def test_an_update_that_fails_leaves_the_engines_paused(client: EngineClient, answer: tuple[int, bytes]) -> None:
    setup = Fleet(client, mode=PauseMode.RETRACT)
    setup.engines[1].control_answers["/update_weights_from_disk"] = answer
    async with setup as fleet:
        with pytest.raises(EngineError, match="no such folder"):
            await fleet.update_from_disk("/weights", "8")
        assert all(engine.is_paused for engine in setup.engines)
        await fleet.resume()
    assert not any(engine.is_paused for engine in setup.engines)


async def test_session_servers_hold_new_turns_back_from_before_until_after(client: EngineClient) -> None:
    action: list[str] = []
    server, engine = ScriptedEngine(), ScriptedEngine()
    for app, name in ((server, "server"), (engine, "engine")):
        app.on_request = lambda call, name=name: action.append(f"{name}{call.path}")
    said = b'{"state": "paused", "mode": "in_place", "engines": []}'
    server.control_answers |= {"/engine/pause": (200, said), "/engine/continue": (200, said)}
    async with running(server) as server_url, running(engine) as engine_url:
        fleet = EngineFleet([engine_url], client=client, mode=PauseMode.IN_PLACE, session_servers=[server_url])
        await fleet.update_from_disk("/weights", "8")
    assert action[0] == "server/engine/pause"
    assert action[-1] == "server/engine/continue"
    assert server.requests[0].json == {"mode": "in_place", "forward": False}


@pytest.mark.parametrize(
    ("mode", "finish", "version"),
    [(PauseMode.ABORT, "abort", "1"), (PauseMode.RETRACT, "stop", "8"), (PauseMode.IN_PLACE, "stop", "8")],
)
async def test_turns_in_flight_end_as_the_mode_says(
    client: EngineClient, mode: PauseMode, finish: str, version: str
) -> None:
    release = asyncio.Event()
    engine = ScriptedEngine([ScriptedReply(wait=release, partial=2)] * 8, weight_version="1")
    async with running(engine) as url:
        turns = [asyncio.create_task(SglangEngine(url, client).generate(make_request())) for _ in range(8)]
        await engine.wait_for_generations(8)
        fleet = EngineFleet([url], client=client, mode=mode)
        await fleet.update_from_disk("/weights", "8")
        release.set()
        replies = await asyncio.gather(*turns)
    assert {(reply.finish_reason, reply.weight_version) for reply in replies} == {(finish, version)}


LOAD = [
    ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/weights"}}),
    ("/update_weight_version", {"new_version": "8"}),
    ("/resume", {}),
]
VLLM_STEPS = {
    PauseMode.ABORT: ["/pause?mode=abort", "/reset_prefix_cache"],
    PauseMode.RETRACT: ["/pause?mode=keep", "/reset_prefix_cache?reset_running_requests=true"],
    PauseMode.IN_PLACE: ["/pause?mode=keep"],
}


@pytest.mark.parametrize("mode", PauseMode)
async def test_vllm_has_its_own_sequence_in_each_mode(client: EngineClient, mode: PauseMode) -> None:
    setup = Fleet(client, mode=mode, app=ScriptedVllm, kind=EngineKind.VLLM)
    async with setup as fleet:
        await fleet.update_from_disk("/weights", "8")
    for engine in setup.engines:
        requested = [(f"{call.path}?{call.query}".rstrip("?"), call.json) for call in engine.requests]
        assert requested == [*((path, {}) for path in VLLM_STEPS[mode]), *LOAD]
    assert [(engine.weight_version, engine.is_paused) for engine in setup.engines] == [("8", False)] * 2


@pytest.mark.parametrize(
    ("mode", "finish", "version"),
    [(PauseMode.ABORT, "abort", "1"), (PauseMode.RETRACT, "stop", "8"), (PauseMode.IN_PLACE, "stop", "8")],
)
async def test_turns_in_flight_on_vllm_end_as_the_mode_says(
    client: EngineClient, mode: PauseMode, finish: str, version: str
) -> None:
    release = asyncio.Event()
    engine = ScriptedVllm([ScriptedReply(wait=release, partial=2)] * 4, weight_version="1")
    async with running(engine) as url:
        wire = VllmEngine(url, client, lambda request, ids: {"role": "assistant", "content": ""})
        turns = [asyncio.create_task(wire.generate(make_request())) for _ in range(4)]
        await engine.wait_for_generations(4)
        await EngineFleet([url], client=client, mode=mode).update_from_disk("/weights", "8")
        release.set()
        replies = await asyncio.gather(*turns)
    assert {(reply.finish_reason, reply.weight_version) for reply in replies} == {(finish, version)}


async def test_colocated_vllm_is_refused_before_anything_is_paused(client: EngineClient) -> None:
    setup = Fleet(client, mode=PauseMode.ABORT, app=ScriptedVllm, is_colocated=True)
    async with setup as fleet:
        with pytest.raises(ConfigError, match="does not put vLLM to sleep"):
            await fleet.update_from_disk("/weights", "8")
    assert [calls(engine) for engine in setup.engines] == [[], []]


async def test_vllm_in_production_mode_is_named_with_what_it_lacks(client: EngineClient) -> None:
    setup = Fleet(client, mode=PauseMode.ABORT, app=ScriptedVllm)
    for engine in setup.engines:
        assert isinstance(engine, ScriptedVllm)
        engine.has_dev_routes = False
    async with setup as fleet:
        with pytest.raises(EngineError, match=r"404.*VLLM_SERVER_DEV_MODE=1"):
            await fleet.pause()


async def test_a_cache_of_vllm_that_is_not_yet_free_is_asked_again(client: EngineClient) -> None:
    engine = ScriptedVllm()
    answers = [b'{"success":false}', b'{"success":false}', b'{"success":true}']

    def answer(call: RecordedRequest) -> None:
        if call.path == "/reset_prefix_cache":
            engine.control_answers["/reset_prefix_cache"] = (200, answers.pop(0))

    engine.on_request = answer
    clock = ManualClock()
    async with running(engine) as url:
        pause = asyncio.create_task(
            EngineFleet([url], client=client, clock=clock, mode=PauseMode.ABORT, kind=EngineKind.VLLM).pause()
        )
        for _ in range(2):
            await clock.wait_for_sleepers(1)
            await clock.advance(0.1)
        await pause
    assert not answers
