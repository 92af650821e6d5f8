"""The engine as an asynchronous object.

1. The event loop stays free while it computes; commands run between steps, and what they raise is raised at home.
2. A closed generator aborts its request. A failed step ends every request and the engine lives on.
3. Stopping ends what is in flight; an engine that is not started says so.
4. A checkpoint folder that cannot be served is refused when the engine is made.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnkeeper.errors import ConfigError, RequestError
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.model import TinyModel
from turnkeeper.tiny.scheduler import Delta, EngineRequest, FinishKind, OutputTokens, Result, SamplingParams, Update


def _request(rid: str = "r", *, count: int = 5, is_streamed: bool = False) -> EngineRequest:
    params = SamplingParams(max_new_tokens=count, ignore_eos=True)
    return EngineRequest(rid=rid, prompt_ids=np.array([5, 6, 7], np.int32), params=params, is_streamed=is_streamed)


@asynccontextmanager
async def _started(checkpoint: Path) -> AsyncIterator[TinyEngine]:
    engine = TinyEngine(EngineOptions(checkpoint=checkpoint))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def test_the_loop_stays_free_while_the_engine_computes(checkpoints: tuple[Path, Path]) -> None:
    async with _started(checkpoints[0]) as engine:
        running = asyncio.create_task(engine.complete(_request(count=200)))
        turns = 0
        while not running.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 200, "the loop turned more often than the engine stepped"
        assert len(running.result().tokens.ids) == 200


async def test_what_a_command_raises_is_raised_at_home(checkpoints: tuple[Path, Path]) -> None:
    def fail(scheduler: object) -> None:
        raise LookupError("no")

    async with _started(checkpoints[0]) as engine:
        with pytest.raises(LookupError, match="no"):
            await engine.call(fail)
        assert len((await engine.complete(_request())).tokens.ids) == 5


async def test_a_closed_generator_aborts_its_request(checkpoints: tuple[Path, Path]) -> None:
    async with _started(checkpoints[0]) as engine:
        async with aclosing(engine.generate(_request(count=60_000, is_streamed=True))) as updates:
            await anext(updates)
        assert await engine.call(lambda scheduler: scheduler.is_idle)
        await engine.complete(_request())


async def test_a_rid_is_free_again_after_its_request(checkpoints: tuple[Path, Path]) -> None:
    async with _started(checkpoints[0]) as engine:
        async with aclosing(engine.generate(_request(count=60_000, is_streamed=True))) as updates:
            await anext(updates)
            with pytest.raises(RequestError, match="'r'"):
                await engine.complete(_request())
        await engine.complete(_request())


async def test_a_failed_step_ends_its_requests_and_the_engine_lives_on(
    checkpoints: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise FloatingPointError("a broken weight")

    async with _started(checkpoints[0]) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(TinyModel, "forward", fail)
            result = await engine.complete(_request())
        assert result.finish.kind is FinishKind.ABORT
        assert "a broken weight" in result.finish.message
        assert "a broken weight" in caplog.text
        assert (await engine.complete(_request())).finish.kind is FinishKind.LENGTH


async def test_a_listener_that_falls_behind_gets_larger_deltas(checkpoints: tuple[Path, Path]) -> None:
    async with _started(checkpoints[0]) as engine:
        seen: list[Update] = []
        async with aclosing(engine.generate(_request(count=300, is_streamed=True))) as updates:
            async for update in updates:
                seen.append(update)
                while not await engine.call(lambda scheduler: scheduler.is_idle):
                    pass
    *deltas, last = seen
    assert isinstance(last, Result)
    assert len(deltas) <= 1, "what came meanwhile is in the result"
    told = [delta.tokens for delta in deltas if isinstance(delta, Delta)]
    assert sum(told, OutputTokens()) + last.rest_tokens == last.tokens
    assert "".join(delta.text for delta in deltas if isinstance(delta, Delta)) + last.rest == last.text


async def test_stopping_ends_what_is_in_flight(checkpoints: tuple[Path, Path]) -> None:
    async with _started(checkpoints[0]) as engine:
        updates = engine.generate(_request(count=60_000, is_streamed=True))
        await anext(updates)
    last = [update async for update in updates][-1]
    assert isinstance(last, Result)
    assert last.finish.kind is FinishKind.ABORT


async def test_an_engine_that_is_not_started_says_so(checkpoints: tuple[Path, Path]) -> None:
    engine = TinyEngine(EngineOptions(checkpoint=checkpoints[0]))
    with pytest.raises(RuntimeError, match="not started"):
        await engine.call(lambda scheduler: None)
    await engine.stop()


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "chat_template.jinja", "weights.safetensors"])
def test_a_folder_that_lacks_a_file_is_refused(checkpoints: tuple[Path, Path], tmp_path: Path, missing: str) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(checkpoints[0], folder)
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        TinyEngine(EngineOptions(checkpoint=folder))


def test_a_trace_that_cannot_be_written_is_refused(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere/trace\.jsonl"):
        TinyEngine(EngineOptions(checkpoint=checkpoints[0], kv_trace=tmp_path / "nowhere" / "trace.jsonl"))


def test_a_tokenizer_that_is_none_is_refused(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(checkpoints[0], folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        TinyEngine(EngineOptions(checkpoint=folder))
