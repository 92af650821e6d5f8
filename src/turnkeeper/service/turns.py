"""Turns, from an agent's request to its record.

::

    begin -> render -> engine call (no lock, no session state held) -> check -> reply rendered -> commit -> deliver

Everything up to the engine call happens in ``begin``, so that what can be refused without an engine is refused before
anything is written. From there on a *flight* carries the turn: it outlives its connection for the reconnect grace.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core.accounting import DropReason
from turnkeeper.core.idempotency import Answer
from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.session import Session
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import Completion, Prompt, TurnRequest
from turnkeeper.engines import Clock, EngineWatch, TurnRunner
from turnkeeper.errors import EngineTimeoutError, SessionClosedError, TurnkeeperError
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject
from turnkeeper.rendering import Renderer
from turnkeeper.routing import RoutingRows, RowsRequest, plan_rows
from turnkeeper.service.budget import choose_limit, plan_budget
from turnkeeper.service.call import CallPlan, list_losses
from turnkeeper.service.delivery import Delivery, TextDelta
from turnkeeper.service.entry import SessionEntry
from turnkeeper.service.flight import Flight, Landing
from turnkeeper.service.order import PreparedOrder, TurnOrder, prepare_order
from turnkeeper.service.prompt import join_prompt, render_prompt
from turnkeeper.service.publish import Publisher
from turnkeeper.service.reply import build_reply
from turnkeeper.service.retry import decide_order

logger = logging.getLogger("turnkeeper.turns")


class TurnService:
    """Begins turns and sees them through."""

    def __init__(
        self,
        *,
        runner: TurnRunner,
        watch: EngineWatch,
        renderer: Renderer,
        config: ResolvedConfig,
        clock: Clock,
        draw_bytes: Callable[[int], bytes],
        context_length: int | None,
        publisher: Publisher,
        count_reply: Callable[[str], None],
    ) -> None:
        self._runner = runner
        self._watch = watch
        self._renderer = renderer
        self._config = config
        self._clock = clock
        self._draw_bytes = draw_bytes
        self._context_length = context_length
        self._publisher = publisher
        self._count_reply = count_reply
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, entry: SessionEntry, order: TurnOrder) -> Delivery:
        """Begin a turn, or join or repeat the one that the request is a retry of.

        Raises:
            RequestError: what is refused without the engine: history, template, length, limits.
            SessionClosedError: the session takes no further turns.
        """
        prepared = prepare_order(order, entry.settings.pins, entry.session)
        again = self._find_again(entry, prepared)
        if again is not None:
            return again
        pending = entry.session.begin(prepared.request, at=self._clock.unix(), query=prepared.query)
        flight = self._open_flight(entry, pending, prepared)
        delivery = flight.join()
        try:
            plan = await self._plan(entry, pending, prepared, flight.response_id)
        except BaseException as error:
            if flight.is_over and isinstance(error, Exception):
                return delivery  # it was given up while its prompt was rendered, and knows why
            self._refuse(entry, flight, pending, error)
            raise
        flight.prompt_tokens = delivery.prompt_tokens = len(plan.prompt_ids)
        if not flight.is_over:
            flight.task = self._spawn(self._fly(entry, flight, pending, plan))
        return delivery

    async def count_tokens(self, session: Session, request: TurnRequest) -> int:
        """The length of the prompt that a turn of this session would have; nothing changes.

        Raises:
            RequestError: what the turn would be refused for.
        """
        pending = session.begin(request, at=self._clock.unix())
        session.abandon(pending, at=self._clock.unix())
        prompt = await render_prompt(self._renderer, pending)
        return len(join_prompt(pending, prompt))

    def abandon_all(self, entry: SessionEntry, reason: DropReason, error: TurnkeeperError) -> None:
        """Give up everything that a session has in flight."""
        for flight in tuple(entry.flights.values()):
            flight.abandon(reason, error)

    async def drain(self) -> None:
        """Wait for every turn in flight, and until the engines were told of the abandoned ones."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.close()

    def _find_again(self, entry: SessionEntry, prepared: PreparedOrder) -> Delivery | None:
        """The delivery of a reply that is on its way or stored, where the request is a retry."""
        decision = decide_order(
            entry,
            prepared,
            parent=prepared.parent,
            at=self._clock.unix(),
            replay_window_s=self._config.timeouts.replay_window_s,
        )
        if decision.answer is Answer.JOIN and decision.number is not None:
            self._count_reply("joined")
            return entry.flights[decision.number].join()
        if decision.answer is not Answer.REPLAY or decision.turn_id is None:
            return None
        turn = entry.session.forest.get(decision.turn_id)
        self._count_reply("replayed")
        entry.lost.discard(turn.id)  # it is on its way again
        reply = build_reply(turn.completion, turn.path_tokens - len(turn.completion.ids))
        return Delivery.replay(reply, turn.id, partial(self._note_written, entry))

    def _open_flight(self, entry: SessionEntry, pending: PendingTurn, prepared: PreparedOrder) -> Flight:
        flight = Flight(
            number=pending.number,
            digest=prepared.request.digest,
            parent=pending.parent_id,
            key=prepared.order.marks.key,
            response_id=prepared.order.build_response_id(self._draw_bytes(16).hex()),
            clock=self._clock,
            grace_s=self._config.timeouts.reconnect_grace_s,
            on_drop=lambda flight, reason: self._drop(entry, flight, pending, reason),
            on_written=partial(self._note_written, entry),
        )
        entry.flights[flight.number] = flight
        return flight

    async def _plan(
        self, entry: SessionEntry, pending: PendingTurn, prepared: PreparedOrder, response_id: str
    ) -> CallPlan:
        """Render the prompt and decide everything else that the engine call needs."""
        prompt = await render_prompt(self._renderer, pending)
        prompt_ids = join_prompt(pending, prompt)
        budget = plan_budget(
            prompt_tokens=len(prompt_ids),
            asked_tokens=prepared.request.sampling.get("max_tokens"),
            limit_tokens=choose_limit(entry.limit_tokens, self._context_length, *self._list_engine_limits()),
        )
        marks: JsonObject = {"overridden": dict(prepared.overridden)} if prepared.overridden else {}
        marks |= {"unpinned": list(prepared.unpinned)} if prepared.unpinned else {}
        marks |= {"lowered_max_tokens_from": budget.asked_tokens} if budget.asked_tokens is not None else {}
        rows = self._plan_rows(pending, prompt)
        return CallPlan(
            session_id=entry.id,
            response_id=response_id,
            request=prepared.request,
            messages=pending.messages,
            prompt=prompt,
            prompt_ids=prompt_ids,
            max_tokens=budget.max_tokens,
            rows=rows,
            held_rows=() if rows is None or rows.start_len is not None else _list_rows(entry, pending),
            wants_indexer=self._config.routing.use_rollout_indexer_replay,
            wants_text=prepared.order.wants_text and not prepared.request.sampling.get("stop"),
            trace=prepared.order.trace,
            marks=marks,
        )

    def _plan_rows(self, pending: PendingTurn, prompt: Prompt) -> RowsRequest | None:
        if not self._config.routing.use_rollout_routing_replay:
            return None
        parent_tokens = len(pending.parent_path_ids)
        return plan_rows(
            parent_tokens=parent_tokens,
            common_prefix=parent_tokens - prompt.trim,
            use_addition_r3=self._config.use_addition_r3,
        )

    def _list_engine_limits(self) -> Iterable[int | None]:
        return (report.context_length for report in self._watch.reports)

    def _refuse(self, entry: SessionEntry, flight: Flight, pending: PendingTurn, error: BaseException) -> None:
        """End a turn for which no engine was asked; those who joined meanwhile get the same error."""
        if not flight.is_over:
            entry.flights.pop(flight.number, None)
            entry.session.abandon(pending, at=self._clock.unix())
            flight.fail(error if isinstance(error, Exception) else SessionClosedError("the server is stopping"))

    async def _fly(self, entry: SessionEntry, flight: Flight, pending: PendingTurn, plan: CallPlan) -> None:
        """The engine call; whatever comes of it ends the flight or lands it."""
        if entry.session.closed_as is not None:  # all turns were ended while this one's prompt was rendered
            closed = SessionClosedError(f"session {entry.id}: {entry.session.closed_as}")
            self._fail(entry, flight, pending, closed)
            return
        limit_s = self._config.timeouts.request_timeout_s
        request = plan.build_request(f"{entry.id[:8]}-{self._draw_bytes(12).hex()}")
        try:
            async with asyncio.timeout(limit_s):
                sink = self._build_sink(flight, plan) if plan.wants_text else None
                outcome = await self._runner.run(request, held=plan.held_rows, on_ids=sink, progress=flight.progress)
        except TimeoutError:
            late = EngineTimeoutError(
                f"no reply within {limit_s:g} s",
                accepted=flight.progress.has_open_call,
                aborted_tokens=flight.progress.aborted_tokens,
            )
            self._fail(entry, flight, pending, late)
        except Exception as error:
            self._fail(entry, flight, pending, error)
        else:
            if outcome.aborted_tokens:
                entry.session.drop(DropReason.ABORTED_PIECE, outcome.aborted_tokens, at=self._clock.unix())
            completion = plan.name_completion(outcome.completion)
            commit = partial(self._commit, entry, flight, pending, plan.prompt, completion)
            flight.land(Landing(reply=build_reply(completion, len(plan.prompt_ids)), commit=commit))

    def _build_sink(self, flight: Flight, plan: CallPlan) -> Callable[[TokenIds], None]:
        """Reads ids as they come and hands on their text. Engines that do not stream ids never call it.

        A stop string would be streamed before it is recognised, so requests with one get their text at the end.
        """
        parser = self._renderer.parser(plan.prompt_ids[-64:], plan.request.tools)

        def read(ids: TokenIds) -> None:
            delta = parser.feed(ids.tolist())
            flight.add_text(TextDelta(reasoning=delta.reasoning, content=delta.content))

        return read

    def _commit(
        self, entry: SessionEntry, flight: Flight, pending: PendingTurn, prompt: Prompt, completion: Completion
    ) -> TurnId:
        turn = entry.session.commit(pending, prompt=prompt, completion=completion, at=self._clock.unix())
        entry.flights.pop(flight.number, None)
        entry.used_at = self._clock.now()
        entry.add_turn(turn, flight.key)
        self._count_reply("sampled")
        self._publisher.publish(entry)
        return turn.id

    def _fail(self, entry: SessionEntry, flight: Flight, pending: PendingTurn, error: Exception) -> None:
        """The engine call came to nothing: account for what it sampled, tell who waits."""
        if flight.is_over:
            return
        entry.flights.pop(flight.number, None)
        entry.used_at = self._clock.now()
        entry.session.abandon(pending, at=self._clock.unix())
        for loss in list_losses(error):
            entry.session.drop(loss.reason, loss.sampled_tokens, at=self._clock.unix())
        self._publisher.publish(entry)
        flight.fail(error)

    def _drop(self, entry: SessionEntry, flight: Flight, pending: PendingTurn, reason: DropReason) -> None:
        """The turn is given up: account for it; ending the call tells the engine."""
        entry.flights.pop(flight.number, None)
        entry.used_at = self._clock.now()
        landed, at = flight.landing, self._clock.unix()
        sampled = landed.reply.completion_tokens if landed is not None else None
        is_lost = landed is not None or flight.progress.has_open_call
        entry.session.abandon(pending, at=at, reason=reason if is_lost else None, sampled_tokens=sampled)
        if landed is None and flight.progress.aborted_tokens:
            entry.session.drop(DropReason.ABORTED_PIECE, flight.progress.aborted_tokens, at=at)
        self._publisher.publish(entry)
        if flight.task is not None and landed is None:
            flight.task.cancel()

    def _note_written(self, entry: SessionEntry, turn_id: TurnId, was_written: bool) -> None:
        """The reply of a turn was written in full, or cut off."""
        entry.used_at = self._clock.now()
        if was_written:
            entry.lost.discard(turn_id)
            entry.session.mark_delivered(turn_id, at=self._clock.unix())
            self._publisher.publish(entry)
        elif not entry.session.is_delivered(turn_id):
            entry.lost.add(turn_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _list_rows(entry: SessionEntry, pending: PendingTurn) -> tuple[RoutingRows, ...]:
    path = entry.session.forest.path(pending.parent_id)
    return tuple(turn.completion.rows for turn in path if turn.completion.rows is not None)
