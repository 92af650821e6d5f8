"""Random interleavings of requests, retries, hang-ups, deletes, engine faults, time and collects, against a model.

The model is a table of calls with four states and knows none of the code under test. After every step:

1. As many engine calls were made, turns recorded, replies held and calls abandoned as the model says.
2. What a client reads is the reply of its own call; a client that was told nothing still waits.
3. Every sampled token is accounted for; a collect changes nothing.
4. In the end nothing is left in flight.
"""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from servicekit import Turn, assistant, build_kit, user
from thorough import examples
from turnkeeper.core import fold
from turnkeeper.errors import EngineError, SessionClosedError
from turnkeeper.jsontypes import JsonObject
from turnkeeper.samples import decode_samples
from turnkeeper.service.turns import ClientGoneError
from turnkeeper.testing import settle

GRACE_S = 2.0


class State(Enum):
    RUNNING = auto()
    HELD = auto()
    RECORDED = auto()
    FAILED = auto()
    ABANDONED = auto()


@dataclass(repr=False)
class Client:
    turn: Turn
    is_gone: bool = False
    has_read: bool = False


@dataclass(repr=False)
class ModelCall:
    """One engine call as the model sees it."""

    number: int
    messages: list[JsonObject]
    text: str
    clients: list[Client] = field(default_factory=list)
    state: State = State.RUNNING
    alone_since: float | None = None
    """When its last client left; None while one is there."""

    @property
    def waiting(self) -> list[Client]:
        return [client for client in self.clients if not client.is_gone]


class ServiceMachine(RuleBasedStateMachine):
    """One session under a tree history, whose requests all differ unless they are retries."""

    @initialize()
    def open(self) -> None:
        self.runner = asyncio.Runner()
        self.kit = self.run(self._build())
        self.session_id = self.kit.create()
        self.session = self.kit.look(self.session_id)
        self.calls: list[ModelCall] = []
        self.time = 0.0
        self.is_deleted = False

    async def _build(self) -> Any:
        return build_kit(use_session_server="v2", reconnect_grace=GRACE_S)

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def pick(self, data: st.DataObject, *states: State) -> ModelCall:
        return data.draw(st.sampled_from([call for call in self.calls if call.state in states]))

    def list_attended(self) -> list[ModelCall]:
        """Running calls that a client waits for."""
        return [call for call in self.calls if call.state is State.RUNNING and call.waiting]

    def list_unread(self) -> list[ModelCall]:
        """Calls that ended and of which a client has not read the end."""
        ended = [call for call in self.calls if call.state not in (State.RUNNING, State.HELD)]
        return [call for call in ended if not all(client.has_read for client in call.clients)]

    def has(self, *states: State) -> bool:
        return any(call.state in states for call in self.calls)

    @precondition(lambda self: not self.is_deleted)
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        """A new request: it goes on from nothing, or from any recorded turn."""
        number = len(self.calls)
        recorded = [call for call in self.calls if call.state is State.RECORDED]
        parent = data.draw(st.sampled_from([None, *recorded]))
        history = [] if parent is None else [*parent.messages, assistant(parent.text)]
        call = ModelCall(number, [*history, user(f"question {number}")], f"answer {number}")
        self.calls.append(call)
        call.clients.append(Client(self.run(self.kit.begin(self.session_id, call.messages))))

    @precondition(lambda self: not self.is_deleted and self.has(State.RUNNING, State.HELD))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """The same request with a retry mark joins the call, and gets a held reply at once."""
        call = self.pick(data, State.RUNNING, State.HELD)
        call.clients.append(Client(self.run(self.kit.begin(self.session_id, call.messages, retry=1))))
        call.alone_since = None
        if call.state is State.HELD:
            call.state = State.RECORDED

    @precondition(lambda self: self.list_attended())
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        """A client leaves; the call is kept for the grace if it was the last one."""
        call = data.draw(st.sampled_from(self.list_attended()))
        client = call.waiting[-1]
        client.is_gone = True
        self.run(client.turn.hang_up())
        if not call.waiting:
            call.alone_since = self.time

    @precondition(lambda self: self.has(State.RUNNING))
    @rule(data=st.data(), is_good=st.booleans())
    def answer(self, data: st.DataObject, is_good: bool) -> None:
        """The engine replies, or fails."""
        call = self.pick(data, State.RUNNING)
        engine_call = self.find_engine_call(call)
        if is_good:
            engine_call.reply.set_result(self.kit.engine.build(engine_call, text=call.text))
            call.state = State.RECORDED if call.waiting else State.HELD
        else:
            engine_call.reply.set_exception(EngineError("broke off", url="http://engine"))
            call.state = State.FAILED
        self.run(settle())

    @precondition(lambda self: self.is_deleted or self.has(State.RUNNING, State.HELD))
    @rule(seconds=st.sampled_from([1.0, 1.9, 2.0]))
    def wait(self, seconds: float) -> None:
        """Time passes; calls that nobody came back for are given up."""
        self.time += seconds
        for call in self.calls:
            is_open = call.state in (State.RUNNING, State.HELD)
            if is_open and call.alone_since is not None and self.time - call.alone_since >= GRACE_S:
                call.state = State.ABANDONED
        self.run(self.kit.clock.advance(seconds))

    @precondition(lambda self: self.list_unread())
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """A client reads what it got."""
        call = data.draw(st.sampled_from(self.list_unread()))
        client = next(client for client in call.clients if not client.has_read)
        result = self.run(self._read(client.turn))
        client.has_read = True
        if client.is_gone:
            assert isinstance(result, ClientGoneError)
        elif call.state is State.RECORDED:
            assert result == call.text
        else:
            assert isinstance(result, EngineError | SessionClosedError)

    async def _read(self, turn: Turn) -> Any:
        try:
            return await turn.text()
        except Exception as error:
            return error

    @precondition(lambda self: not self.is_deleted and len(self.calls) > 3)
    @rule()
    def delete(self) -> None:
        """The session ends, and everything in flight with it."""
        self.run(self._delete())
        self.is_deleted = True
        for call in self.calls:
            if call.state in (State.RUNNING, State.HELD):
                call.state = State.ABANDONED

    async def _delete(self) -> None:
        self.kit.service.delete(self.session_id)
        await settle()

    @precondition(lambda self: not self.is_deleted)
    @rule()
    def collect(self) -> None:
        """Samples account for every token, and collecting changes nothing."""
        events = list(self.session.events)
        payload = self.run(self.kit.service.collect(self.session_id)).to_bytes()
        assert self.run(self.kit.service.collect(self.session_id)).to_bytes() == payload
        assert self.session.events == events
        accounting = decode_samples(payload).session_metadata["turnkeeper"]["accounting"]
        assert accounting["unaccounted"] == 0

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "kit"):
            return
        states = [call.state for call in self.calls]
        assert len(self.kit.engine.calls) == len(self.calls)
        assert len(self.session.forest) == states.count(State.RECORDED)
        assert self.session.in_flight == states.count(State.RUNNING) + states.count(State.HELD)
        assert [turn.completion.message["content"] for turn in self.session.forest.turns] == self.list_recorded()
        kept = sum(len(turn.completion.ids) for turn in self.session.forest.turns)
        assert self.session.ledger.sampled == kept + sum(self.session.ledger.dropped.values())

    @invariant()
    def clients_know_what_the_model_says(self) -> None:
        for call in getattr(self, "calls", ()):
            for client in call.clients:
                is_told = client.is_gone or call.state not in (State.RUNNING, State.HELD)
                assert client.turn.waiting.done() == is_told

    def teardown(self) -> None:
        if not hasattr(self, "kit"):
            return
        try:
            if not self.is_deleted:
                self.run(self._delete())
            assert self.session.in_flight == 0
            assert self.session.ledger.sampled == self.count_sampled()
            assert fold(self.session.events).ledger == self.session.ledger
        finally:
            self.runner.close()

    def list_recorded(self) -> list[str]:
        """The replies in the order in which they were recorded, which is for the session to say."""
        order = {turn.completion.message["content"]: turn.id for turn in self.session.forest.turns}
        recorded = [call.text for call in self.calls if call.state is State.RECORDED]
        return sorted(recorded, key=lambda text: order.get(text, -1))

    def count_sampled(self) -> int:
        dropped = sum(self.session.ledger.dropped.values())
        return dropped + sum(len(turn.completion.ids) for turn in self.session.forest.turns)

    def find_engine_call(self, call: ModelCall) -> Any:
        return next(each for each in self.kit.engine.calls if each.request.messages[-1] == call.messages[-1])


ServiceMachine.TestCase.settings = settings(max_examples=examples(12), stateful_step_count=30, deadline=None)
TestServiceMachine = ServiceMachine.TestCase
