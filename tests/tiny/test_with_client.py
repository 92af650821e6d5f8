"""The session server's own SGLang client against the embedded engine.

1. A reply passes every check, its message is canonical, its rows decode, and a conversation's rows are the same
   whether each turn asks for all of them or for the new ones.
2. A probe tells serving from paused; an abort by rid ends the one call.
3. A prompt that does not fit is the client's context length error.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.builders import make_request
from tiny.builders import SHAPE
from tiny.conftest import Serve, Served
from turnkeeper.channels.routing import RowsRequest, read_routing_shape, take_patch
from turnkeeper.engines import EngineClient, EngineState, SglangEngine, check_generation
from turnkeeper.errors import ContextLengthError

SAMPLING = {"max_tokens": 6, "ignore_eos": True, "seed": 3}


@asynccontextmanager
async def _connected(served: Served) -> AsyncIterator[SglangEngine]:
    http = EngineClient()
    try:
        yield SglangEngine(str(served.client.base_url), http)
    finally:
        await http.close()


@pytest.fixture
async def client(served: Served) -> AsyncIterator[SglangEngine]:
    async with _connected(served) as client:
        yield client


async def test_a_reply_passes_every_check(client: SglangEngine) -> None:
    request = make_request(sampling=SAMPLING, rows=RowsRequest(start_len=None, held_rows=0))
    generation = await client.generate(request)
    check_generation(generation, request)
    assert len(generation.ids) == 6
    assert generation.finish_reason == "length"
    assert generation.weight_version == "default"
    assert generation.message["role"] == "assistant"


async def _play(client: SglangEngine, is_whole: bool) -> NDArray[np.unsignedinteger]:
    """Two turns; the rows of the whole path."""
    shape = read_routing_shape(SHAPE.as_config())
    assert shape is not None
    path, pieces = [11, 12, 13, 14, 15], []
    for appended in ([], [9, 8]):
        held = sum(len(piece) for piece in pieces)
        path = [*path, *appended]
        rows = RowsRequest(start_len=None if is_whole else held, held_rows=held)
        generation = await client.generate(make_request(prompt=path, sampling=SAMPLING, rows=rows))
        patch = take_patch(
            generation.payloads.get("routed_experts"),
            request=rows,
            shape=shape,
            prompt_tokens=len(path),
            completion_tokens=len(generation.ids),
            held=pieces,
        )
        assert patch.bad is None
        assert patch.changed_rows in (0, None)
        pieces.append(patch.rows)
        path = [*path, *generation.ids.tolist()]
    return np.concatenate([piece.experts_RLK for piece in pieces])


async def test_rows_are_the_same_asked_for_whole_or_by_increments(serve: Serve) -> None:
    played = []
    for is_whole in (True, False):
        async with serve() as served, _connected(served) as client:
            played.append(await _play(client, is_whole))
    np.testing.assert_array_equal(played[0], played[1])
    assert len(played[0]) == 5 + 6 + 2 + 6 - 1


async def test_a_probe_tells_serving_from_paused(client: SglangEngine, served: Served) -> None:
    (report,) = await client.fetch_status()
    assert (report.state, report.weight_version, report.context_length) == (EngineState.SERVING, "default", 65_536)
    await served.post("/pause_generation", {"mode": "in_place"})
    (report,) = await client.fetch_status()
    assert report.state is EngineState.PAUSED


async def test_an_abort_ends_the_one_call(client: SglangEngine, served: Served) -> None:
    request = make_request(rid="one", sampling={"max_tokens": 60_000, "ignore_eos": True})
    call = asyncio.create_task(client.generate(request))
    await served.wait_for(1, 0)
    await client.abort("one")
    generation = await call
    assert generation.is_aborted
    check_generation(generation, request)


async def test_a_prompt_that_does_not_fit_is_a_context_length_error(client: SglangEngine) -> None:
    with pytest.raises(ContextLengthError):
        await client.generate(make_request(prompt=[1] * 70_000))
