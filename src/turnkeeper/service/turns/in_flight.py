"""One turn in flight: its states, the clients that wait for its reply, and how it ends.

::

    RENDERING --> GENERATING --> HELD --> RECORDING --> RECORDED
        |              |           |          |
        +--> FAILED <--+           |          |
        +--> ABANDONED <-----------+----------+

A turn outlives its connection for the reconnect grace: its reply is held until a client is ready for it, and given up
when none comes. While a turn is being recorded nothing ends it: a hang-up has no effect, an equal retry joins, and
what would close the session waits (``SessionEntry.after_recording``). The happy path stands in ``turns``.
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from turnkeeper.core import Label
from turnkeeper.core.accounting import DropReason
from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.turn import Turn
from turnkeeper.dialects.reply import AgentReply
from turnkeeper.errors import EngineError, EnginePausedError, EngineRefusedError, TurnAbortedError, TurnkeeperError
from turnkeeper.generation import CallStatus
from turnkeeper.headers import REQUEST_ID
from turnkeeper.logs import LogEvent
from turnkeeper.service.sessions.footprint import measure_text
from turnkeeper.service.turns.waiter import ClientGoneError, RecordedReply, TextDelta, Waiter
from turnkeeper.tasks import Spawn
from turnkeeper.telemetry import PhaseClock, TurnBegan, TurnEnd, TurnEnded, TurnPhase

if TYPE_CHECKING:
    from turnkeeper.service.sessions import SessionEntry

logger = logging.getLogger("turnkeeper.turns")


class TurnState(StrEnum):
    """Where a turn in flight stands."""

    RENDERING = "rendering"
    """The prompt is being rendered; no engine was asked."""
    GENERATING = "generating"
    """The turn waits at the gate, or an engine generates."""
    HELD = "held"
    """The reply is complete, and no client is ready for it yet."""
    RECORDING = "recording"
    """The reply is rendered for each client that waits, and the turn is being recorded."""
    RECORDED = "recorded"
    """The turn is committed, and its clients have their responses."""
    FAILED = "failed"
    """The request was refused or the engine call failed; the clients have the error."""
    ABANDONED = "abandoned"
    """The turn was given up: what was sampled for it is dropped."""


TRANSITIONS: Mapping[TurnState, frozenset[TurnState]] = {
    TurnState.RENDERING: frozenset({TurnState.GENERATING, TurnState.FAILED, TurnState.ABANDONED}),
    TurnState.GENERATING: frozenset({TurnState.HELD, TurnState.FAILED, TurnState.ABANDONED}),
    TurnState.HELD: frozenset({TurnState.RECORDING, TurnState.ABANDONED}),
    TurnState.RECORDING: frozenset({TurnState.RECORDED, TurnState.ABANDONED}),
    TurnState.RECORDED: frozenset(),
    TurnState.FAILED: frozenset(),
    TurnState.ABANDONED: frozenset(),
}
"""The states that may follow each state."""

ABANDONABLE = frozenset({TurnState.RENDERING, TurnState.GENERATING, TurnState.HELD})
"""The states in which a hang-up, a DELETE or an abort of everything may end a turn."""


class TurnInFlight:
    """One turn from ``begin`` to its record or its end."""

    def __init__(
        self, entry: "SessionEntry", pending: PendingTurn, *, response_id: str, grace_s: float, spawn: Spawn
    ) -> None:
        """Register the turn with its session.

        Args:
            entry: the session.
            pending: what the session resolved the request to.
            response_id: the id under which the reply will be delivered.
            grace_s: how long the turn is kept while no client waits for it.
            spawn: begins the turn's own tasks.
        """
        self.entry = entry
        self.pending = pending
        self.response_id = response_id
        self.state = TurnState.RENDERING
        self.reply: AgentReply | None = None
        """The reply, once it is complete and checked."""
        self.recorded: RecordedReply | None = None
        """The reply with its turn, once the turn is recorded."""
        self.texts: list[TextDelta] = []
        """The text that was generated so far, in order; a client that joins later reads it from the beginning."""
        self.phases = PhaseClock(entry.clock)
        """What the turn waits for, and how long it has waited for what."""
        self.call_status = CallStatus(phases=self.phases)
        """How far the engine call has come."""
        self.prompt_tokens = 0
        """Length of the whole prompt; 0 before it is rendered."""
        self.first_token_s: float | None = None
        """The age of the turn when an engine streamed its first ids; None before."""
        self.task: asyncio.Task[None] | None = None
        """Takes the turn from its engine call to its end; None before."""
        self._grace_s = grace_s
        self._spawn = spawn
        self._waiters: list[Waiter] = []
        self._ready = asyncio.Event()
        self._rendered = asyncio.Event()
        self._timer: asyncio.Task[None] | None = None
        self.held_bytes = 0
        """The bytes that the turn takes in memory, as the session counts them."""
        entry.add_in_flight(self)
        request = pending.request
        entry.reports.publish(
            TurnBegan(
                at=pending.begun_at,
                session_id=entry.id,
                number=pending.number,
                dialect=request.dialect,
                request_id=request.trace.get(REQUEST_ID, ""),
                trace=request.trace,
            )
        )

    @property
    def is_over(self) -> bool:
        """True once the turn is recorded, failed or abandoned."""
        return not TRANSITIONS[self.state]

    @property
    def has_waiters(self) -> bool:
        """True while a client that waits for the reply is connected."""
        return any(waiter.is_connected for waiter in self._waiters)

    @property
    def connected_clients(self) -> int:
        """The number of clients that wait for the reply and are connected."""
        return sum(waiter.is_connected for waiter in self._waiters)

    @property
    def joined(self) -> int:
        """The number of requests that have joined the first request."""
        return max(0, len(self._waiters) - 1)

    # Clients.

    def join(self) -> Waiter:
        """Add a client that waits for the reply."""
        waiter = Waiter(
            self.entry,
            response_id=self.response_id,
            created_s=int(self.entry.clock.unix()),
            prompt_tokens=self.prompt_tokens,
            turn=self,
        )
        self._waiters.append(waiter)
        self._stop_timer()
        return waiter

    def note_ready(self, waiter: Waiter) -> None:
        """Deliver a recorded reply to a client that said how to render it, or let a held reply be recorded."""
        if self.recorded is not None and waiter.is_connected and waiter.render is not None:
            waiter.deliver(self.recorded, waiter.render(self.recorded.reply))
        elif not self.is_over:
            self._ready.set()

    def note_hang_up(self) -> None:
        """Note that a client left: a turn without any other client is kept for the reconnect grace."""
        if self.state in ABANDONABLE and not self.has_waiters and self._timer is None:
            logger.debug(LogEvent("client_left", session=self.entry.id, number=self.pending.number))
            self._timer = self._spawn("reconnect_grace", self._expire())

    def note_prompt(self, prompt_tokens: int) -> None:
        """Hand the length of the rendered prompt to every client that has joined so far."""
        self.prompt_tokens = prompt_tokens
        for waiter in self._waiters:
            waiter.prompt_tokens = prompt_tokens
        self._rendered.set()

    async def wait_until_rendered(self) -> None:
        """Wait until the prompt is rendered, or the turn is over."""
        await self._rendered.wait()

    async def wait_for_client(self) -> None:
        """Wait until a client is ready for the reply."""
        while not any(waiter.is_ready for waiter in self._waiters):
            self._ready.clear()
            await self._ready.wait()

    def note_tokens(self) -> None:
        """Note that an engine has streamed ids."""
        if self.first_token_s is None:
            self.first_token_s = self.phases.age_s

    def add_text(self, delta: TextDelta) -> None:
        """Hand on text while it is generated."""
        self.texts.append(delta)
        self.entry.grow_in_flight(self, measure_text(delta))
        for waiter in self._waiters:
            waiter.wake()

    # The happy path.

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin the engine call; ``work`` takes the turn to its end."""
        self._move(TurnState.GENERATING)
        self.task = self._spawn("turns", work)
        self.task.add_done_callback(self._note_task_end)
        return self.task

    def _note_task_end(self, task: asyncio.Task[None]) -> None:
        """Let no client wait for a turn whose task ended in a way that nobody foresaw, and keep it not in flight."""
        error = None if task.cancelled() else task.exception()
        if error is None and self.is_over:
            return
        shown = error if isinstance(error, Exception) else RuntimeError("the turn's task was cancelled, or failed")
        if not self.is_over:
            sampled_tokens = None if self.reply is None else self.reply.completion_tokens
            self.give_up(DropReason.STREAM_FAILED, shown, sampled_tokens)
        self._refuse_all(shown)

    def hold(self, reply: AgentReply) -> None:
        """Hold the complete reply until a client is ready for it."""
        self._move(TurnState.HELD)
        self.phases.enter(TurnPhase.HELD)
        self.reply = reply

    def render(self, reply: AgentReply) -> list[tuple[Waiter, bytes]]:
        """Render the response of every client that is ready, before anything is recorded.

        Raises:
            Exception: what a dialect raises for a reply that it cannot express.
        """
        return [(each, each.render(reply)) for each in self._waiters if each.is_connected and each.render is not None]

    def begin_recording(self) -> None:
        """Begin the recording, whose outcome alone can end the turn from now on."""
        self._move(TurnState.RECORDING)
        self.phases.enter(TurnPhase.RECORDING)
        self._stop_timer()

    def finish(self, turn: Turn, reply: AgentReply, responses: list[tuple[Waiter, bytes]]) -> None:
        """Hand over the responses of the recorded turn, also to clients that joined during the recording."""
        self._move(TurnState.RECORDED)
        self.recorded = RecordedReply(reply=reply, turn_id=turn.id)
        self._leave()
        known = list_known(turn, self.entry.session.forest.label(turn.id))
        self._report(self._describe_end(TurnEnd.RECORDED, len(turn.completion.ids), **known))
        for waiter, body in responses:
            waiter.deliver(self.recorded, body)
        for waiter in self._waiters:
            if not waiter.is_over and waiter.is_ready:
                self.note_ready(waiter)

    # Other ends.

    def fail(self, error: Exception) -> None:
        """End the turn because its request was refused or its engine call failed; account for what was sampled."""
        if self.state not in (TurnState.RENDERING, TurnState.GENERATING):
            return
        self._move(TurnState.FAILED)
        session, at = self.entry.session, self.entry.clock.unix()
        session.abandon(self.pending, at=at)
        for loss in list_losses(error):
            session.drop(loss.reason, loss.sampled_tokens, at=at)
        self._leave()
        self._report(self._describe_end(TurnEnd.FAILED, None, error=error))
        self._refuse_all(error)

    def abandon(self, reason: DropReason, error: Exception) -> None:
        """Give the turn up, unless it is over or being recorded; its clients get the error."""
        if self.state in ABANDONABLE:
            self.give_up(reason, error, None if self.reply is None else self.reply.completion_tokens)

    def give_up(self, reason: DropReason, error: Exception, sampled_tokens: int | None) -> None:
        """End the turn without a record, also out of its recording; account for what was sampled.

        Args:
            reason: why the tokens are dropped.
            error: what the clients get.
            sampled_tokens: the length of the completion; None where the engine has not answered, and then the pieces
                of aborted calls are accounted for here.
        """
        self._move(TurnState.ABANDONED)
        session, at = self.entry.session, self.entry.clock.unix()
        is_lost = sampled_tokens is not None or self.call_status.has_open_call
        session.abandon(self.pending, at=at, reason=reason if is_lost else None, sampled_tokens=sampled_tokens)
        if sampled_tokens is None and self.call_status.aborted_tokens:
            session.drop(DropReason.ABORTED_PIECE, self.call_status.aborted_tokens, at=at)
        self._leave()
        lost = reason if is_lost else None
        self._report(self._describe_end(TurnEnd.ABANDONED, sampled_tokens, error=error, drop_reason=lost))
        self._refuse_all(error)
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()  # ending the engine call tells the engine

    def _move(self, state: TurnState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a turn that is {self.state} cannot become {state}")
        self.state = state

    def _describe_end(self, end: TurnEnd, sampled_tokens: int | None, **known: Any) -> TurnEnded:
        request, status = self.pending.request, self.call_status
        return TurnEnded(
            at=self.entry.clock.unix(),
            session_id=self.entry.id,
            number=self.pending.number,
            end=end,
            dialect=request.dialect,
            times=self.phases.times,
            prompt_tokens=self.prompt_tokens,
            sampled_tokens=sampled_tokens,
            engine_calls=status.engine_calls,
            engine_url=status.engine_url,
            first_token_s=self.first_token_s,
            joined=self.joined,
            request_id=request.trace.get(REQUEST_ID, ""),
            trace=request.trace,
            **known,
        )

    def _report(self, report: TurnEnded) -> None:
        self.entry.note_end(report)
        self.entry.reports.publish(report)

    def _leave(self) -> None:
        self.phases.stop()
        self._rendered.set()
        self._stop_timer()
        self.entry.remove_in_flight(self)
        self.entry.touch()
        self.entry.publish()

    def _refuse_all(self, error: Exception) -> None:
        for waiter in self._waiters:
            waiter.refuse(error)

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer is not asyncio.current_task():
            timer.cancel()

    async def _expire(self) -> None:
        await self.entry.clock.sleep(self._grace_s)
        self._timer = None
        if not self.has_waiters:
            self.abandon(DropReason.CLIENT_GONE, ClientGoneError("the client did not come back"))


def list_known(turn: Turn, label: Label) -> dict[str, Any]:
    """List what the report of a turn's end says once the turn is recorded."""
    completion = turn.completion
    return {
        "turn_id": turn.id,
        "parent": turn.parent,
        "label": label,
        "cause": turn.why.cause,
        "finish_reason": completion.finish_reason,
        "cached_tokens": completion.cached_tokens,
        "weight_version": completion.weight_version,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Sampled tokens that no turn will hold, or a call whose number of sampled tokens is unknown."""

    reason: DropReason
    sampled_tokens: int | None
    """The number of sampled tokens; None where it is unknown."""


def list_losses(error: Exception) -> tuple[Loss, ...]:
    """List the losses of a failed call by its error.

    The error says how many tokens the reply held, and how many those that were cut short. An engine that was not
    reached, or that refused or was paused, sampled nothing. After any other failure of an engine nobody knows.
    """
    facts = error.facts if isinstance(error, TurnkeeperError) else {}
    aborted, sampled = facts.get("aborted_tokens") or 0, facts.get("sampled_tokens") or 0
    losses = [Loss(reason=DropReason.ABORTED_PIECE, sampled_tokens=aborted)] if aborted else []
    if sampled:
        losses.append(Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=sampled))
    elif is_unknown(error):
        losses.append(Loss(reason=DropReason.REFUSED_REPLY, sampled_tokens=None))
    return tuple(losses)


def is_unknown(error: Exception) -> bool:
    """Tell whether the engine may have sampled tokens that it did not report."""
    told = EngineRefusedError | EnginePausedError | TurnAbortedError
    return isinstance(error, EngineError) and not isinstance(error, told) and error.facts.get("accepted") is not False
