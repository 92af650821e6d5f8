"""``turnkeeper engine``, as a process.

1. It prints one line when it serves, with the port that it took, and ends on a signal with requests in flight.
2. The KV trace has a line a request; forcing its rows reproduces each logprob across an update in each pause mode.
3. What cannot work ends with status 2 and a sentence that says why.
"""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import turnkeeper
from tiny.builders import LONG_SHAPE, WEIGHTS, write_small_checkpoint
from turnkeeper.choices import PauseMode
from turnkeeper.errors import ProcessError
from turnkeeper.server.command import ServerProcess, running_command
from turnkeeper.tiny.checkpoint import read_weights
from turnkeeper.tiny.model import TinyModel
from turnkeeper.tiny.scheduler.trace import replay

TRACE = "trace.jsonl"
SOURCE = str(Path(turnkeeper.__file__).parent.parent)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """An engine process that traces."""
    one = write_small_checkpoint(tmp_path / "one", WEIGHTS[0], LONG_SHAPE)
    write_small_checkpoint(tmp_path / "two", WEIGHTS[1], LONG_SHAPE)
    arguments = ["engine", "--port", "0", "--weights", str(one), "--debug-kv-trace", str(tmp_path / TRACE)]
    async with running_command(arguments) as running:
        yield running


async def _generate(client: httpx.AsyncClient, count: int = 60_000, **fields: Any) -> dict[str, Any]:
    sampling = {"max_new_tokens": count, "ignore_eos": True}
    body = {"input_ids": [5, 6, 7, 8], "return_logprob": True, "sampling_params": sampling, **fields}
    return (await client.post("/generate", json=body)).json()


async def _wait_for(client: httpx.AsyncClient, counter: str, count: int) -> None:
    async with asyncio.timeout(20):
        while (await client.get("/server_info")).json()["internal_states"][0][counter] < count:
            pass


async def test_the_trace_replays_across_updates_in_every_mode(server: ServerProcess, tmp_path: Path) -> None:
    versions: dict[str, list[str]] = {}
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        for round_, mode in enumerate(PauseMode):
            calls = [asyncio.create_task(_generate(client, rid=f"{mode}{i}")) for i in range(3)]
            await _wait_for(client, "num_running_reqs", 3)
            await client.post("/pause_generation", json={"mode": mode})
            update = {"model_path": str(tmp_path / ("two", "one")[round_ % 2]), "weight_version": f"v{round_ + 1}"}
            flush = mode is not PauseMode.IN_PLACE
            changed = await client.post("/update_weights_from_disk", json={**update, "flush_cache": flush})
            assert changed.status_code == 200
            await client.post("/continue_generation")
            await _generate(client, count=8, rid=f"{mode}-short")
            await client.post("/abort_request", json={"abort_all": True})
            replies = await asyncio.gather(*calls)
            versions[mode] = [span["version"] for span in replies[0]["meta_info"]["weight_versions"]]
    assert versions == {"abort": ["default"], "retract": ["v1", "v2"], "in_place": ["v2", "v3"]}
    lines = [json.loads(line) for line in (tmp_path / TRACE).read_text().splitlines()]
    assert len({line["rid"] for line in lines}) == len(lines) == 12
    models = {
        folder: TinyModel(*read_weights(Path(folder)))
        for folder in {stamp["source"] for line in lines for stamp in line["stamps"].values()}
    }
    for line in lines:
        by_stamp = {int(stamp): models[meaning["source"]] for stamp, meaning in line["stamps"].items()}
        np.testing.assert_allclose(replay(line, by_stamp).logprobs, line["logprobs"], atol=1e-4)
    retractions = {line["rid"]: line["num_retractions"] for line in lines}
    assert {rid for rid, count in retractions.items() if count} == {"retract0", "retract1", "retract2"}


async def test_a_signal_ends_it_with_requests_in_flight(server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        await client.post("/pause_generation", json={"mode": "in_place"})
        waiting = asyncio.create_task(_generate(client))
        await _wait_for(client, "num_waiting_reqs", 1)
        server.process.terminate()
        assert (await waiting)["meta_info"]["finish_reason"]["type"] == "abort"
    await server.process.wait()
    assert server.process.returncode in (0, -signal.SIGTERM)


async def _run(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "turnkeeper",
        "engine",
        *arguments,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_a_folder_that_holds_no_checkpoint_is_refused(tmp_path: Path) -> None:
    status, out, err = await _run("--port", "0", "--weights", str(tmp_path))
    assert (status, out) == (2, "")
    assert "config.json" in err


async def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    folder = write_small_checkpoint(tmp_path / "one", WEIGHTS[0])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, _, err = await _run("--port", str(port), "--weights", str(folder))
    assert status == 2
    assert f"127.0.0.1:{port}" in err


async def test_a_command_that_does_not_get_ready_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"config\.json"):
        async with running_command(["engine", "--port", "0", "--weights", str(tmp_path)]):
            pass
