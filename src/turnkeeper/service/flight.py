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
from turnkeeper.engines import Clock
from turnkeeper.ids import TurnId
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a waiter gets."""

    body: bytes
    """The reply, rendered before it was recorded."""
    turn_id: TurnId
    """The turn that records it."""


class ClientGoneError(Exception):
    """The client closed its connection: nobody is left to answer."""


class Delivery:
    """One connection's wait for one reply, and word of whether it got there."""

    def __init__(
        self,
        response_id: str,
        *,
        created_s: int,
        prompt_tokens: int,
        on_change: Callable[["Delivery"], None],
        on_written: Callable[[TurnId, bool], None],
    ) -> None:
        self.response_id = response_id
        """The id under which the reply will be delivered."""
        self.created_s = created_s
        """Unix seconds when it was asked for."""
        self.prompt_tokens = prompt_tokens
        """Length of the whole prompt; 0 before it is rendered."""
        self.is_live = True
        """Whether its client is still there, as far as anybody knows."""
        self.render: Callable[[AgentReply], bytes] | None = None
        self._result: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._on_change = on_change
        self._on_written = on_written

    @classmethod
    def replay(cls, reply: AgentReply, turn_id: TurnId, on_written: Callable[[TurnId, bool], None]) -> "Delivery":
        """The delivery of a turn that is recorded already."""

        def answer(delivery: Delivery) -> None:
            if delivery.is_live and delivery.render is not None:
                delivery.resolve(Receipt(body=delivery.render(reply), turn_id=turn_id))

        return cls(
            reply.response_id,
            created_s=reply.created_s,
            prompt_tokens=reply.prompt_tokens,
            on_change=answer,
            on_written=on_written,
        )

    @property
    def is_over(self) -> bool:
        """Whether it got its reply, or word that there is none."""
        return self._result.done()

    async def wait(self, render: Callable[[AgentReply], bytes]) -> Receipt:
        """Wait for the reply.

        Args:
            render: makes the reply's bytes; called before the turn is recorded.

        Raises:
            ClientGoneError: the client hung up meanwhile.
            TurnkeeperError: why there is no reply.
        """
        self.render = render
        self._on_change(self)
        return await asyncio.shield(self._result)

    def detach(self) -> None:
        """The client hung up."""
        if self.is_live:
            self.is_live = False
            self.refuse(ClientGoneError())
            self._on_change(self)

    def close(self, *, was_written: bool) -> None:
        """The reply was written to the connection in full, or cut off."""
        if self._result.done() and self._result.exception() is None:
            self._on_written(self._result.result().turn_id, was_written)

    def resolve(self, receipt: Receipt) -> None:
        """Hand over the reply."""
        if not self._result.done():
            self._result.set_result(receipt)

    def refuse(self, error: Exception) -> None:
        """Hand over why there is no reply."""
        if not self._result.done():
            self._result.set_exception(error)
            self._result.exception()  # a waiter that has left never asks for it


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
        self.prompt_tokens = 0
        """Length of the whole prompt; 0 before it is rendered."""
        self._clock = clock
        self._grace_s = grace_s
        self._on_drop = on_drop
        self._on_written = on_written
        self._deliveries: list[Delivery] = []
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
        self._deliveries.append(delivery)
        self._stop_timer()
        return delivery

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
