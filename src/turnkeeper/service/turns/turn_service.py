"""A turn, from an agent's request to its record and its responses: read ``begin``, then ``_run``.

::

    begin   resolve the request -> join or replay, if it is a retry -> begin the turn -> render its prompt -> plan
    _run    generate (no lock, no session state held) -> reply -> render every response -> record -> deliver

Everything up to the engine call happens in ``begin``, so that what can be refused without an engine is refused before
anything is written. ``_run`` is a task of its own: a turn outlives its connection for the reconnect grace.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core import Query, build_query
from turnkeeper.core.accounting import DropReason
from turnkeeper.core.idempotency import Answer
from turnkeeper.core.session import Session
from turnkeeper.core.tokens import TokenIds
from turnkeeper.core.turn import Completion, Turn, TurnRequest
from turnkeeper.dialects.known_body import KnownBody
from turnkeeper.dialects.reply import build_reply
from turnkeeper.errors import EngineTimeoutError, SessionClosedError
from turnkeeper.fleet import EngineMonitor
from turnkeeper.generation import TurnOutcome, TurnRunner
from turnkeeper.logs import LogEvent, add_ids
from turnkeeper.metrics import Metrics
from turnkeeper.rendering import Renderer
from turnkeeper.service.drain import Drain
from turnkeeper.service.sessions import SessionEntry
from turnkeeper.service.turns.budget import check_messages, choose_limit
from turnkeeper.service.turns.in_flight import TurnInFlight
from turnkeeper.service.turns.lines import log_explained, log_matched, log_rendered
from turnkeeper.service.turns.plan import GenerationPlan, plan_generation
from turnkeeper.service.turns.prompt import join_prompt, render_prompt
from turnkeeper.service.turns.request import ResolvedRequest, decide_retry, resolve_request
from turnkeeper.service.turns.waiter import RecordedReply, TextDelta, Waiter
from turnkeeper.tasks import Spawn
from turnkeeper.telemetry import NoTracing, Tracing

logger = logging.getLogger("turnkeeper.turns")

StoreTurn: TypeAlias = Callable[[SessionEntry, Turn], Awaitable[None]]
"""Makes a turn durable before it becomes visible; what it raises fails the turn and leaves the session as it was."""


class TurnService:
    """Begins turns and sees them through."""

    def __init__(
        self,
        *,
        runner: TurnRunner,
        monitor: EngineMonitor,
        renderer: Renderer,
        config: ResolvedConfig,
        token_bytes: Callable[[int], bytes],
        context_length: int | None,
        metrics: Metrics,
        drain: Drain,
        spawn: Spawn,
        store_turn: StoreTurn,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing or NoTracing()
        self._runner = runner
        self._monitor = monitor
        self._renderer = renderer
        self._config = config
        self._token_bytes = token_bytes
        self._context_length = context_length
        self._metrics = metrics
        self._note_render_wait = partial(metrics.observe, "turnkeeper_render_queue_seconds")
        self._drain = drain
        self._spawn = spawn
        self._store_turn = store_turn
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(
        self,
        entry: SessionEntry,
        request: TurnRequest,
        response_id: str,
        query: Query | None = None,
        body: KnownBody | None = None,
    ) -> Waiter:
        """Begin a turn, or join or repeat the one that the request is a retry of.

        Args:
            entry: the session.
            request: what the agent asks for.
            response_id: the id under which the reply is delivered, should the request be a turn of its own.
            query: the request as the search sees it, where the caller has built it already.
            body: what the next request's body is expected to begin with, where that is known.

        Raises:
            RequestError: what is refused without the engine: history, template, length, limits.
            SessionClosedError: the session takes no further turns.
            ServerDrainingError: the server is stopping, and the request is no retry.
        """
        query = build_query(request) if query is None else query
        check_messages(query, self._choose_limit(entry.limit_tokens))
        resolved = resolve_request(request, entry.settings.pins, entry.session, query)
        while (waiter := self._find_retried(entry, resolved)) is None and entry.is_recording:
            await entry.wait_until_recorded()  # the request may go on from the turn that is being recorded
            resolved = resolve_request(request, entry.settings.pins, entry.session, query)
        if waiter is not None:
            await waiter.wait_until_rendered()
            return waiter
        self._drain.check("turns")
        pending = entry.session.begin(resolved.request, at=entry.clock.unix(), query=resolved.query)
        entry.remember(pending, body, request.notes)
        grace_s = self._config.timeouts.reconnect_grace_s
        turn = TurnInFlight(entry, pending, response_id=response_id, grace_s=grace_s, spawn=self._spawn)
        waiter = turn.join()
        add_ids(session=entry.id, number=pending.number)
        log_matched(pending)
        try:
            plan = await self._plan(turn, resolved)
        except BaseException as error:
            if turn.is_over and isinstance(error, Exception):
                return waiter  # it was given up while its prompt was rendered, and its clients know why
            turn.fail(error if isinstance(error, Exception) else SessionClosedError("the server is stopping"))
            raise
        turn.note_prompt(plan.prompt_tokens)
        log_rendered(turn, plan)
        if not turn.is_over:
            task = turn.start(self._run(turn, plan))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return waiter

    async def _run(self, turn: TurnInFlight, plan: GenerationPlan) -> None:
        """Take a turn from its engine call to its end."""
        try:
            outcome = await self._generate(turn, plan)
        except Exception as error:
            turn.fail(error)
            return
        if outcome.aborted_tokens:
            turn.entry.drop(DropReason.ABORTED_PIECE, outcome.aborted_tokens)
        try:
            named = turn.entry.session.name_calls(turn.pending, outcome.completion.message, self._token_bytes)
            completion = plan.name_completion(outcome.completion, named, turn.response_id)
            reply = build_reply(completion, plan.prompt_tokens)
            turn.hold(reply)
            await turn.wait_for_client()
            responses = turn.render(reply)
        except Exception as error:
            turn.give_up(DropReason.REFUSED_REPLY, error, len(outcome.completion.ids))
            return
        turn.begin_recording()
        try:
            recorded = await self._record(turn, plan, completion)
        except Exception as error:
            turn.give_up(DropReason.STREAM_FAILED, error, len(outcome.completion.ids))
        else:
            turn.finish(recorded, reply, responses)

    async def _plan(self, turn: TurnInFlight, resolved: ResolvedRequest) -> GenerationPlan:
        """Render the prompt and decide everything else that the engine call needs."""
        entry, pending = turn.entry, turn.pending
        limit_tokens = self._choose_limit(entry.limit_tokens)
        prompt = await render_prompt(self._renderer, pending, limit_tokens, self._note_render_wait)
        return plan_generation(
            entry.session,
            pending,
            resolved,
            prompt,
            messages=self._renderer.place(pending.messages),
            session_id=entry.id,
            rid=f"{entry.id[:8]}-{self._token_bytes(12).hex()}",
            limit_tokens=limit_tokens,
            trace=self._tracing.begin_turn(entry.id, pending.number, pending.begun_at, resolved.request.trace),
            prompt_text=entry.prompt_text,
            captures=() if entry.settings.evaluation else self._runner.captures,
            config=self._config,
        )

    def _choose_limit(self, limit_tokens: int | None) -> int | None:
        """Choose the token limit of a path: that of the session, the model or an engine, whichever is smallest."""
        engine_limits = (status.context_length for status in self._monitor.statuses)
        return choose_limit(limit_tokens, self._context_length, *engine_limits)

    async def _generate(self, turn: TurnInFlight, plan: GenerationPlan) -> TurnOutcome:
        """Call the engine, through pauses and weight updates, within the time that a turn may take."""
        closed_as = turn.entry.session.closed_as
        if closed_as is not None:  # all turns were ended while this one's prompt was rendered
            raise SessionClosedError(f"session {turn.entry.id}: {closed_as}")
        limit_s, call_status = self._config.request_timeout_s, turn.call_status
        sink = self._build_sink(turn, plan) if plan.wants_text else None
        try:
            async with asyncio.timeout(limit_s):
                return await self._runner.run(
                    plan.engine_request,
                    held=plan.held,
                    on_ids=sink,
                    call_status=call_status,
                )
        except TimeoutError as error:
            raise EngineTimeoutError(
                f"no reply within {limit_s:g} s",
                accepted=call_status.has_open_call,
                aborted_tokens=call_status.aborted_tokens,
            ) from error

    def _build_sink(self, turn: TurnInFlight, plan: GenerationPlan) -> Callable[[TokenIds], None]:
        """Build the function that reads ids as they come and hands on their text; only engines that stream ids call it.

        A stop string would be streamed before it is recognised, so requests with one get their text at the end.
        """
        parser = self._renderer.parser(plan.engine_request.prompt_ids[-64:], plan.engine_request.tools)

        def read(ids: TokenIds) -> None:
            turn.note_tokens()
            delta = parser.feed(ids.tolist())
            if delta.reasoning or delta.content:
                turn.add_text(TextDelta(reasoning=delta.reasoning, content=delta.content))

        return read

    async def _record(self, turn: TurnInFlight, plan: GenerationPlan, completion: Completion) -> Turn:
        """Store the turn, then make it part of its session; turns of one session are recorded one after the other."""
        entry, pending = turn.entry, turn.pending
        async with entry.recording():
            prepared = entry.session.prepare(pending, prompt=plan.prompt, completion=completion, at=entry.clock.unix())
            entry.publish()  # tokens that were dropped on the way to this turn stand in front of it in a store too
            await self._store_turn(entry, prepared)
            entry.session.append(pending, prepared)
            entry.add_turn(prepared)
        if prepared.rewrite is not None:
            logger.info(
                LogEvent("reply_rewritten", session=entry.id, turn=prepared.parent, kinds=prepared.rewrite.kinds)
            )
        log_explained(entry.id, prepared)
        self._metrics.count("turnkeeper_replies", how="sampled")
        return prepared

    def _find_retried(self, entry: SessionEntry, resolved: ResolvedRequest) -> Waiter | None:
        """Wait for the reply that is on its way or recorded, where the request is a retry."""
        decision = decide_retry(entry, resolved, replay_window_s=self._config.timeouts.replay_window_s)
        if decision.answer is Answer.JOIN and decision.number is not None:
            self._metrics.count("turnkeeper_replies", how="joined")
            logger.debug(LogEvent("turn_joined", session=entry.id, number=decision.number))
            return entry.in_flight[decision.number].join()
        if decision.answer is not Answer.REPLAY or decision.turn_id is None:
            return None
        turn = entry.session.forest.get(decision.turn_id)
        self._metrics.count("turnkeeper_replies", how="replayed")
        logger.debug(LogEvent("reply_replayed", session=entry.id, turn=turn.id))
        entry.lost.discard(turn.id)  # its reply is on its way again
        entry.unknown.discard(turn.id)
        reply = build_reply(turn.completion, turn.path_tokens - len(turn.completion.ids))
        return Waiter(
            entry,
            response_id=reply.response_id,
            created_s=reply.created_s,
            prompt_tokens=reply.prompt_tokens,
            recorded=RecordedReply(reply=reply, turn_id=turn.id),
        )

    async def count_tokens(
        self,
        session: Session,
        request: TurnRequest,
        *,
        at: float,
        limit_tokens: int | None,
        query: Query | None = None,
    ) -> int:
        """Count the tokens of the prompt that a turn of this session would have, without changing the session.

        A prompt that is over the limit is counted too, unless it is so long that it need not be tokenized to know.

        Raises:
            ContextLengthError: the prompt cannot but be over the limit.
            RequestError: what the turn would be refused for.
        """
        query, limit_tokens = build_query(request) if query is None else query, self._choose_limit(limit_tokens)
        check_messages(query, limit_tokens)
        pending = session.begin(request, at=at, query=query)
        session.abandon(pending, at=at)
        prompt = await render_prompt(self._renderer, pending, limit_tokens)
        return len(join_prompt(pending, prompt))

    async def close(self) -> None:
        """Wait for every turn in flight, and until the engines were told of the abandoned ones."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.close()
