"""What every engine behind the seam does, whichever wire it speaks.

Runs over the scripted engine (SGLang's chat and generate wire, vLLM's two) and the embedded one (both SGLang wires).

1. A reply is sound: the prompt that was sent is the prompt that was counted, ids and logprobs agree, the ending is one
   that can be recorded, the message is canonical.
2. A budget is kept, and a turn that meets it ended by length.
3. Rows cover what was asked for, from the row asked for on, and are those of the whole payload from there.
4. Ids streamed, where a wire streams them, are the ids of the reply.
5. Control routes: a probe finds it serving, then paused; an abort by rid ends one call and no other.
6. What is too long is a length error; an engine that is gone is an error that names it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.builders import make_request
from tiny.builders import SHAPE as TINY_SHAPE
from tiny.builders import WEIGHTS, write_small_checkpoint
from turnkeeper.channels.routing import RoutingRows, RoutingShape, RowsRequest, read_routing_shape, take_patch
from turnkeeper.core import FinishReason
from turnkeeper.core.tokens import TokenIds
from turnkeeper.engines import (
    Engine,
    EngineClient,
    EngineState,
    GenerateRequest,
    RelayRequest,
    SglangEngine,
    SglangGenerateEngine,
    VllmEngine,
    check_generation,
)
from turnkeeper.errors import ContextLengthError, EngineError
from turnkeeper.testing import MoeShape, RecordedRequest, ScriptedEngine, ScriptedReply, ScriptedVllm, running
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.server import build_app

LONG = "long"
"""The rid of calls that run until they are aborted."""


def parse(request: GenerateRequest, ids: TokenIds) -> dict[str, Any]:
    return {"role": "assistant", "content": f"{len(ids)} ids"}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An engine under test and what is known of it."""

    engine: Engine
    url: str
    shape: RoutingShape
    pause: Callable[[], Any]
    wait_for_call: Callable[[], Any]
    """Returns once the long call is at the engine."""
    sampling: dict[str, Any] = field(default_factory=dict)
    long_sampling: dict[str, Any] = field(default_factory=dict)
    too_long: int = 0
    streams: bool = False

    def ask(self, **fields: Any) -> GenerateRequest:
        return make_request(**{"sampling": self.sampling, **fields})


def answer_scripted(call: RecordedRequest) -> ScriptedReply:
    """A reply of the asked length; one that waits for ever to a long call."""
    params = call.json.get("sampling_params", call.json)
    count = params.get("max_tokens") or params.get("max_new_tokens") or 5
    rid = call.json.get("rid") or call.json.get("request_id")
    return ScriptedReply(
        ids=range(20, 20 + count), finish_reason="length", wait=asyncio.Event() if rid == LONG else None, partial=0
    )


@asynccontextmanager
async def scripted(client: EngineClient, wire: str) -> AsyncGenerator[Subject]:
    kind = ScriptedVllm if wire.startswith("vllm") else ScriptedEngine
    app = kind(default=answer_scripted, moe=MoeShape(), context_length=64)
    if isinstance(app, ScriptedVllm):
        app.has_generate_route = wire == "vllm-generate"
    async with running(app) as url:
        engines: dict[str, Callable[[], Engine]] = {
            "chat": lambda: SglangEngine(url, client),
            "generate": lambda: SglangGenerateEngine(url, client, parse),
            "vllm-generate": lambda: VllmEngine(url, client, parse),
            "vllm-completions": lambda: VllmEngine(url, client, parse),
        }

        async def pause() -> None:
            app.pause("retract")

        async def wait_for_call() -> None:
            await app.wait_for_generations(1)

        yield Subject(
            engine=engines[wire](),
            url=url,
            shape=RoutingShape(layers=2, topk=2, experts=8),
            pause=pause,
            wait_for_call=wait_for_call,
            sampling={"max_tokens": 6},
            too_long=64,
            streams=wire != "chat",
        )


@asynccontextmanager
async def embedded(client: EngineClient, wire: str, folder: Path) -> AsyncGenerator[Subject]:
    tiny = TinyEngine(EngineOptions(checkpoint=write_small_checkpoint(folder, WEIGHTS[0])))
    async with running(build_app(tiny)) as url:
        shape = read_routing_shape(TINY_SHAPE.as_config())
        assert shape is not None

        async def pause() -> None:
            await client.post_json(f"{url}/pause_generation", b'{"mode":"retract"}')

        async def wait_for_call() -> None:
            async with asyncio.timeout(10):
                while not await tiny.call(lambda scheduler: scheduler.running_count):
                    pass  # each look lets the engine's thread go on

        yield Subject(
            engine=SglangEngine(url, client) if wire == "chat" else SglangGenerateEngine(url, client, parse),
            url=url,
            shape=shape,
            pause=pause,
            wait_for_call=wait_for_call,
            sampling={"max_tokens": 6, "ignore_eos": True, "seed": 3},
            long_sampling={"max_tokens": 3500, "ignore_eos": True, "seed": 3},
            too_long=TINY_SHAPE.max_position_embeddings + 1,
            streams=wire == "generate",
        )


SUBJECTS = ("chat", "generate", "vllm-generate", "vllm-completions", "embedded-chat", "embedded-generate")


@pytest.fixture(params=SUBJECTS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Subject]:
    client = EngineClient(timeout_s=20.0)
    name: str = request.param
    made = (
        embedded(client, name.removeprefix("embedded-"), tmp_path / "weights")
        if name.startswith("embedded")
        else scripted(client, name)
    )
    async with made as it:
        yield it
    await client.close()


async def test_a_reply_is_sound(subject: Subject) -> None:
    request = subject.ask()
    found = await subject.engine.generate(request)
    check_generation(found, request)
    assert (found.prompt_tokens, found.completion_tokens, len(found.ids)) == (5, 6, 6)
    assert np.isfinite(found.logprobs).all()
    assert (found.logprobs <= 0).all()
    assert found.finish_reason == FinishReason.LENGTH
    assert found.message["role"] == "assistant"
    assert isinstance(found.message["content"], str)
    assert found.url == subject.url


async def test_rows_begin_where_asked_and_are_those_of_the_whole_payload(subject: Subject) -> None:
    whole = await take_rows(subject, RowsRequest(start_len=None, held_rows=0))
    assert len(whole) == 5 + 6 - 1
    later = await take_rows(subject, RowsRequest(start_len=4, held_rows=4))
    assert later.equals(whole.cut(4, len(whole)))


async def take_rows(subject: Subject, rows: RowsRequest) -> RoutingRows:
    found = await subject.engine.generate(subject.ask(rows=rows))
    return take_patch(
        found.payloads.get("routed_experts"),
        request=rows,
        shape=subject.shape,
        prompt_tokens=5,
        completion_tokens=len(found.ids),
    ).rows


async def test_streamed_ids_are_the_ids_of_the_reply(subject: Subject) -> None:
    seen: list[int] = []
    await subject.engine.generate(subject.ask())  # a first call may find out which routes there are
    found = await subject.engine.generate(subject.ask(), on_ids=lambda ids: seen.extend(ids.tolist()))
    assert seen == (found.ids.tolist() if subject.streams else [])
    again = await subject.engine.generate(subject.ask())
    assert again.ids.tolist() == found.ids.tolist()


async def test_a_probe_finds_it_serving_then_paused(subject: Subject) -> None:
    [report] = await subject.engine.fetch_status()
    assert (report.url, report.state, report.error) == (subject.url, EngineState.SERVING, "")
    await subject.pause()
    [report] = await subject.engine.fetch_status()
    assert report.state is EngineState.PAUSED


async def test_an_abort_by_rid_ends_one_call_and_no_other(subject: Subject) -> None:
    call = asyncio.create_task(subject.engine.generate(subject.ask(rid=LONG, sampling=subject.long_sampling)))
    await subject.wait_for_call()
    await subject.engine.abort("another")
    other = await subject.engine.generate(subject.ask())
    assert not other.is_aborted
    assert not call.done()
    await subject.engine.abort(LONG)
    assert (await call).is_aborted


async def test_calls_are_passed_through(subject: Subject) -> None:
    reply = await subject.engine.relay(RelayRequest(method="GET", path="/v1/models", session_id="s"))
    assert reply.status == 200
    assert b'"data"' in reply.body
    assert (await subject.engine.relay(RelayRequest(method="GET", path="/nope"))).status == 404


async def test_a_prompt_that_is_too_long_is_a_length_error(subject: Subject) -> None:
    with pytest.raises(ContextLengthError) as caught:
        await subject.engine.generate(subject.ask(prompt=[7] * subject.too_long))
    assert caught.value.facts["prompt_tokens"] == subject.too_long


async def test_closing_twice_is_harmless(subject: Subject) -> None:
    await subject.engine.close()
    await subject.engine.close()


async def test_an_engine_that_is_gone_is_named() -> None:
    client = EngineClient(connect_timeout_s=2.0)
    app = ScriptedEngine()
    async with running(app) as url:
        engines = [SglangEngine(url, client), SglangGenerateEngine(url, client, parse), VllmEngine(url, client, parse)]
    for engine in engines:
        with pytest.raises(EngineError, match=url):
            await engine.generate(make_request())
        assert [report.state for report in await engine.fetch_status()] == [EngineState.UNREACHABLE]
    await client.close()
