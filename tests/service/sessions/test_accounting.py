"""Every sampled token is accounted for, in GET, in samples and as metrics; and what a session holds is freed.

1. Sampled = trainable + masked + dropped, whatever happened to the session.
2. The same terms stand in GET, in the samples' metadata and in the metrics.
3. `GET` runs no hook of the user's: it says what the last collect did while nothing has changed since, else what the
   built-in rules would do.
4. Deleting frees a session: its entry, its turns, its flights.
"""

import gc
import json
import re
import weakref
from typing import Any

import pytest

from servicekit import Kit, assistant, build_kit, user
from turnkeeper.samples import SampleBatch, decode_samples
from turnkeeper.testing import settle


async def collect(kit: Kit, session_id: str) -> SampleBatch:
    return decode_samples((await kit.service.collect(session_id)).to_bytes())


def read_metric(kit: Kit, sample: str) -> float:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", kit.backend.metrics.render().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def play_everything(kit: Kit) -> str:
    """A session with an extension, a retry, a lost client, a broken reply and a hang-up that was dropped."""
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    history = [user("a"), assistant("first"), user("b")]
    await kit.say(session_id, history, "second")
    await kit.say(session_id, history, "second again")
    gone = await kit.begin(session_id, history)
    await gone.hang_up()
    kit.engine.answer(text="nobody reads this")
    await settle()
    await kit.clock.advance(2)
    broken = await kit.begin(session_id, history)
    kit.engine.answer(text="hello", completion_tokens=99)
    with pytest.raises(Exception, match="contradicts"):
        await broken.read()
    unknown = await kit.begin(session_id, history)
    await unknown.hang_up()
    await kit.clock.advance(2)
    return session_id


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_every_sampled_token_is_accounted_for(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = await play_everything(kit)
    accounting = (await collect(kit, session_id)).session_metadata["turnkeeper"]["accounting"]
    assert accounting["unaccounted"] == 0
    assert set(accounting["dropped"]) == {"superseded", "client_gone", "refused_reply"} or version == "v2"
    assert accounting["calls"] == {"client_gone": 1}
    trained = sum(int(sample.loss_mask.sum()) for sample in (await collect(kit, session_id)).samples)
    assert accounting["trainable"] == trained


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_get_shows_the_terms_that_samples_would_have(version: str) -> None:
    kit = build_kit(use_session_server=version)
    session_id = await play_everything(kit)
    shown = json.loads(await kit.service.describe(session_id))["metadata"]["turnkeeper"]["accounting"]
    assert shown["unaccounted"] == 0
    assert shown == (await collect(kit, session_id)).session_metadata["turnkeeper"]["accounting"]


HOOK_CALLS: list[str] = []


def pick_nothing(leaf_samples: list[object], session_metadata: object) -> list[object]:
    HOOK_CALLS.append("picker")
    return []


def finish_nothing(leaf_samples: list[object], session_metadata: object) -> list[object]:
    HOOK_CALLS.append("postprocessor")
    return leaf_samples


async def read_own(kit: Kit, session_id: str) -> dict[str, Any]:
    return json.loads(await kit.service.describe(session_id))["metadata"]["turnkeeper"]


async def test_get_runs_no_hook_and_says_what_a_collect_did() -> None:
    HOOK_CALLS.clear()
    kit = build_kit(
        use_session_server="v2",
        session_sample_picker_path=f"{__name__}.pick_nothing",
        session_sample_postprocessor_path=f"{__name__}.finish_nothing",
    )
    session_id = await play_everything(kit)
    before = await read_own(kit, session_id)
    assert HOOK_CALLS == []
    assert before["accounting"]["trainable"] > 0
    await collect(kit, session_id)
    assert HOOK_CALLS == ["picker", "postprocessor"]
    after = await read_own(kit, session_id)
    assert (after["accounting"]["trainable"], after["accounting"]["unaccounted"]) == (0, 0)
    assert {leaf["cause"] for leaf in after["dropped_leaves"]} == {"superseded", "not_picked"}
    await kit.say(session_id, [user("new")], "new")
    later = await read_own(kit, session_id)
    assert later["accounting"]["trainable"] > before["accounting"]["trainable"]
    assert HOOK_CALLS == ["picker", "postprocessor"]


async def test_get_says_what_a_collect_with_a_budget_did() -> None:
    kit = build_kit(use_session_server="v2")
    session_id = await play_everything(kit)
    await kit.service.collect(session_id, max_seq_len=1)
    assert (await read_own(kit, session_id))["accounting"]["trainable"] == 0


async def test_metrics_count_what_the_session_drops() -> None:
    kit = build_kit()
    session_id = await play_everything(kit)
    ledger = kit.look(session_id).ledger
    assert read_metric(kit, "turnkeeper_tokens_sampled_total") == ledger.sampled
    for reason, tokens in ledger.dropped.items():
        assert read_metric(kit, f'turnkeeper_tokens_dropped_total{{reason="{reason}"}}') == tokens


async def test_collecting_changes_nothing() -> None:
    kit = build_kit()
    session_id = await play_everything(kit)
    events = list(kit.look(session_id).events)
    first = (await kit.service.collect(session_id)).to_bytes()
    assert (await kit.service.collect(session_id)).to_bytes() == first
    assert kit.look(session_id).events == events


@pytest.mark.parametrize("is_expired", [False, True], ids=["deleted", "expired"])
async def test_the_end_of_a_session_frees_everything(is_expired: bool) -> None:
    kit = build_kit()
    session_id = await play_everything(kit)
    entry = kit.find_entry(session_id)
    assert entry.size_bytes > 0
    alive = [weakref.ref(entry.session), weakref.ref(entry.session.forest)]
    await kit.begin(session_id, [user("a"), assistant("first"), user("c")])
    del entry
    if is_expired:
        kit.engine.answer(text="done")
        await settle()
        await kit.clock.advance(8000)
        kit.service.sweep()
    else:
        kit.service.delete(session_id)
    kit.engine.calls.clear()
    kit.reports.clear()  # an error holds the frames that it was raised in
    await settle()
    gc.collect()
    assert [ref() for ref in alive] == [None, None]
    assert read_metric(kit, "turnkeeper_sessions") == 0
    assert read_metric(kit, "turnkeeper_session_bytes") == 0
    assert read_metric(kit, "turnkeeper_turns_in_flight") == 0


async def test_the_bytes_of_a_session_grow_with_its_turns() -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    small = kit.find_entry(session_id).size_bytes
    await kit.say(session_id, [user("a"), assistant("first"), user("b" * 10_000)])
    assert kit.find_entry(session_id).size_bytes > small + 10_000


@pytest.mark.parametrize(("is_expired", "reason"), [(False, "deleted"), (True, "evicted")])
async def test_tokens_that_nobody_collected_are_counted_when_their_session_ends(is_expired: bool, reason: str) -> None:
    kit = build_kit()
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    await collect(kit, session_id)
    await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
    lost = len(kit.look(session_id).forest.turns[1].completion.ids)
    if is_expired:
        await kit.clock.advance(8000)
        kit.service.sweep()
    else:
        kit.service.delete(session_id)
    assert read_metric(kit, f'turnkeeper_tokens_dropped_total{{reason="{reason}"}}') == lost
