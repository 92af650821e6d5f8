"""Turns whose sampled ids are not those that the tokenizer makes of their text.

1. A collect says which they are, in samples and in session metadata, and counts each once; GET says what is known.
2. A turn is looked at once, off the event loop, and what is committed while others are looked at is looked at too.
3. With a fast tokenizer `tokenizers` decides; a failure of the look fails no collect.
"""

import asyncio
import json
import re
import threading

import numpy as np
import pytest

from servicekit import Kit, assistant, build_kit, get_renderer, user
from turnkeeper.core.tokens import TokenIds, freeze_ids, join_ids
from turnkeeper.samples import SampleBatch, decode_samples
from turnkeeper.service.sessions import canonical
from turnkeeper.testing import settle


def split(*pieces: str) -> TokenIds:
    """The ids of each piece by itself, and the stop token."""
    return join_ids([get_renderer().tokenizer.encode(piece) for piece in (*pieces, "<|im_end|>")])


async def answer(kit: Kit, session_id: str, *pieces: str, history: tuple[str, ...] = ()) -> None:
    """A turn that is sampled in these pieces."""
    replies = [message for text in history for message in (assistant(text), user("go on"))]
    turn = await kit.begin(session_id, [user("go on"), *replies])
    ids = split(*pieces)
    kit.engine.answer(text="".join(pieces), ids=ids, logprobs=np.full(len(ids), -1.0), completion_tokens=len(ids))
    await turn.read()


async def collect(kit: Kit, session_id: str) -> SampleBatch:
    return decode_samples((await kit.service.collect(session_id)).to_bytes())


def count(kit: Kit) -> float:
    found = re.search(
        r"^turnkeeper_noncanonical_turns_total (\S+)$", kit.backend.metrics.render().decode(), re.MULTILINE
    )
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_samples_and_session_say_which_turns_they_are_and_each_is_counted_once(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = kit.create()
    await answer(kit, session_id, "first")
    await answer(kit, session_id, "s", "econd", history=("first",))
    batch = await collect(kit, session_id)
    for turns in (batch.samples[0].metadata["turnkeeper"]["turns"], batch.session_metadata["turnkeeper"]["turns"]):
        assert [turn.get("noncanonical_from") for turn in turns] == [None, 0]
    assert count(kit) == 1
    await answer(kit, session_id, "t", "hird", history=("first", "second"))
    again = await collect(kit, session_id)
    assert [turn.get("noncanonical_from") for turn in again.session_metadata["turnkeeper"]["turns"]] == [None, 0, 0]
    assert (await kit.service.collect(session_id)).to_bytes() == (await kit.service.collect(session_id)).to_bytes()
    assert count(kit) == 2
    shown = json.loads(await kit.service.describe(session_id))["metadata"]["turnkeeper"]["turns"]
    assert [turn.get("noncanonical_from") for turn in shown] == [None, 0, 0]


async def test_canonical_turns_say_and_count_nothing() -> None:
    kit = build_kit()
    session_id = kit.create()
    await answer(kit, session_id, "first")
    batch = await collect(kit, session_id)
    assert "noncanonical_from" not in json.dumps(batch.session_metadata)
    assert count(kit) == 0


async def test_a_turn_is_looked_at_once_and_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, bool]] = []

    def find(tokenizer: object, ids: TokenIds) -> None:
        looked.append((len(ids), threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(canonical, "find_noncanonical", find)
    kit = build_kit()
    session_id = kit.create()
    await answer(kit, session_id, "first")
    assert not looked
    await collect(kit, session_id)
    await answer(kit, session_id, "second", "!", history=("first",))
    await collect(kit, session_id)
    await collect(kit, session_id)
    assert looked == [(len(split("first")), False), (len(split("second", "!")), False)]


async def test_a_turn_that_is_committed_meanwhile_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    find_noncanonical = canonical.find_noncanonical

    def find_late(tokenizer: object, ids: TokenIds) -> int | None:
        began.set()
        assert go_on.wait(10)
        return find_noncanonical(tokenizer, ids)

    monkeypatch.setattr(canonical, "find_noncanonical", find_late)
    kit = build_kit()
    session_id = kit.create()
    await answer(kit, session_id, "first")
    collecting = asyncio.create_task(collect(kit, session_id))
    await asyncio.to_thread(began.wait, 10)
    await answer(kit, session_id, "s", "econd", history=("first",))
    go_on.set()
    batch = await collecting
    await settle()
    assert [turn.get("noncanonical_from") for turn in batch.session_metadata["turnkeeper"]["turns"]] == [None, 0]
    assert count(kit) == 1


class OtherEncoder:
    """An encoder that gets every text wrong."""

    def encode(self, text: str) -> TokenIds:
        return freeze_ids([len(text)])


async def test_where_the_fast_tokenizer_errs_the_other_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    kit = build_kit()
    session_id = kit.create()
    await answer(kit, session_id, "first")
    await answer(kit, session_id, "s", "econd", history=("first",))
    monkeypatch.setattr(get_renderer().tokenizer, "encoder", OtherEncoder())
    batch = await collect(kit, session_id)
    assert [turn.get("noncanonical_from") for turn in batch.session_metadata["turnkeeper"]["turns"]] == [None, 0]


async def test_a_failure_of_the_look_fails_no_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(canonical, "find_noncanonical", fail)
    kit = build_kit()
    session_id = kit.create()
    await answer(kit, session_id, "fi", "rst")
    assert len((await collect(kit, session_id)).samples) == 1
    assert count(kit) == 0
