"""Random histories of a slot, with the process dead or the disk failing at any step of a write.

The oracle keeps the events of every session in lists and knows nothing of databases and files. A crash copies the
slot's folder as it is at that step, and the history goes on from the copy.

1. What was told to be stored is there after the crash, bit for bit and rows included; what was told to have failed is
   not there.
2. A group that was cut off is there as a whole or not at all: as a whole from the commit on, also where nobody was
   told, and as one of the two where its log is torn.
3. Deleted sessions stay deleted, and their row files go; the next start finds no row file without its session.
4. The next process goes on from there, and so on.

``make crashes`` plays 10,000 histories, and says how many were played and how often the process died and the disk
failed at each step; the test suite plays fewer.
"""

import errno
import os
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from channelkit import channels_of
from storekit import StoredTalk, open_store, opening_of, rows_of, spell
from turnkeeper.core import DropReason, PendingTurn, Turn, fold
from turnkeeper.core.event import TokensDropped, TurnCommitted
from turnkeeper.ids import SessionId
from turnkeeper.store import Durability, RowReading, StoredEvent, StoredState, StoreRules
from turnkeeper.store.database import DATABASE
from turnkeeper.store.faults import CrashPoint
from turnkeeper.store.jobs import Acknowledge, AddReceipt, AppendEvents, EndSession, Job
from turnkeeper.store.tail import SessionTail, Tail
from turnkeeper.store.writer import Ticket

HISTORIES = int(os.environ.get("CRASH_HISTORIES", "25"))
MANY = 300
"""From so many histories on every step is reached."""
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where the folders are made: a crash copies them, and nothing here needs a medium. None for the usual place."""
STORED_FROM = (CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_UNLINK, CrashPoint.AFTER_UNLINK)
"""The steps at which a group is stored, though nobody was told."""
WRITE_POINTS = (
    CrashPoint.GROUP_GATHERED,
    CrashPoint.BEFORE_ROWS,
    CrashPoint.ROWS_HALF_WRITTEN,
    CrashPoint.BETWEEN_PAYLOADS,
    CrashPoint.AFTER_ROWS,
    CrashPoint.AFTER_ROWS_SYNC,
    CrashPoint.TRANSACTION_BEGUN,
    CrashPoint.BEFORE_INSERT,
    CrashPoint.AFTER_INSERT,
    CrashPoint.BEFORE_COMMIT,
    *STORED_FROM,
)
DISK_POINTS = WRITE_POINTS[1:10]
"""The steps that a disk can fail at."""
PEACE_POINTS = (CrashPoint.BEFORE_CHECKPOINT, CrashPoint.AFTER_CHECKPOINT, CrashPoint.BEFORE_CLOSE)
"""The steps that no write comes to. The last step of all, at which some were told, is one of the event loop, where the
store is as behind the commit: ``test_killed`` has it."""
TOOLS: tuple[tuple[dict[str, Any], ...], ...] = ((), ({"name": "a"},), ({"name": "a"}, {"name": "b"}))


class Crashed(BaseException):
    """The process is dead."""


@dataclass
class Known:
    """What the oracle knows of one session."""

    events: list[StoredEvent]
    state: StoredState = StoredState.OPEN
    receipts: dict[str, tuple[int, bool]] = field(default_factory=dict)
    unwritten: list[StoredEvent] = field(default_factory=list)

    def copy(self) -> "Known":
        return Known([*self.events], self.state, {**self.receipts}, [])

    def spell(self) -> Any:
        opening = self.events[:1]
        told = [opening[0].event, *self.events[1:]] if opening else []  # type: ignore[union-attr]
        return self.state, spell(told), dict(sorted(self.receipts.items()))


Model = dict[SessionId, Known]


@dataclass
class Asked:
    """One job of the group that gathers, and what it means to the oracle."""

    id: SessionId
    job: Job
    event: StoredEvent | None = None
    is_awaited: bool = True
    state: StoredState | None = None
    receipt: str = ""
    turns: int = 0
    begun: tuple[PendingTurn, Turn] | None = None

    def apply(self, model: Model) -> None:
        """The job is stored."""
        if self.event is not None:
            known = model.setdefault(self.id, Known([]))
            known.events += [*known.unwritten, self.event]
            known.unwritten = []
            return
        known = model[self.id]
        if self.state is StoredState.DELETED:
            model[self.id] = Known([], StoredState.DELETED)
        elif self.state is not None and known.state is StoredState.OPEN:
            known.state = self.state
            known.unwritten = []
        elif self.turns and known.state is not StoredState.DELETED:
            known.receipts.setdefault(self.receipt, (self.turns, False))
        elif self.receipt in known.receipts:
            known.receipts[self.receipt] = (known.receipts[self.receipt][0], True)

    def refuse(self, model: Model) -> None:
        """The job is not stored, because of the disk."""
        if not self.is_awaited and self.event is not None and self.id in model:
            model[self.id].unwritten.append(self.event)


class Fault:
    """What happens while a store is written: the process dies behind so many steps, or the disk fails at one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps_to_live: int | None = None
        """None where the process does not die."""
        self.died_at: CrashPoint | None = None
        self.copy = folder
        """The folder as it was when the process died."""
        self.fail_at: CrashPoint | None = None
        self.skip = 0
        """How often the step is passed before the disk fails at it."""
        self.times = 0
        """How often the disk fails."""

    def __call__(self, point: CrashPoint) -> None:
        if self.steps_to_live == 0:
            self.died_at = point
            self.copy = Path(tempfile.mkdtemp(dir=self.folder.parent))
            shutil.copytree(self.folder, self.copy, dirs_exist_ok=True)
            PLAYED[f"died at {point}"] += 1
            raise Crashed
        if self.steps_to_live is not None:
            self.steps_to_live -= 1
        if point is not self.fail_at:
            return
        if self.skip:
            self.skip -= 1
        elif self.times:
            self.times -= 1
            PLAYED[f"failed at {point}"] += 1
            raise OSError(errno.EIO, "the disk fails")


PLAYED = Counter[str]()
"""How many histories ended well, and what happened in them how often."""


class CrashMachine(RuleBasedStateMachine):
    """Steps of a server and of the misfortunes that end it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="crashes", dir=MEMORY_DISK))
        self.model: Model = {}
        self.talks: dict[SessionId, StoredTalk] = {}
        self.tails: dict[SessionId, SessionTail] = {}
        self.group: list[Asked] = []
        self.number = 0

    @initialize(durability=st.sampled_from(Durability))
    def begin(self, durability: Durability) -> None:
        self.rules_of_store = StoreRules(durability=durability, row_durability=durability)
        self._open(self.root / "first")

    def _open(self, folder: Path) -> None:
        self.fault = Fault(folder)
        self.store = open_store(folder, reach=self.fault, rules=self.rules_of_store)
        self.is_new, self.tails, self.group = True, {}, []
        for session_id, known in self.model.items():
            if known.state is StoredState.OPEN:
                loaded = self.store.reader.load_session(session_id, RowReading.READ)
                self.tails[session_id] = SessionTail(session_id, loaded.line.number, loaded.tail, loaded.shared)
                self.talks[session_id].session = fold(loaded.events)

    def _shut(self) -> None:
        """Give back what the dead process held, without a trace on its successor's copy."""
        self.store.writer._connection.close()
        self.store.reader.close()
        self.store._lock.release()
        shutil.rmtree(self.fault.folder)

    # What a server is asked for; it gathers.

    @precondition(lambda self: len({*self.model, *self.tails}) < 4)
    @rule()
    def create(self) -> None:
        self.number += 1
        talk = self.talks[SessionId(f"{self.number:032x}")] = StoredTalk(self.number)
        tail = self.tails[talk.id] = SessionTail(talk.id, self.store._next_number, Tail(changed_at=1.0))
        self.store._next_number += 1
        opening = opening_of(talk.session)
        self.group.append(Asked(talk.id, AppendEvents(tail, [opening]), event=opening))

    def _free(self) -> list[SessionId]:
        """The sessions that may be written, and of which no turn is on its way."""
        busy = {asked.id for asked in self.group if asked.begun or asked.state}
        return [each for each in self.tails if each not in busy]

    @precondition(lambda self: self._free())
    @rule(data=st.data(), rows=st.integers(0, 4), tools=st.sampled_from(TOOLS), is_long=st.booleans())
    def say(self, data: st.DataObject, rows: int, tools: Any, is_long: bool) -> None:
        session_id = data.draw(st.sampled_from(self._free()))
        talk = self.talks[session_id]
        patch = rows_of(rows, first=len(talk.session.events)) if rows else None
        begun = talk.prepare("long " * 5000 if is_long else "u", rows=patch, tools=tools)
        indexer = rows_of(rows).experts_RLK.astype("i4") if rows > 2 else None
        turn = replace(begun[1], completion=replace(begun[1].completion, channels=channels_of(patch, indexer)))
        event = TurnCommitted(at=turn.committed_at, turn=turn)
        job = AppendEvents(self.tails[session_id], [event])
        self.group.append(Asked(session_id, job, event=event, begun=(begun[0], turn)))

    @precondition(lambda self: self.tails)
    @rule(data=st.data())
    def note(self, data: st.DataObject) -> None:
        session_id = data.draw(st.sampled_from(list(self.tails)))
        event = TokensDropped(at=2.0, reason=DropReason.CLIENT_GONE, sampled_tokens=len(self.group))
        job = AppendEvents(self.tails[session_id], [event], is_awaited=False)
        self.group.append(Asked(session_id, job, event=event, is_awaited=False))

    @precondition(lambda self: self._free())
    @rule(data=st.data(), state=st.sampled_from([StoredState.DELETED, StoredState.EXPIRED]))
    def end(self, data: st.DataObject, state: StoredState) -> None:
        session_id = data.draw(st.sampled_from(self._free()))
        keeps = state is StoredState.EXPIRED
        job = EndSession(session_id, state, 3.0, tail=self.tails[session_id], keeps_records=keeps)
        self.group.append(Asked(session_id, job, state=state))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), receipt=st.sampled_from(["r", "s"]), is_ack=st.booleans())
    def collect(self, data: st.DataObject, receipt: str, is_ack: bool) -> None:
        session_id = data.draw(st.sampled_from(list(self.model)))
        job = Acknowledge(session_id, receipt, 4.0) if is_ack else AddReceipt(session_id, receipt, 1, 4.0)
        self.group.append(Asked(session_id, job, receipt=receipt, turns=0 if is_ack else 1))

    # The group is written.

    @precondition(lambda self: self.group)
    @rule(fail_at=st.none() | st.sampled_from(DISK_POINTS), skip=st.integers(0, 2), times=st.sampled_from([1, 99]))
    def write(self, fail_at: CrashPoint | None, skip: int, times: int) -> None:
        """In peace, or with a disk that fails once, or for good."""
        self.fault.fail_at, self.fault.skip, self.fault.times = fail_at, skip, times
        tickets = [Ticket(asked.job, None) for asked in self.group]
        self.store.writer.write(tickets)
        self.fault.fail_at = None
        for asked, ticket in zip(self.group, tickets, strict=True):
            if ticket.error is None:
                asked.apply(self.model)
            elif "the disk fails" in str(ticket.error):
                asked.refuse(self.model)
            self._note_end(asked, is_stored=ticket.error is None)
        self.group = []

    def _note_end(self, asked: Asked, *, is_stored: bool) -> None:
        if asked.begun is not None and is_stored:
            self.talks[asked.id].session.append(*asked.begun)
        elif asked.begun is not None:
            self.talks[asked.id].session.abandon(asked.begun[0], at=1.0)
        if (asked.state is not None and is_stored) or asked.id not in self.model:
            self.tails.pop(asked.id, None)

    @precondition(lambda self: self.group)
    @rule(steps=st.integers(0, 16), tear=st.none() | st.floats(0, 1))
    def crash(self, steps: int, tear: float | None) -> None:
        """The process dies behind so many steps of the write, unless it has fewer; its log may be torn at the last."""
        log = self.fault.folder / "slot-000" / f"{DATABASE}-wal"
        before = log.stat().st_size
        self.fault.steps_to_live = steps
        tickets = [Ticket(asked.job, None) for asked in self.group]
        try:
            self.store.writer.write(tickets)
        except Crashed:
            pass
        else:
            self.fault.steps_to_live = None
            for asked, ticket in zip(self.group, tickets, strict=True):
                if ticket.error is None:
                    asked.apply(self.model)
                self._note_end(asked, is_stored=ticket.error is None)
            self.group = []
            return
        after = {session_id: known.copy() for session_id, known in self.model.items()}
        for asked, ticket in zip(self.group, tickets, strict=True):
            if ticket.error is None:
                asked.apply(after)
        models = [after] if self.fault.died_at in STORED_FROM else [self.model]
        if tear is not None and self.fault.died_at is CrashPoint.AFTER_COMMIT:
            PLAYED["torn logs"] += 1
            log = self.fault.copy / "slot-000" / f"{DATABASE}-wal"
            size = log.stat().st_size
            os.truncate(log, before + int((size - before) * tear))
            models = [self.model, after]
        self._go_on_from_copy(models)

    @precondition(lambda self: not self.group and self.model)
    @rule(steps=st.integers(0, len(PEACE_POINTS) - 1))
    def crash_in_peace(self, steps: int) -> None:
        """The process dies while the log is copied, or at its end."""
        self.fault.steps_to_live = steps
        try:
            self.store.writer.checkpoint()
            self.store.writer.close()
        except Crashed:
            pass
        self._go_on_from_copy([self.model])

    @precondition(lambda self: not self.group and self.model)
    @rule()
    def restart(self) -> None:
        """An end in order, and a new start."""
        self.store.writer.close()
        folder = Path(tempfile.mkdtemp(dir=self.root))
        shutil.copytree(self.fault.folder, folder, dirs_exist_ok=True)
        self._shut()
        self._drop_unwritten()
        self._open(folder)

    def _go_on_from_copy(self, models: list[Model]) -> None:
        copy = self.fault.copy
        self._shut()
        if len(models) > 1:
            found = open_store(copy)
            self.model = next(model for model in models if describe(found) == spell_model(model))
            found.writer._connection.close()
            found.reader.close()
            found._lock.release()
        else:
            (self.model,) = models
        self._drop_unwritten()
        self._open(copy)

    def _drop_unwritten(self) -> None:
        """Events that nobody waited for, and that no write took along, end with the process."""
        for known in self.model.values():
            known.unwritten = []

    # What is true.

    @invariant()
    def is_the_model(self) -> None:
        if not self.group:
            self._compare()

    def _compare(self) -> None:
        assert describe(self.store) == spell_model(self.model)
        kept = {f"{each.id}.rows" for each in self.store.reader.list_sessions() if each.row_bytes}
        found = {path.name for path in (self.fault.folder / "slot-000" / "rows").iterdir()}
        assert kept <= found
        assert not found & {f"{session_id}.rows" for session_id, known in self.model.items() if not known.events}
        if self.is_new:  # later a session whose opening failed may have left the rows of a turn behind it
            assert found <= {f"{session_id}.rows" for session_id in self.model}
        self.is_new = False

    def teardown(self) -> None:
        self._shut()
        shutil.rmtree(self.root)
        PLAYED["histories"] += 1


def spell_model(model: Model) -> Any:
    return {session_id: known.spell() for session_id, known in model.items()}


def describe(store: Any) -> Any:
    """All that a slot holds, read from its files."""
    found: dict[SessionId, Any] = {}
    for line in store.reader.list_sessions():
        events: list[Any] = []
        if line.events:
            loaded = store.reader.load_session(line.id, RowReading.READ)
            assert (loaded.torn, loaded.lost_payloads) == ("", ())
            events = list(loaded.events)
        receipts = {
            each.receipt: (each.turns, each.acknowledged_at is not None) for each in store.reader.list_receipts(line.id)
        }
        found[line.id] = (line.state, spell(events), dict(sorted(receipts.items())))
    return found


TestCrashes = CrashMachine.TestCase
TestCrashes.settings = settings(max_examples=HISTORIES, stateful_step_count=25, deadline=None, phases=[Phase.generate])


def test_the_machine_played_what_it_was_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    """Runs behind the machine: with many histories the process died, and the disk failed, at every step."""
    histories = PLAYED.pop("histories")
    if "CRASH_HISTORIES" in os.environ:
        with capsys.disabled():
            sys.stdout.write(f"\n{histories} histories\n")
            sys.stdout.writelines(f"{count:7} {what}\n" for what, count in PLAYED.most_common())
    assert histories >= HISTORIES
    if histories >= MANY:
        assert {f"died at {point}" for point in (*WRITE_POINTS, *PEACE_POINTS)} <= {*PLAYED}
        assert {"torn logs", *(f"failed at {point}" for point in DISK_POINTS)} <= {*PLAYED}
