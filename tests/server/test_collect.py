"""Samples of stored sessions without their server.

1. They are the server's, byte for byte: while it runs, after it was killed, and once receipts were acknowledged.
2. A picker, a limit and the other options of samples may be others than the server's.
3. An expired session, which a server no longer has, is collected all the same; nothing is written to the store.
4. A store of another tokenizer, template or family is refused, and the message names which.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.sessions.test_memory import CONFIG, RoutingEngine
from service.sessions.test_storing import collect, play, serving
from servicekit import assistant, get_renderer, user
from turnkeeper.config.checkpoint import read_checkpoint
from turnkeeper.config.load import load
from turnkeeper.config.resolve import resolve
from turnkeeper.errors import SessionExpiredError, StoreMismatchError
from turnkeeper.samples import SamplesPayload, decode_samples
from turnkeeper.server.collect import StoredCollector, open_collector
from turnkeeper.server.store import describe_model
from turnkeeper.store import StoreManifest
from turnkeeper.tiny.checkpoint import shipped_checkpoint
from turnkeeper.views.store import StoreSource
from views.test_store_source import read_files


async def collect_stored(
    folder: Path, session_id: str, *, max_seq_len: int | None = None, **options: Any
) -> SamplesPayload:
    """The payload of a stored session under these options, attribute names of the flags."""
    source = StoreSource(folder)
    collector = StoredCollector(resolve(load(options)), get_renderer())
    collection = await collector.collect(
        source.load(session_id), source.list_receipts(session_id), max_seq_len=max_seq_len
    )
    return collection.encode()


ROUTED: Mapping[str, Any] = {"use_rollout_routing_replay": True, "checkpoint_config": CONFIG}
OPTIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "siblings": {"session_sample_picker_path": "keep_siblings"},
    "messages": {"save_debug_trajectory_data": "out"},
    "models": {"train_models": ("policy",)},
    "past truncation": {"sample_past_truncation": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
async def test_samples_are_those_of_the_server(tmp_path: Path, options: dict[str, Any]) -> None:
    async with serving(tmp_path, **options) as kit:
        session_id = await play(kit, metadata={"task": 7})
        await kit.say(session_id, [user("x")], "fourth")  # with it is stored what nobody waited for
        payload, files = await collect(kit, session_id), read_files(tmp_path)
        assert (await collect_stored(tmp_path, session_id, **options)).to_bytes() == payload
        assert read_files(tmp_path) == files
    assert (await collect_stored(tmp_path, session_id, **options)).to_bytes() == payload


async def test_rows_come_along(tmp_path: Path) -> None:
    async with serving(tmp_path, engine=RoutingEngine(), **ROUTED) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
        payload = await collect(kit, session_id)
    assert (await collect_stored(tmp_path, session_id)).to_bytes() == payload
    assert decode_samples(payload).samples[0].rollout_routed_experts is not None


async def test_what_was_acknowledged_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
        receipt = (await kit.service.collect(session_id)).receipt
        assert receipt is not None
        await kit.service.acknowledge(session_id, receipt)
    async with serving(tmp_path) as kit:
        payload = await collect(kit, session_id)
    assert (await collect_stored(tmp_path, session_id)).to_bytes() == payload
    assert receipt in str(decode_samples(payload).session_metadata)


async def test_another_picker_and_another_limit_make_other_samples(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit)
        before = decode_samples(await collect(kit, session_id)).samples
    siblings = await collect_stored(tmp_path, session_id, session_sample_picker_path="keep_siblings")
    assert len(decode_samples(siblings.to_bytes()).samples) > len(before)
    limit = len(before[0].tokens) - 1
    cut = await collect_stored(tmp_path, session_id, max_seq_len=limit)
    assert max(len(sample.tokens) for sample in decode_samples(cut.to_bytes()).samples) <= limit


async def test_an_expired_session_is_collected(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = await play(kit, ttl_s=100.0)
        await kit.say(session_id, [user("x")], "fourth")
        payload = await collect(kit, session_id)
    async with serving(tmp_path) as kit:
        await kit.clock.advance(200)
        await kit.service.recall([session_id])
        with pytest.raises(SessionExpiredError):
            kit.find_entry(session_id)
    stored = decode_samples((await collect_stored(tmp_path, session_id)).to_bytes()).samples
    assert [sample.tokens.tolist() for sample in stored] == [
        sample.tokens.tolist() for sample in decode_samples(payload).samples
    ]


@pytest.mark.parametrize("name", ["tokenizer", "template", "family"])
def test_a_store_of_another_model_is_refused(name: str) -> None:
    config = resolve(load({"hf_checkpoint": str(shipped_checkpoint()), "tito_model": "qwen3"}))
    fingerprint = dict(describe_model(config, read_checkpoint(shipped_checkpoint())))
    manifest = StoreManifest(version=1, slots=1, fingerprint=fingerprint, secret="")
    assert open_collector(config, Path("store"), manifest)
    other = StoreManifest(version=1, slots=1, fingerprint={**fingerprint, name: "another"}, secret="")
    with pytest.raises(StoreMismatchError, match=f"store was made for {name} another, and"):
        open_collector(config, Path("store"), other)
