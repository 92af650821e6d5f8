"""A store that an earlier version wrote is read by this one.

``tests/data/store-1.zip`` was written once, by the first version of the schema, and is never written again: a version
that needs another form keeps reading this one, and adds a file of its own. It holds one session with everything that
events can have (``build_told``); run as a script with a path, this module writes such a file.

1. Its session comes back to the last bit, in a server and beside one, and the session goes on from there.
"""

import asyncio
import sys
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from channelkit import channels_of
from sessionkit import ask, assistant, call, system, tool, user
from storekit import FINGERPRINT, SECRET, opening_of, rows_of, session_id, spell, store_opening
from turnkeeper.choices import OnRewrittenCalls, OnToolsChange, OnTruncated
from turnkeeper.core import (
    Cause,
    Completion,
    DropReason,
    Event,
    Explanation,
    FinishReason,
    Prompt,
    Session,
    Tree,
    VersionSpan,
    fold,
)
from turnkeeper.core.event import TurnCommitted
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.core.turn import RetryMarks
from turnkeeper.matching import TOLERANT, Difference, DifferenceKind, ReplyRules, Rewrite, RewriteKind
from turnkeeper.store import RowReading, SessionOpening, SessionStore, SlotReader
from turnkeeper.store.database import open_reader

KEPT = Path(__file__).parent.parent / "data" / "store-1.zip"
ID = session_id(0xABC)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "big": 2**70}}}


def build_told() -> tuple[SessionOpening, list[Event]]:
    """A session that has one of everything."""
    rules = ReplyRules(thinking_tags=("<think>", "</think>"), on_rewritten_calls=OnRewrittenCalls.ALWAYS)
    policy = Tree(on_tools_change=OnToolsChange.KEEP, on_truncated=OnTruncated.BRIDGE)
    session = Session.open(policy, matcher=replace(TOLERANT, replies=rules), turn_limit=9, at=1700000000.25)
    reply = assistant("a \ud83d", reasoning_content="why", tool_calls=[call("look", '{"at": 1}')])
    request = ask(
        system("s"),
        user("u é 😀"),
        model="policy",
        tools=(TOOL,),
        loaded_tools=({"name": "loaded"},),
        chat_template_kwargs={"enable_thinking": True},
        sampling={"temperature": 0.7, "seed": 2**63},
        forwarded={"logit_bias": {"5": -1.5}},
        dropped_fields=("user",),
        digest="d" * 32,
        dialect="messages",
        headers={"x-claude-code-agent-id": "agent-1"},
        notes=("left out x",),
        retry=RetryMarks(retry_count=2, key="key"),
        wants_text=True,
    )
    session.drop(DropReason.ABORTED_PIECE, None, at=2.0)
    pending = session.begin(request, at=3.0)
    completion = Completion(
        ids=freeze_ids([7, 8, 151645]),
        logprobs=np.array([-0.5, -0.1, -0.0]),
        message=reply,
        finish_reason=FinishReason.TOOL_CALLS,
        versions=(VersionSpan(version="1", start=0, stop=2), VersionSpan(version=None, start=2, stop=3)),
        weight_version="1",
        top_logprobs=(((7, -0.5), (9, -1.25)), (), ((151645, -0.0),)),
        lora_name="adapter",
        channels=channels_of(rows_of(5), np.arange(10, dtype=np.int32).reshape(5, 1, 2)),
        matched_stop=151645,
        cached_tokens=3,
        sampled_ids={"c0": "call_0"},
        response_id="chatcmpl-1",
        meta={"id": "rid", "e2e_latency": 0.125, "finish_reason": {"type": "stop"}},
        marks={"rows_changed": 2},
        started_at=3.5,
        finished_at=4.5,
    )
    prompt = Prompt(trim=0, ids=freeze_ids([1, 2, 3]), chat_template_kwargs={"enable_thinking": True})
    first = session.commit(pending, prompt=prompt, completion=completion, at=5.0)
    session.mark_delivered(first.id, at=6.0)
    pending = session.begin(ask(*request.messages, reply, tool("seen", "c0"), tools=(TOOL,)), at=7.0)
    completion = Completion(
        ids=freeze_ids([9]),
        logprobs=np.array([-1.0 / 3.0]),
        message=assistant("done"),
        finish_reason=FinishReason.LENGTH,
        versions=(VersionSpan(version="2", start=0, stop=1),),
        channels=channels_of(rows_of(3, first=5, wide=True)),
        matched_stop="stop",
    )
    turn = session.prepare(pending, prompt=Prompt(trim=1, ids=freeze_ids([4, 5, 6])), completion=completion, at=8.0)
    difference = Difference(
        kind=DifferenceKind.ARGUMENTS, field="tool_calls[0].arguments", stored="1", replayed="2", index=2
    )
    turn = replace(
        turn,
        context_changed=True,
        carried=1,
        accepted=(difference,),
        rewrite=Rewrite(kinds=(RewriteKind.TEXT_TRIMMED,), form="f" * 32),
        why=Explanation(cause=Cause.REPEATED, near=first.id, difference=difference, would_match="strict", agent="a"),
    )
    session.append(pending, turn)
    session.close("all turns were aborted", at=9.0)
    settings = {"metadata": {"group": 3}, "temperature": 0.7, "scopes": ["collect"]}
    opening = opening_of(session, settings=settings, ttl_s=600.0, limit_tokens=4096, key_hash=bytes(range(32)))
    return opening, session.events


async def write(folder: Path) -> None:
    """Write the store that is kept."""
    opening, events = build_told()
    store = SessionStore.open(folder, fingerprint=FINGERPRINT, secret=SECRET)
    store.start()
    stored = await store_opening(store, ID, opening)
    for event in events[1:]:
        if isinstance(event, TurnCommitted):
            await stored.commit(event)
        else:
            stored.note(event)
    await store.add_receipt(ID, "receipt", 2, 10.0)
    await store.acknowledge(ID, "receipt", 11.0)
    await store.close()


async def test_the_first_version_of_a_store_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(KEPT) as kept:
        kept.extractall(tmp_path)
    opening, events = build_told()
    beside = SlotReader(open_reader(tmp_path / "slot-000"), tmp_path / "slot-000" / "rows")
    store = SessionStore.open(tmp_path, fingerprint=FINGERPRINT, secret="00" * 32)
    store.start()
    assert store.manifest.secret == SECRET
    loaded, stored = await store.load(ID, RowReading.READ)
    for found in (loaded, beside.load_session(ID, RowReading.READ)):
        assert spell(found.opening) == spell(opening)
        assert spell(list(found.events)) == spell(events)
        assert (found.torn, found.lost_payloads) == ("", ())
    (receipt,) = store.reader.list_receipts(ID)
    assert (receipt.receipt, receipt.turns, receipt.acknowledged_at) == ("receipt", 2, 11.0)
    session = fold([event for event in events if type(event).__name__ != "SessionClosed"])
    pending = session.begin(ask(user("more"), tools=(TOOL,)), at=12.0)
    completion = replace(session.forest.turns[0].completion, channels={})
    turn = session.prepare(pending, prompt=Prompt(trim=0, ids=freeze_ids([1])), completion=completion, at=13.0)
    await stored.commit(TurnCommitted(at=13.0, turn=turn))
    beside.close()
    await store.close()


def keep(path: Path) -> None:
    """Write the file that is kept."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as kept:
        asyncio.run(write(Path(folder)))
        for each in sorted(Path(folder).rglob("*")):
            if each.is_file() and each.name != "lock":
                kept.write(each, each.relative_to(folder))


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
