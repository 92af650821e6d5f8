"""Streams that hand text on while the engine generates: the embedded engine, the server and a client on real sockets.

1. Deltas arrive before the end, in several pieces, and join to what the same request gives in one piece.
2. The recorded turn is the same as without streaming: ids and message; logprobs to the engine's own precision.
"""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest

from httpkit import serving
from turnkeeper.choices import EngineWire, OnAbort
from turnkeeper.demo.tasks import CALCULATOR_TOOL, SYSTEM_PROMPT
from turnkeeper.testing import running
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.tiny.engine import EngineOptions, TinyEngine
from turnkeeper.tiny.server import build_app

BODY: dict[str, Any] = {
    "messages": [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "What is 12 plus 30?"}],
    "tools": [CALCULATOR_TOOL],
    "max_tokens": 300,
    "ignore_eos": True,  # long enough to be read while it is written
    "temperature": 3.0,
    "seed": 7,
}


@pytest.fixture
async def site() -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    engine = TinyEngine(EngineOptions(checkpoint=shipped_checkpoint()))
    options = {"engine_wire": EngineWire.GENERATE, "on_abort": OnAbort.RESUME}
    async with (
        running(build_app(engine)) as engine_url,
        serving(engine_url, **options) as (url, _),
        aiohttp.ClientSession() as http,
    ):
        yield url, http


async def _open(url: str, http: aiohttp.ClientSession) -> str:
    async with http.post(f"{url}/sessions") as response:
        return f"{url}/sessions/{(await response.json())['session_id']}"


async def _stream(http: aiohttp.ClientSession, session: str) -> list[dict[str, Any]]:
    async with http.post(f"{session}/v1/chat/completions", json={**BODY, "stream": True}) as response:
        lines = (await response.read()).decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [orjson.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def _read_record(http: aiohttp.ClientSession, session: str) -> dict[str, Any]:
    async with http.get(session) as response:
        return (await response.json())["records"][0]["response"]["choices"][0]


async def test_text_is_streamed_as_it_is_generated_and_recorded_as_without(
    site: tuple[str, aiohttp.ClientSession],
) -> None:
    url, http = site
    streamed, whole = await _open(url, http), await _open(url, http)
    async with http.post(f"{whole}/v1/chat/completions", json=BODY) as response:
        message = (await response.json())["choices"][0]["message"]
    deltas = [chunk["choices"][0]["delta"] for chunk in await _stream(http, streamed) if chunk["choices"]]
    texts = [delta["content"] for delta in deltas if delta.get("content")]
    assert len(texts) > 1
    assert "".join(texts) == message["content"]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == (message.get("reasoning_content") or "")
    first, second = await _read_record(http, streamed), await _read_record(http, whole)
    assert first["message"] == second["message"]
    streamed_tokens, whole_tokens = (record["meta_info"]["output_token_logprobs"] for record in (first, second))
    assert [token for _, token, _ in streamed_tokens] == [token for _, token, _ in whole_tokens]
    # The second call takes its prefix from the engine's cache, so its floats differ in the last bits.
    assert [logprob for logprob, *_ in streamed_tokens] == pytest.approx([logprob for logprob, *_ in whole_tokens])
