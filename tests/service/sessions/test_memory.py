"""Memory under its limit.

1. Rows of idle sessions move to disk, those idle longest first; their values stay what they were.
2. While memory is short, new sessions are refused; existing ones go on. A session in flight is left alone.
3. A folder that cannot be written leaves everything where it is.
4. A session that ends while its rows are being moved leaves the account at nothing.
5. While memory is short, a request costs as much with many sessions as with few.
6. The JSON of prompts is held up to a limit: sessions that used theirs longest ago let go of it, and any that is
   collected or ends.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from servicekit import FakeEngine, Kit, assistant, build_kit, user
from turnkeeper.channels.routing import RoutingRows, encode_rows
from turnkeeper.engines import GenerateRequest, Generation
from turnkeeper.errors import CapacityError
from turnkeeper.samples import decode_samples
from turnkeeper.service.sessions.footprint import SESSION_BYTES, Part
from turnkeeper.service.sessions.spill import write_runs

CONFIG = {"num_hidden_layers": 4, "num_experts_per_tok": 2, "num_experts": 8}


class RoutingEngine(FakeEngine):
    """Sends made-up rows: token i of a path is routed to experts that follow from i."""

    async def generate(self, request: GenerateRequest, *, on_ids: object = None) -> Generation:
        generation = await super().generate(request, on_ids=on_ids)
        stop = len(request.prompt_ids) + len(generation.ids) - 1
        rows = build_rows(request.asked["routed_experts"].payload_start, stop)
        return replace(generation, payloads={"routed_experts": encode_rows(rows).encode()})


def build_rows(start: int, stop: int) -> RoutingRows:
    at = np.arange(start, stop)[:, None, None]
    experts = (at + np.arange(4)[None, :, None] + np.array([0, 3])[None, None, :]) % 8
    return RoutingRows(experts_RLK=experts.astype(np.uint8))


def build_routing_kit(**options: object) -> Kit:
    return build_kit(engine=RoutingEngine(), checkpoint_config=CONFIG, use_rollout_routing_replay=True, **options)


async def read_rows(kit: Kit, session_id: str) -> np.ndarray:
    batch = decode_samples((await kit.service.collect(session_id)).to_bytes())
    return batch.samples[0].rollout_routed_experts


async def test_rows_of_idle_sessions_move_to_disk_and_stay_what_they_were(tmp_path: Path) -> None:
    kit = build_routing_kit(max_memory_bytes=1, spill_directory=str(tmp_path), pause_generation_mode="in_place")
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    before = await read_rows(kit, session_id)
    await kit.parts.memory.settle()
    entry = kit.find_entry(session_id)
    assert entry.spilled_bytes == before.size
    assert os.listdir(tmp_path) == [], "the file has no name"
    assert np.array_equal(await read_rows(kit, session_id), before)
    await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
    after = await read_rows(kit, session_id)
    assert np.array_equal(after[: len(before)], before)
    assert np.array_equal(after, build_rows(0, len(after)).experts_RLK)
    assert f"turnkeeper_spilled_bytes {float(entry.spilled_bytes)}" in kit.backend.metrics.render().decode()


async def test_new_sessions_are_refused_while_memory_is_short() -> None:
    kit = build_kit(max_memory_bytes=3000)
    first = kit.create()
    await kit.say(first, [user("a" * 2000)], "one")
    with pytest.raises(CapacityError, match="max-memory-bytes") as caught:
        kit.create()
    assert caught.value.http_status == 429
    assert await kit.say(first, [user("a" * 2000), assistant("one"), user("b")]) == "ok"
    kit.service.delete(first)
    assert kit.create()


async def test_a_session_in_flight_is_left_alone() -> None:
    kit = build_routing_kit(max_memory_bytes=1)
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    turn = await kit.begin(session_id, [user("a"), assistant("first"), user("b")])
    await kit.parts.memory.settle()
    entry = kit.find_entry(session_id)
    assert entry.spilled_bytes == 0
    kit.engine.answer(text="second")
    await turn.read()
    await read_rows(kit, session_id)
    await kit.parts.memory.settle()
    assert entry.spilled_bytes > 0


async def test_a_folder_that_cannot_be_written_changes_nothing(tmp_path: Path) -> None:
    kit = build_routing_kit(max_memory_bytes=1, spill_directory=str(tmp_path / "nowhere"))
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    await kit.parts.memory.settle()
    entry = kit.find_entry(session_id)
    assert entry.spilled_bytes == 0
    assert len(await read_rows(kit, session_id)) == entry.session.forest.turns[0].path_tokens - 1


def test_rows_of_several_shapes_share_a_file(tmp_path: Path) -> None:
    wide = RoutingRows(experts_RLK=np.arange(12, dtype=np.uint16).reshape(2, 3, 2))
    pieces = [build_rows(0, 3), wide, build_rows(3, 3), build_rows(3, 9)]
    places = write_runs(pieces, str(tmp_path))
    stored = [
        RoutingRows.stored(read, shape=each.shape, dtype=each.dtype) for read, each in zip(places, pieces, strict=True)
    ]
    assert all(ours.equals(each) for ours, each in zip(stored, pieces, strict=True))
    assert stored[3].cut(2, 5).equals(pieces[3].cut(2, 5))
    assert not list(tmp_path.iterdir())


def test_a_file_that_ends_early_is_an_error() -> None:
    rows = build_rows(0, 3)
    (read,) = write_runs([rows], None)
    longer = RoutingRows.stored(read, shape=(4, *rows.shape[1:]), dtype=rows.dtype)
    with pytest.raises(OSError, match="bytes before"):
        _ = longer.experts_RLK


async def test_a_session_that_ends_while_its_rows_move_leaves_the_account_at_nothing() -> None:
    kit = build_routing_kit(max_memory_bytes=1)
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    account = kit.find_entry(session_id).memory
    await read_rows(kit, session_id)
    await asyncio.sleep(0)  # the thread that writes the rows begins, and cannot have come back
    kit.service.delete(session_id)
    await kit.parts.memory.settle()
    assert (account.used_bytes, account.spilled_bytes, account.movable) == (0, 0, {})


async def test_relief_looks_only_at_sessions_with_rows_in_memory() -> None:
    kit = build_routing_kit(max_memory_bytes=3 * SESSION_BYTES)
    sessions = [kit.create() for _ in range(3)]
    for session_id in sessions:
        await kit.say(session_id, [user("a")], "first")
        await read_rows(kit, session_id)
        await kit.parts.memory.settle()
    account = kit.find_entry(sessions[0]).memory
    assert account.movable == {}
    assert account.spilled_bytes == sum(kit.find_entry(each).spilled_bytes for each in sessions)


class WritingEngine(FakeEngine):
    """Writes the body of each call, as a wire does."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    async def generate(self, request: GenerateRequest, *, on_ids: object = None) -> Generation:
        self.bodies.append(request.render_body("input_ids", {"rid": request.rid}, has_messages=True))
        return await super().generate(request, on_ids=on_ids)


async def test_the_json_of_prompts_is_held_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = WritingEngine()
    kit = build_kit(engine=engine)
    first, second = kit.create(), kit.create()
    await kit.say(first, [user("a" * 500)], "one")
    held = kit.find_entry(first).held[Part.PROMPT_TEXT]
    assert held == kit.find_entry(first).prompt_text.size_bytes > 500
    account = kit.find_entry(first).memory
    monkeypatch.setattr("turnkeeper.service.sessions.entry.PROMPT_TEXT_BYTES", held + 10)
    await kit.say(second, [user("b" * 500)], "one")
    assert [kit.find_entry(each).held[Part.PROMPT_TEXT] > 0 for each in (first, second)] == [False, True]
    await kit.say(first, [user("a" * 500), assistant("one"), user("c")], "two")
    assert list(account.written) == [], "what is over the limit alone is not held at all"
    assert b"a" * 500 in engine.bodies[-1]
    await kit.say(second, [user("b" * 500), assistant("one"), user("c")], "two")
    assert account.written_bytes == sum(kit.find_entry(each).held[Part.PROMPT_TEXT] for each in (first, second))
    await kit.service.collect(second)
    assert (account.written, account.written_bytes) == ({}, 0)
    said = [user("b" * 500), assistant("one"), user("c"), assistant("two"), user("d")]
    await kit.say(second, said, "three")
    assert b"b" * 500 in engine.bodies[-1], "what was dropped is written anew"
    for each in (first, second):
        kit.service.delete(each)
    assert (account.written, account.written_bytes, account.used_bytes) == ({}, 0, 0)
