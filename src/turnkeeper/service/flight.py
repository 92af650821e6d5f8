"""One engine call in progress, and the connections that wait for its reply.

::

    RUNNING --reply--> (somebody waits) --render, commit--> DONE
       |                     |
       |                (nobody waits) HELD --a retry joins--> DONE
       |                     |
       +-- nobody waits and the grace ends, DELETE, ... --> ABANDONED

Owns who waits and for how long a call without waiters is kept. Knows neither engines nor sessions: what committing
and abandoning mean comes in as functions. Everything happens in one event loop; nothing here awaits but `Delivery`.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from turnkeeper.core.accounting import DropReason
from turnkeeper.engines import Clock, TurnProgress
from turnkeeper.ids import TurnId
from turnkeeper.service.delivery import ClientGoneError, Delivery, Receipt, TextDelta
from turnkeeper.service.reply import AgentReply


class FlightState(StrEnum):
    """Where a flight stands."""

    RUNNING = "running"
    """The prompt is rendered, or the engine generates."""
    HELD = "held"
    """The reply is there, and nobody waits for it."""
    DONE = "done"
    """Committed, or failed with an error that its waiters got."""
    ABANDONED = "abandoned"
    """Given up; whatever still arrives is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A checked reply that is ready to be recorded."""

    reply: AgentReply
    commit: Callable[[], TurnId]
    """Records the turn; called at most once."""


class Flight:
    """One engine call and its waiters."""

    def __init__(
        self,
        *,
        number: int,
        digest: str,
        parent: TurnId | None,
        key: str,
        response_id: str,
        clock: Clock,
        grace_s: float,
        on_drop: Callable[["Flight", DropReason], None],
        on_written: Callable[[TurnId, bool], None],
    ) -> None:
        """Begin with nobody who waits.

        Args:
            number: that of the pending turn.
            digest: that of the request.
            parent: the turn that it extends.
            key: the idempotency key of the request that began it; empty for none.
            response_id: the id under which the reply will be delivered.
            clock: measures the grace.
            grace_s: how long the call is kept while nobody waits for it.
            on_drop: called when no turn will come of it, unless ``fail`` said so; accounts for what was sampled.
            on_written: called when the reply was written in full, or cut off.
        """
        self.number = number
        self.digest = digest
        self.parent = parent
        self.key = key
        self.response_id = response_id
        self.state = FlightState.RUNNING
        self.landing: Landing | None = None
        self.task: asyncio.Task[None] | None = None
        """The engine call; None before it begins."""
        self.progress = TurnProgress()
        """How far the call has come."""
        self.prompt_tokens = 0
        """Length of the whole prompt; 0 before it is rendered."""
        self._clock = clock
        self._grace_s = grace_s
        self._on_drop = on_drop
        self._on_written = on_written
        self._deliveries: list[Delivery] = []
        self._said = TextDelta()
        self._receipt_of: TurnId | None = None
        self._timer: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.state in (FlightState.DONE, FlightState.ABANDONED)

    @property
    def has_waiters(self) -> bool:
        """Whether a client is connected."""
        return any(delivery.is_live for delivery in self._deliveries)

    @property
    def joined(self) -> int:
        """How many requests have joined the first one."""
        return max(0, len(self._deliveries) - 1)

    def join(self) -> Delivery:
        """Add a connection that waits for the reply."""
        delivery = Delivery(
            self.response_id,
            created_s=int(self._clock.unix()),
            prompt_tokens=self.prompt_tokens,
            on_change=self._update,
            on_written=self._on_written,
        )
        delivery.add_text(self._said)
        self._deliveries.append(delivery)
        self._stop_timer()
        return delivery

    def add_text(self, delta: TextDelta) -> None:
        """Hand on text while it is generated; who joins later gets all of it."""
        self._said = TextDelta(
            reasoning=self._said.reasoning + delta.reasoning, content=self._said.content + delta.content
        )
        for delivery in self._deliveries:
            delivery.add_text(delta)

    def land(self, landing: Landing) -> None:
        """The reply is there: deliver it, or hold it for a retry within the grace."""
        if self.state is FlightState.RUNNING:
            self.landing = landing
            self.state = FlightState.HELD
            self._deliver()

    def fail(self, error: Exception) -> None:
        """There will be no reply; everybody who waits is told why."""
        if not self.is_over:
            self._end(FlightState.DONE)
            self._refuse_all(error)

    def abandon(self, reason: DropReason, error: Exception) -> None:
        """Give it up; whoever waits is told why."""
        if not self.is_over:
            self._end(FlightState.ABANDONED)
            self._refuse_all(error)
            self._on_drop(self, reason)

    def _update(self, delivery: Delivery) -> None:
        """Somebody is ready for the reply, or left."""
        if self.state is FlightState.DONE and self.landing is not None and self._receipt_of is not None:
            self._hand_over(delivery, self.landing.reply, self._receipt_of)  # it joined while the turn was recorded
        elif not self.is_over and not self.has_waiters:
            self._start_timer()
        elif self.state is FlightState.HELD:
            self._deliver()

    def _deliver(self) -> None:
        """Render for everybody who waits, record, hand over; when one of the first two fails, nothing is recorded."""
        landing = self.landing
        waiting = [each for each in self._deliveries if each.is_live and each.render is not None]
        if landing is None or not waiting:
            return
        try:
            bodies = [each.render(landing.reply) for each in waiting if each.render is not None]
        except Exception as error:
            self.abandon(DropReason.REFUSED_REPLY, error)
            return
        try:
            self._receipt_of = landing.commit()
        except Exception as error:
            self.abandon(DropReason.STREAM_FAILED, error)
            return
        self._end(FlightState.DONE)
        for delivery, body in zip(waiting, bodies, strict=True):
            delivery.resolve(Receipt(body=body, turn_id=self._receipt_of))

    @staticmethod
    def _hand_over(delivery: Delivery, reply: AgentReply, turn_id: TurnId) -> None:
        if delivery.is_live and delivery.render is not None:
            delivery.resolve(Receipt(body=delivery.render(reply), turn_id=turn_id))

    def _refuse_all(self, error: Exception) -> None:
        for delivery in self._deliveries:
            delivery.refuse(error)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = asyncio.create_task(self._expire())

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer is not asyncio.current_task():
            timer.cancel()

    async def _expire(self) -> None:
        await self._clock.sleep(self._grace_s)
        if not self.has_waiters:
            self.abandon(DropReason.CLIENT_GONE, ClientGoneError("the client did not come back"))

    def _end(self, state: FlightState) -> None:
        self._stop_timer()
        self.state = state
