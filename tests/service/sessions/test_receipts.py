"""Receipts of collects, with a store and without one.

1. A collect has a receipt, the digest of its bytes; equal bytes have the same one.
2. A receipt is acknowledged as often as a trainer says so, and after a restart where there is a store; another one is
   unknown.
3. A later collect gives the whole session and names the acknowledged turns; with ``since`` these have no loss, and the
   accounting says why.
4. A trainer that may die anywhere between collect, step and acknowledgement trains each token once.
5. Receipts that cannot be stored keep nobody from collecting; without a store they are bounded.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.sessions.test_storing import OPTIONS, FullDisk, serving
from servicekit import Kit, assistant, build_kit, user
from turnkeeper.errors import ReceiptUnknownError, RequestError
from turnkeeper.jsontypes import Message
from turnkeeper.samples import SampleBatch, compute_receipt, decode_samples
from turnkeeper.service.sessions.footprint import RECEIPT_BYTES, Part, measure_session
from turnkeeper.service.sessions.receipts import MAX_RECEIPTS
from turnkeeper.store.faults import CrashPoint

Serve = Callable[..., AbstractAsyncContextManager[Kit]]


@asynccontextmanager
async def serving_from_memory(_: Path, **options: Any) -> AsyncGenerator[Kit]:
    """A server without a store."""
    kit = build_kit(**{**OPTIONS, **options})
    try:
        yield kit
    finally:
        await kit.backend.lifecycle.close()


SERVERS: dict[str, Serve] = {"store": serving, "memory": serving_from_memory}


@pytest.fixture(params=SERVERS)
def serve(request: pytest.FixtureRequest) -> Serve:
    """Serves with a store in a folder, or without one."""
    return SERVERS[request.param]


async def collect(kit: Kit, session_id: str, **options: Any) -> SampleBatch:
    await kit.service.recall([session_id])
    payload = await kit.service.collect(session_id, **options)
    batch = decode_samples(payload.to_bytes())
    assert payload.receipt == batch.receipt == compute_receipt(payload.to_bytes())
    return batch


def list_reasons(batch: SampleBatch) -> list[str]:
    return [each["reason"] for sample in batch.samples for each in sample.metadata["turnkeeper"]["masked"]]


def get_own(batch: SampleBatch) -> Any:
    return batch.session_metadata["turnkeeper"]


async def test_equal_bytes_have_one_receipt_and_others_another(tmp_path: Path, serve: Serve) -> None:
    async with serve(tmp_path) as kit:
        session_id = kit.create()
        nothing = (await collect(kit, session_id)).receipt
        await kit.say(session_id, [user("a")], "first")
        receipts = [(await collect(kit, session_id)).receipt for _ in range(2)]
        rewarded = (await collect(kit, session_id, agent_metadata={"reward": 1})).receipt
        assert receipts[0] == receipts[1]
        assert len({nothing, rewarded, *receipts}) == 3
        assert [(await kit.service.acknowledge(session_id, each)).turns for each in (nothing, rewarded, *receipts)] == [
            0,
            1,
            1,
            1,
        ]


@pytest.mark.parametrize("history", ["linear", "tree"])
async def test_acknowledged_turns_are_named_and_with_since_they_have_no_loss(
    tmp_path: Path, serve: Serve, history: str
) -> None:
    async with serve(tmp_path) as kit:
        session_id = kit.create(history=history)
        await kit.say(session_id, [user("a")], "first")
        before = await collect(kit, session_id)
        assert "acknowledged" not in get_own(before)
        receipt = await kit.service.acknowledge(session_id, before.receipt)
        assert receipt.to_json() == {"receipt": before.receipt, "turns": [0]}
        await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")

        whole = await collect(kit, session_id)
        assert get_own(whole)["acknowledged"] == receipt.to_json()
        assert list_reasons(whole) == []

        rest = await collect(kit, session_id, since=before.receipt)
        assert list_reasons(rest) == ["acknowledged"]
        (all_of_it,), (sample,) = whole.samples, rest.samples
        assert sample.tokens.tolist() == all_of_it.tokens.tolist()
        assert sample.rollout_log_probs.tolist() == all_of_it.rollout_log_probs.tolist()
        first, second = sample.metadata["turnkeeper"]["turns"]
        assert not sample.loss_mask[first["start"] : first["end"]].any()
        assert sample.loss_mask[second["start"] : second["end"]].all()
        told = get_own(rest)["accounting"]
        assert (told["unaccounted"], told["trainable"]) == (0, second["end"] - second["start"])
        assert told["masked"] == {"acknowledged": first["end"] - first["start"]}
        assert list_reasons(await collect(kit, session_id)) == [], "since holds for one collect"


async def test_a_branch_trains_and_what_it_shares_with_an_acknowledged_leaf_does_not(
    tmp_path: Path, serve: Serve
) -> None:
    async with serve(tmp_path) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
        before = await collect(kit, session_id)
        await kit.service.acknowledge(session_id, before.receipt)
        await kit.say(session_id, [user("a"), assistant("first"), user("c")], "third")
        told = get_own(await collect(kit, session_id, since=before.receipt))
        assert [turn["tokens"].get("trainable", 0) > 0 for turn in told["turns"]] == [False, False, True]
        assert told["accounting"]["unaccounted"] == 0


UNKNOWN = {"nothing": "", "a made-up one": "0" * 32, "a long one": "x" * 10_000}


@pytest.mark.parametrize("digest", UNKNOWN.values(), ids=UNKNOWN)
async def test_another_receipt_is_unknown(tmp_path: Path, serve: Serve, digest: str) -> None:
    async with serve(tmp_path) as kit:
        session_id, other = kit.create(), kit.create()
        await kit.say(other, [user("a")], "first")
        for unknown in (digest, (await collect(kit, other)).receipt):
            with pytest.raises(ReceiptUnknownError, match="no collect of session") as caught:
                await kit.service.acknowledge(session_id, unknown)
            assert len(str(caught.value)) < 400
            with pytest.raises(ReceiptUnknownError):
                await kit.service.collect(session_id, since=unknown)


async def test_since_takes_no_receipt_that_was_not_acknowledged(tmp_path: Path, serve: Serve) -> None:
    async with serve(tmp_path) as kit:
        session_id = kit.create()
        receipt = (await collect(kit, session_id)).receipt
        with pytest.raises(RequestError, match="was not acknowledged"):
            await kit.service.collect(session_id, since=receipt)
        await kit.service.acknowledge(session_id, receipt)
        await collect(kit, session_id, since=receipt)


async def test_an_older_receipt_is_no_step_back(tmp_path: Path, serve: Serve) -> None:
    async with serve(tmp_path) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        older = (await collect(kit, session_id)).receipt
        await kit.say(session_id, [user("a"), assistant("first"), user("b")], "second")
        newer = (await collect(kit, session_id)).receipt
        for receipt in (newer, older, newer, older):
            await kit.service.acknowledge(session_id, receipt)
            assert get_own(await collect(kit, session_id))["acknowledged"] == {"receipt": newer, "turns": [0, 1]}
        assert list_reasons(await collect(kit, session_id, since=older)) == ["acknowledged"]
        masked = get_own(await collect(kit, session_id, since=older))["turns"]
        assert ["masked" in turn["tokens"] for turn in masked] == [True, False], "a trainer may go on from a checkpoint"


async def test_receipts_outlive_the_process_that_gave_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        early, late = await collect(kit, session_id), await collect(kit, session_id, agent_metadata={"reward": 1})
        await kit.service.acknowledge(session_id, early.receipt)
        before = await collect(kit, session_id)
    async with serving(tmp_path) as kit:
        after = await collect(kit, session_id)
        assert after.receipt == before.receipt
        assert get_own(after)["acknowledged"] == {"receipt": early.receipt, "turns": [0]}
        for receipt in (early.receipt, late.receipt, late.receipt):
            assert (await kit.service.acknowledge(session_id, receipt)).turns == 1
        assert list_reasons(await collect(kit, session_id, since=late.receipt)) == ["acknowledged"]
        with pytest.raises(ReceiptUnknownError):
            await kit.service.acknowledge(session_id, "0" * 32)


async def test_a_receipt_that_cannot_be_stored_is_not_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = FullDisk(CrashPoint.BEFORE_INSERT)
    async with serving(tmp_path, reach=disk) as kit:
        session_id = kit.create()
        await kit.say(session_id, [user("a")], "first")
        disk.is_full = True
        payload = await kit.service.collect(session_id)
        assert payload.receipt is None
        assert "is collected without a receipt" in caplog.text
        batch = decode_samples(payload.to_bytes())
        assert batch.samples
        disk.is_full = False
        with pytest.raises(ReceiptUnknownError):
            await kit.service.acknowledge(session_id, batch.receipt)
        assert (await collect(kit, session_id)).receipt == batch.receipt
        await kit.service.acknowledge(session_id, batch.receipt)


async def test_without_a_store_the_newest_receipts_are_held_and_the_acknowledged_one() -> None:
    kit = build_kit(**OPTIONS)
    session_id = kit.create()
    await kit.say(session_id, [user("a")], "first")
    held = (await collect(kit, session_id)).receipt
    await kit.service.acknowledge(session_id, held)
    receipts = [
        (await collect(kit, session_id, agent_metadata={"number": number})).receipt
        for number in range(MAX_RECEIPTS + 1)
    ]
    entry = kit.find_entry(session_id)
    assert entry.held[Part.RECEIPTS] == MAX_RECEIPTS * RECEIPT_BYTES
    assert entry.held == measure_session(entry)
    for gone in receipts[:2]:
        with pytest.raises(ReceiptUnknownError):
            await kit.service.acknowledge(session_id, gone)
    for known in (held, *receipts[2:]):
        await kit.service.acknowledge(session_id, known)


class Trainer:
    """Trains what it collects. What it has trained, and the receipt of that, outlive it; nothing else does."""

    def __init__(self) -> None:
        self.trained: Counter[tuple[int, int]] = Counter()
        """How often each token was trained: its turn, and its place in the completion."""
        self.receipt: str | None = None

    async def step(self, kit: Kit, session_id: str, *, dies: str = "") -> None:
        """Collect what came since the last step, train, and say so; or die in between."""
        await kit.service.recall([session_id])
        if self.receipt is not None:
            await kit.service.acknowledge(session_id, self.receipt)
        batch = await collect(kit, session_id, since=self.receipt)
        assert get_own(batch)["accounting"]["unaccounted"] == 0
        if dies == "before the step":
            return
        self.trained.update(list_trained(batch))
        self.receipt = batch.receipt
        if dies != "before it says so":
            await kit.service.acknowledge(session_id, batch.receipt)


def list_trained(batch: SampleBatch) -> list[tuple[int, int]]:
    """The tokens with loss."""
    return [
        (turn["id"], place)
        for sample in batch.samples
        for turn in sample.metadata["turnkeeper"]["turns"]
        for place in range(turn["end"] - turn["start"])
        if sample.loss_mask[turn["start"] + place]
    ]


class Agent:
    """Goes on, asks again, or takes another way from its first turn."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.messages: list[Message] = [user("begin")]
        self.said = 0

    async def act(self, kit: Kit, act: str) -> None:
        await kit.service.recall([self.session_id])
        if act == "branch":
            self.messages = [*self.messages[:2], user(f"other {self.said}")]
        elif act == "retry" and self.said:
            self.messages = self.messages[:-1]
        elif self.said:
            self.messages = [*self.messages, user(f"more {self.said}")]
        self.said += 1
        reply = await kit.say(self.session_id, self.messages, f"reply {self.said}")
        self.messages = [*self.messages, assistant(reply)]


AGENT = st.sampled_from(["extend", "retry", "branch"])
TRAINER = st.sampled_from(["step", "before the step", "before it says so"])
ACTS = st.lists(AGENT | TRAINER | st.just("restart"), min_size=3, max_size=12)


@settings(max_examples=20, deadline=None)
@given(acts=ACTS, with_store=st.booleans(), history=st.sampled_from(["linear", "tree"]))
def test_each_token_is_trained_once_wherever_a_trainer_or_a_server_dies(
    acts: list[str], with_store: bool, history: str
) -> None:
    async def play(folder: Path) -> None:
        serve = serving if with_store else serving_from_memory
        trainer, left = Trainer(), list(acts)
        session_id, agent = "", Agent("")
        while left:
            async with serve(folder) as kit:
                if not session_id:
                    session_id = kit.create(history=history)
                    agent = Agent(session_id)
                while left and (left[0] != "restart" or not with_store):
                    act = left.pop(0)
                    if act in ("step", "before the step", "before it says so"):
                        await trainer.step(kit, session_id, dies=act)
                    elif act != "restart":
                        is_turned = act == "branch" and (history == "linear" or not agent.said)
                        await agent.act(kit, "extend" if is_turned else act)
                del left[:1]
                if not left:
                    await trainer.step(kit, session_id)
                    assert set(list_trained(await collect(kit, session_id))) <= trainer.trained.keys()
        assert set(trainer.trained.values()) <= {1}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))
