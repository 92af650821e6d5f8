"""Routing rows that a store has lost: the machine ended before they were on the medium, or its disk is bad.

1. A server that is started again, and a collect without one, find them out before a sample has them: a wrong byte, a
   file that ends early, a file that is gone.
2. Under ``--on-bad-rows mask`` the tokens from the first lost row on carry no loss, and the rows before it are as they
   were; under ``fail`` a sample of theirs is refused, and the turn is named. Paths without them are as they were.
3. The session goes on, and what follows on a lost row carries no loss either.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.test_collect import collect_stored
from service.sessions.test_memory import CONFIG, RoutingEngine
from service.sessions.test_storing import serving
from servicekit import Kit, assistant, user
from turnkeeper.errors import AssemblyError
from turnkeeper.samples import SampleBatch, decode_samples

ROUTED: Mapping[str, Any] = {"use_rollout_routing_replay": True, "checkpoint_config": CONFIG}
TALK = ([user("a")], [user("a"), assistant("first"), user("b")])


def flip(path: Path) -> None:
    """Change the last byte, which is one of the second turn's rows."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: Mapping[str, Callable[[Path], object]] = {"a wrong byte": flip, "a file that ends early": cut}


async def play(folder: Path) -> tuple[str, SampleBatch, int]:
    """A session of two turns with its samples, and the length of the first one's path."""
    async with serving(folder, engine=RoutingEngine(), **ROUTED) as kit:
        session_id = kit.create()
        await kit.say(session_id, TALK[0], "first")
        await kit.say(session_id, TALK[1], "second")
        batch = decode_samples((await kit.service.collect(session_id)).to_bytes())
        return session_id, batch, kit.look(session_id).forest.turns[0].path_tokens


def find_rows(folder: Path, session_id: str) -> Path:
    return folder / "slot-000" / "rows" / f"{session_id}.rows"


def damaged_server(folder: Path, on_bad_rows: str) -> Any:
    return serving(folder, engine=RoutingEngine(), on_bad_rows=on_bad_rows, **ROUTED)


async def collect(kit: Kit, session_id: str) -> SampleBatch:
    await kit.service.recall([session_id])
    return decode_samples((await kit.service.collect(session_id)).to_bytes())


def check_masked(batch: SampleBatch, sound: SampleBatch, first_tokens: int) -> None:
    """Check that the first turn is as it was, and that the second one carries no loss."""
    (sample,), (before,) = batch.samples, sound.samples
    assert sample.rollout_routed_experts is not None
    assert before.rollout_routed_experts is not None
    kept = first_tokens - 1  # the rows of the first turn's path
    assert np.array_equal(sample.rollout_routed_experts[:kept], before.rollout_routed_experts[:kept])
    assert not sample.rollout_routed_experts[kept:].any()
    assert np.array_equal(sample.tokens, before.tokens)
    response = first_tokens - (len(before.tokens) - len(before.loss_mask))
    assert np.array_equal(sample.loss_mask[:response], before.loss_mask[:response])
    assert not sample.loss_mask[response:].any()
    assert before.loss_mask[response:].any()
    accounting = batch.session_metadata["turnkeeper"]["accounting"]
    assert accounting["masked"] == {"bad_rows": int(before.loss_mask[response:].sum())}
    assert accounting["unaccounted"] == 0


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_online", [True, False], ids=["online", "offline"])
async def test_a_sample_with_lost_rows_is_masked(tmp_path: Path, damage: str, is_online: bool) -> None:
    session_id, sound, first_tokens = await play(tmp_path)
    DAMAGES[damage](find_rows(tmp_path, session_id))
    if is_online:
        async with damaged_server(tmp_path, "mask") as kit:
            batch = await collect(kit, session_id)
            again = await collect(kit, session_id)
            assert again.receipt == batch.receipt
    else:
        batch = decode_samples((await collect_stored(tmp_path, session_id, on_bad_rows="mask")).to_bytes())
    check_masked(batch, sound, first_tokens)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_online", [True, False], ids=["online", "offline"])
async def test_a_sample_with_lost_rows_is_refused(tmp_path: Path, damage: str, is_online: bool) -> None:
    session_id, _, _ = await play(tmp_path)
    DAMAGES[damage](find_rows(tmp_path, session_id))
    refused = pytest.raises(AssemblyError, match="the routed_experts of turn 1 are lost: ")
    if is_online:
        async with damaged_server(tmp_path, "fail") as kit:
            with refused as caught:
                await collect(kit, session_id)
    else:
        with refused as caught:
            await collect_stored(tmp_path, session_id, on_bad_rows="fail")
    assert "--on-bad-rows mask" in caught.value.hint


async def test_rows_whose_file_is_gone_are_lost_from_the_first_on(tmp_path: Path) -> None:
    session_id, _, _ = await play(tmp_path)
    find_rows(tmp_path, session_id).unlink()
    async with damaged_server(tmp_path, "mask") as kit:
        (sample,) = (await collect(kit, session_id)).samples
        assert not sample.loss_mask.any()
        assert sample.rollout_routed_experts is not None
        assert not sample.rollout_routed_experts.any()


@pytest.mark.parametrize("on_bad_rows", ["mask", "fail"])
async def test_a_path_without_lost_rows_is_as_it_was(tmp_path: Path, on_bad_rows: str) -> None:
    options = {"session_sample_picker_path": "keep_siblings"}
    async with serving(tmp_path, engine=RoutingEngine(), **ROUTED, **options) as kit:
        session_id = kit.create()
        await kit.say(session_id, TALK[0], "first")
        await kit.say(session_id, [user("other")], "another")
        whole = decode_samples((await kit.service.collect(session_id)).to_bytes())
    flip(find_rows(tmp_path, session_id))
    async with serving(tmp_path, engine=RoutingEngine(), on_bad_rows=on_bad_rows, **ROUTED) as kit:
        await kit.service.recall([session_id])
        if on_bad_rows == "fail":
            with pytest.raises(AssemblyError, match="turn 1"):
                await collect(kit, session_id)
            return
        batch = await collect(kit, session_id)
    masks, before = ({each.tokens.tobytes(): each.loss_mask for each in found.samples} for found in (batch, whole))
    assert masks.keys() == before.keys()
    assert sorted(bool(mask.any()) for mask in masks.values()) == [False, True]
    assert all(not mask.any() or np.array_equal(mask, before[tokens]) for tokens, mask in masks.items())


async def test_a_session_goes_on_behind_lost_rows(tmp_path: Path) -> None:
    session_id, sound, first_tokens = await play(tmp_path)
    flip(find_rows(tmp_path, session_id))
    async with damaged_server(tmp_path, "mask") as kit:
        await kit.service.recall([session_id])
        await kit.say(session_id, [*TALK[1], assistant("second"), user("c")], "third")
        assert kit.look(session_id).forest.turns[-1].parent == 1
        (sample,) = (await collect(kit, session_id)).samples
        (before,) = sound.samples
        response = first_tokens - (len(before.tokens) - len(before.loss_mask))
        assert sample.loss_mask[:response].any()
        assert not sample.loss_mask[response:].any()
