"""The engine's control routes on SGLang's wire.

1. Each pause mode has its effect on streams in flight; new requests get no byte until generation goes on.
2. Weights change from disk, between steps; the label and the spans tell. With a flush under a running request the
   call is a 400 although the weights have changed.
3. A new label aborts everything unless told not to. A flush is a 400 while a request runs.
4. Memory is released by an idle engine only, and requests wait until it is taken again.
5. Health is 200 when the engine steps and 503 when it does not; ready is 503 while paused.
6. What is malformed is a 400 that names it and changes nothing.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tiny.builders import write_small_checkpoint
from tiny.conftest import Flight, Serve, Served
from turnkeeper.tiny.model import TinyShape, init_weights

PROMPT = [5, 80, 466, 300, 12]


async def _version(served: Served) -> str:
    return (await served.client.get("/model_info")).json()["weight_version"]


async def _update(served: Served, folder: Path, **fields: Any) -> int:
    reply = await served.post("/update_weights_from_disk", {"model_path": str(folder), **fields})
    assert reply.json()["success"] is (reply.status_code == 200)
    return reply.status_code


async def _end(served: Served, flight: Flight) -> dict[str, Any]:
    """Let what runs go on for some steps, then abort it; its ``meta_info``."""
    await served.generate(PROMPT)
    await served.post("/abort_request", {"abort_all": True})
    return (await flight.last_chunk())["meta_info"]


async def test_abort_is_the_default_and_ends_what_runs(served: Served) -> None:
    async with served.in_flight() as flight:
        assert (await served.post("/pause_generation")).status_code == 200
        assert (await flight.last_chunk())["meta_info"]["finish_reason"]["type"] == "abort"
    assert await served.count_requests() == (0, 0)


async def test_retract_queues_what_runs_and_computes_it_again(served: Served, checkpoints: tuple[Path, Path]) -> None:
    async with served.in_flight() as flight:
        await served.post("/pause_generation", {"mode": "retract"})
        assert await served.count_requests() == (0, 1)
        assert (await served.client.get("/flush_cache")).status_code == 200, "waiting requests do not count"
        assert await _update(served, checkpoints[1], weight_version="v2") == 200
        await served.post("/continue_generation")
        meta = await _end(served, flight)
    assert meta["num_retractions"] == 1
    assert [span["version"] for span in meta["weight_versions"]] == ["default", "v2"]
    assert meta["weight_version"] == "v2"


async def test_in_place_freezes_what_runs(served: Served, checkpoints: tuple[Path, Path]) -> None:
    async with served.in_flight() as flight:
        await served.post("/pause_generation", {"mode": "in_place"})
        assert await served.count_requests() == (1, 0)
        assert await _update(served, checkpoints[1], weight_version="v2", flush_cache=False) == 200
        await served.post("/continue_generation")
        meta = await _end(served, flight)
    assert meta["num_retractions"] == 0
    first, second = meta["weight_versions"]
    assert (first["version"], second["version"]) == ("default", "v2")
    assert (first["start"], second["end"]) == (0, meta["completion_tokens"])
    assert first["end"] == second["start"]


async def test_an_update_that_cannot_flush_is_a_400_although_the_weights_changed(
    served: Served, checkpoints: tuple[Path, Path]
) -> None:
    async with served.in_flight():
        await served.post("/pause_generation", {"mode": "in_place"})
        assert await _update(served, checkpoints[1], weight_version="v2") == 400
        info = (await served.client.get("/model_info")).json()
        assert (info["weight_version"], info["model_path"]) == ("v2", str(checkpoints[1]))


async def test_an_update_flushes_the_prefix_cache_unless_told_not_to(
    served: Served, checkpoints: tuple[Path, Path]
) -> None:
    await served.generate(PROMPT)
    await _update(served, checkpoints[1], flush_cache=False)
    assert (await served.generate(PROMPT))["meta_info"]["cached_tokens"] == 4
    await _update(served, checkpoints[1])
    assert (await served.generate(PROMPT))["meta_info"]["cached_tokens"] == 0


async def test_an_update_without_a_version_keeps_the_label(served: Served, checkpoints: tuple[Path, Path]) -> None:
    await _update(served, checkpoints[1])
    assert await _version(served) == "default"


async def test_an_update_can_abort_everything_first(served: Served, checkpoints: tuple[Path, Path]) -> None:
    async with served.in_flight() as flight:
        assert await _update(served, checkpoints[1], abort_all_requests=True) == 200
        assert (await flight.last_chunk())["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize(("fields", "labels"), [({}, ["default"]), ({"abort_all_requests": False}, ["default", "v7"])])
async def test_a_new_label_aborts_everything_unless_told_not_to(
    served: Served, fields: dict[str, Any], labels: list[str]
) -> None:
    async with served.in_flight() as flight:
        reply = await served.post("/update_weight_version", {"new_version": "v7", **fields})
        assert reply.json()["new_version"] == "v7"
        meta = await _end(served, flight)
    assert [span["version"] for span in meta["weight_versions"]] == labels
    assert await _version(served) == "v7"


async def test_new_requests_hang_while_paused(served: Served) -> None:
    await served.post("/pause_generation", {"mode": "in_place"})
    assert (await served.client.get("/ready")).status_code == 503
    call = asyncio.create_task(served.generate(PROMPT))
    await served.wait_for(0, 1)
    assert not call.done()
    await served.post("/continue_generation")
    assert len((await call)["output_ids"]) == 4
    assert (await served.client.get("/ready")).status_code == 200


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions"])
async def test_a_new_stream_gets_no_byte_while_paused(served: Served, path: str) -> None:
    await served.post("/pause_generation", {"mode": "in_place"})
    body = {"input_ids": PROMPT, "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 2}
    arrived = asyncio.Event()

    async def read() -> str:
        async with served.client.stream("POST", path, json=body) as response:
            arrived.set()
            return (await response.aread()).decode()

    call = asyncio.create_task(read())
    await served.wait_for(0, 1)
    assert not arrived.is_set(), "headers are bytes too"
    await served.post("/continue_generation")
    assert (await call).endswith("data: [DONE]\n\n")


async def test_a_flush_is_refused_while_a_request_runs(served: Served) -> None:
    async with served.in_flight():
        assert (await served.post("/flush_cache")).status_code == 400
    await served.wait_until_idle()
    assert (await served.post("/flush_cache")).status_code == 200


async def test_memory_is_released_by_an_idle_engine_only(served: Served) -> None:
    async with served.in_flight():
        assert (await served.post("/release_memory_occupation")).status_code == 400
    await served.wait_until_idle()
    assert (await served.post("/release_memory_occupation")).status_code == 200
    call = asyncio.create_task(served.generate(PROMPT))
    await served.wait_for(0, 1)
    assert (await served.post("/resume_memory_occupation")).status_code == 200
    await call


async def test_abort_all_ends_everything(serve: Serve) -> None:
    async with serve(max_batch=1) as served, served.in_flight() as flight:
        waiting = asyncio.create_task(served.generate(PROMPT))
        await served.wait_for(1, 1)
        await served.post("/abort_request", {"abort_all": True})
        assert (await flight.last_chunk())["meta_info"]["finish_reason"]["type"] == "abort"
        assert (await waiting)["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.parametrize("path", ["/health", "/health_generate"])
async def test_health_tells_an_engine_that_steps_from_one_that_does_not(serve: Serve, path: str) -> None:
    async with serve(health_timeout_s=0.05, max_batch=1) as served:
        assert (await served.client.get(path)).status_code == 200
        async with served.in_flight():
            assert (await served.client.get(path)).status_code == 200, "a full engine steps"
        await served.post("/pause_generation", {"mode": "abort"})
        assert (await served.client.get(path)).status_code == 503
        await served.post("/continue_generation")
        assert (await served.client.get(path)).status_code == 200
        await served.wait_until_idle()


async def test_a_health_check_changes_no_draw_and_leaves_no_trace(serve: Serve, tmp_path: Path) -> None:
    replies = []
    for checks in (0, 3):
        async with serve(kv_trace=tmp_path / "trace.jsonl") as served:
            for _ in range(checks):
                await served.client.get("/health")
            replies.append((await served.generate(PROMPT))["output_ids"])
    assert replies[0] == replies[1]
    assert len((tmp_path / "trace.jsonl").read_text().splitlines()) == 1


async def test_the_engine_says_what_it_is(serve: Serve, checkpoints: tuple[Path, Path]) -> None:
    async with serve(max_batch=3, seed=9) as served:
        for path in ("/model_info", "/get_model_info"):
            info = (await served.client.get(path)).json()
            assert (info["model_path"], info["is_generation"]) == (str(checkpoints[0]), True)
        assert (await served.client.get("/get_weight_version")).json() == {"weight_version": "default"}
        server = (await served.client.get("/server_info")).json()
        assert (server["max_running_requests"], server["random_seed"]) == (3, 9)
        assert server["enable_return_routed_experts"] is True
        (card,) = (await served.client.get("/v1/models")).json()["data"]
        assert (card["object"], card["max_model_len"]) == ("model", 65_536)


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/pause_generation", {"mode": "stop"}, "mode"),
        ("/update_weights_from_disk", {}, "model_path"),
        ("/update_weights_from_disk", {"model_path": "x", "flush_cache": 1}, "flush_cache"),
        ("/update_weight_version", {}, "new_version"),
        ("/update_weight_version", {"new_version": 3}, "new_version"),
        ("/abort_request", {}, "rid"),
        ("/abort_request", {"rid": 1}, "rid"),
    ],
)
async def test_what_is_malformed_is_a_400_and_changes_nothing(
    served: Served, path: str, body: dict[str, Any], named: str
) -> None:
    async with served.in_flight():
        reply = await served.post(path, body)
        assert reply.status_code == 400
        assert reply.json()["object"] == "error"
        assert named in reply.json()["message"]
        assert await served.count_requests() == (1, 0)
        assert (await served.client.get("/ready")).status_code == 200


async def test_weights_of_another_shape_leave_the_weights(served: Served, tmp_path: Path) -> None:
    shape = TinyShape(hidden_size=16, num_hidden_layers=1, moe_intermediate_size=8)
    other = write_small_checkpoint(tmp_path / "other", init_weights(shape, 0), shape)
    assert await _update(served, other, weight_version="v9") == 400
    assert await _version(served) == "default"


async def test_a_checkpoint_that_cannot_be_read_leaves_the_weights(served: Served, tmp_path: Path) -> None:
    reply = await served.post("/update_weights_from_disk", {"model_path": str(tmp_path / "nowhere")})
    assert reply.status_code == 400
    assert "nowhere" in reply.json()["message"]
    assert await _version(served) == "default"
    await served.generate(PROMPT)
