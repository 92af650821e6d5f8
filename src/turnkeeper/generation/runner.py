"""The runner of turns: one turn from request to completion, through pauses and weight updates.

Owns the waiting: at the gate, for the engine, for the reason of an abort. `caller` calls the engine, `continuation`
decides, `joining` joins parts, `engines.check` checks replies, and `turnkeeper.channels` says what is kept of side
channels.

::

    gate -> engine -> check -> side channels -> completion
     ^                  | aborted
     |                  v
     |   refused <- is a weight update the reason? -> 503
     +----------- restart / resume

The agent sees one reply, or one error. A turn makes at most ``max_attempts`` engine calls, each wait has a deadline,
and however a turn ends, calls that still run for it are aborted.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnkeeper.channels import Capture
from turnkeeper.choices import OnAbort, PauseMode
from turnkeeper.clock import Clock
from turnkeeper.engines.check import check_generation
from turnkeeper.engines.engine import DecodeIds, Engine, GenerateRequest, Generation, IdsSink, ParseMessage
from turnkeeper.errors import EngineError, EnginePausedError, EngineProtocolError, TurnAbortedError, TurnkeeperError
from turnkeeper.generation.call_status import CallStatus
from turnkeeper.generation.caller import EngineCaller
from turnkeeper.generation.continuation import (
    AbortAction,
    decide_abort,
    derive_request,
    find_natural_end,
    find_obstacle,
)
from turnkeeper.generation.gate import Gate
from turnkeeper.generation.joining import ReplyPart, join_parts
from turnkeeper.generation.observer import EngineObserver
from turnkeeper.generation.part_reader import ReplyPartReader, RunnerOptions, has_older_prefix
from turnkeeper.generation.turn_run import CallStart, TurnOutcome, TurnRun
from turnkeeper.logs import LogEvent
from turnkeeper.tasks import Spawn, spawn_alone
from turnkeeper.telemetry import TurnPhase

logger = logging.getLogger("turnkeeper.engines")

_RETRY_PAUSED_S = 0.5
"""The time between two calls to an engine that refuses because it is paused, where nothing else shows when it
continues."""


def _spell_versions(versions: Mapping[str, str]) -> str:
    """Join the engines' version labels: one where all agree, else one for each engine in the order of their
    addresses."""
    labels = [versions[url] for url in sorted(versions)]
    return "+".join(labels if len(set(labels)) > 1 else labels[:1])


class TurnRunner:
    """Runs turns on an engine, any number of them at once."""

    def __init__(
        self,
        engine: Engine,
        gate: Gate,
        observer: EngineObserver,
        clock: Clock,
        options: RunnerOptions,
        *,
        parse: ParseMessage | None = None,
        decode: DecodeIds | None = None,
        spawn: Spawn = spawn_alone,
    ) -> None:
        """Run turns on an engine.

        Args:
            engine: generates the turns.
            gate: where turns wait while the engines are paused.
            observer: knows the engines' weight versions, and finds pauses that the trainer did not announce.
            clock: for every wait, and for the times in records.
            options: the operator's choices.
            parse: makes a message of joined ids; without it, aborted turns are restarted instead of resumed.
            decode: finds stop strings that lie across the cut of a resumed turn.
            spawn: starts the tasks that send abort notices.
        """
        self._caller = EngineCaller(engine, spawn)
        self._gate = gate
        self._observer = observer
        self._clock = clock
        self._options = options
        self._parse = parse
        self._decode = decode
        self._reader = ReplyPartReader(options)
        self._uncounted_urls: set[str] = set()

    async def run(
        self,
        request: GenerateRequest,
        *,
        held: Mapping[str, Sequence[Any]] | None = None,
        on_ids: IdsSink | None = None,
        call_status: CallStatus | None = None,
    ) -> TurnOutcome:
        """Generate a turn.

        Args:
            request: the turn; each further attempt's rid is this one's with ``-2``, ``-3``, ... behind it.
            held: by side channel, the items of the parent's path that payloads will cover again; see
                `Capture.list_held`.
            on_ids: gets sampled ids as they come, where nothing sent can be taken back later.
            call_status: kept up to date, to account for a turn that is cancelled.

        Raises:
            EngineError: the turn failed; the facts ``sampled_tokens`` (of a refused reply) and ``aborted_tokens``
                (of aborted attempts) count the tokens that no turn records.
            ContextLengthError: the engine refuses the length.
        """
        obstacle = find_obstacle(request) or (None if self._parse is not None else "no parser")
        run = TurnRun(
            request=request,
            held=held or {},
            signal=self._gate.abort_signal,
            on_ids=self._choose_sink(on_ids, obstacle),
            obstacle=obstacle,
            started_at=self._clock.unix(),
            call_status=call_status or CallStatus(),
        )
        try:
            while not await self._attempt(run):
                pass
            return await self._finish(run)
        except TurnkeeperError as error:
            error.facts.setdefault("sampled_tokens", 0)
            error.facts["aborted_tokens"] = run.aborted_tokens + run.held_tokens
            raise

    @property
    def captures(self) -> Sequence[Capture]:
        """The side channels that turns may ask for."""
        return self._options.captures

    async def close(self) -> None:
        """Wait until the engine got the abort notice of every turn that was given up."""
        await self._caller.close()

    def _choose_sink(self, on_ids: IdsSink | None, obstacle: str | None) -> IdsSink | None:
        """Return the sink for sampled ids; None holds them back where an abort would restart the turn."""
        can_restart = self._options.on_abort is OnAbort.RESTART or (
            self._options.on_abort is OnAbort.RESUME and obstacle is not None
        )
        return None if can_restart else on_ids

    async def _attempt(self, run: TurnRun) -> bool:
        """Make one engine call; return True when the turn is complete."""
        run.call_status.enter(TurnPhase.GATE)
        await self._gate.wait_open(self._options.gate_timeout_s, run.signal)
        if run.signal.is_set():
            raise run.build_refusal("all turns in flight were ended")
        start = CallStart(versions=await self._observer.fetch_versions(), closings=self._gate.closings)
        run.call_status.enter(TurnPhase.ENGINE)
        run.attempts += 1
        rid = run.request.rid if run.attempts == 1 else f"{run.request.rid}-{run.attempts}"
        run.call_status.engine_calls, run.call_status.rid = run.attempts, rid
        logger.debug(LogEvent("engine_call_began", rid=rid, attempt=run.attempts))
        request = derive_request(run.request, run.parts, rid=rid, captures=self.captures)
        if self._options.cache_salt_by_version:
            run.salted_versions = start.versions
            request = replace(request, cache_salt=f"{request.session_id}:{_spell_versions(start.versions)}")
        try:
            generation = await self._call(run, request)
        except EngineError as error:
            if error.facts.get("engine_paused"):
                return await self._wait_for_engine(run, error)
            if error.facts.get("engine_status") != 503:
                raise
            try:  # a paused engine may answer 503
                return await self._continue(run, request, None, start)
            except TurnAbortedError:
                raise error from None
        run.refused_since = None
        run.call_status.engine_url = generation.url
        check_generation(generation, request, vocabulary_size=self._options.vocabulary_size)
        self._note_uncounted(generation)
        if generation.weight_version is not None:
            self._observer.note_version(generation.url, generation.weight_version)
        if generation.is_aborted:
            return await self._continue(run, request, generation, start)
        run.parts.append(await self._read_part(run, request, generation, start))
        return True

    async def _wait_for_engine(self, run: TurnRun, error: EngineError) -> bool:
        """Wait as at a closed gate, after an engine refused a call because it is paused. The call counts as no attempt.

        Where the monitor observes the pause, the gate closes soon and the next attempt waits there; otherwise the
        engine is called again after a while.
        """
        run.attempts -= 1
        run.call_status.engine_calls = run.attempts
        run.call_status.has_open_call = False
        run.call_status.enter(TurnPhase.GATE)
        now = self._clock.now()
        run.refused_since = now if run.refused_since is None else run.refused_since
        if now - run.refused_since >= self._options.gate_timeout_s:
            raise EnginePausedError(
                f"the engine has been paused for longer than the {self._options.gate_timeout_s:g} s that a turn waits",
                hint="its trainer has not continued it; --gate-timeout sets the wait",
                retry_after_s=5,
                url=error.facts.get("url", ""),
            )
        self._observer.poll_often(_RETRY_PAUSED_S)
        await self._gate.wait_closed(_RETRY_PAUSED_S, run.signal)
        return False

    async def _call(self, run: TurnRun, request: GenerateRequest) -> Generation:
        run.call_status.has_open_call = True
        generation = await self._caller.call(request, signal=run.signal, on_ids=self._wrap_sink(run))
        if generation is None:
            raise run.build_refusal("all turns in flight were ended")
        return generation

    def _note_uncounted(self, generation: Generation) -> None:
        """Warn once for each route whose replies have no count of prompt tokens."""
        if (
            generation.prompt_tokens is None
            and not generation.is_aborted
            and generation.url not in self._uncounted_urls
        ):
            self._uncounted_urls.add(generation.url)
            logger.warning(
                "replies of %s count no prompt tokens, neither in meta_info nor in usage: whether the engine prefilled "
                "the ids that it was sent cannot be seen, and turns are marked prompt_unverified",
                generation.url,
            )

    def _wrap_sink(self, run: TurnRun) -> IdsSink | None:
        sink = run.on_ids
        if sink is None:
            return None

        def send(ids: Any) -> None:
            run.has_streamed = True
            sink(ids)

        return send

    async def _continue(
        self, run: TurnRun, request: GenerateRequest, generation: Generation | None, start: CallStart
    ) -> bool:
        """Fail an aborted turn, or prepare its next attempt; return True when the partial ids complete the turn.

        Args:
            run: the turn.
            request: the request of the aborted attempt.
            generation: the aborted reply; None when the engine answered that it is paused.
            start: the state when the attempt began.
        """
        count = len(generation.ids) if generation is not None else 0
        run.aborted_tokens += count
        run.call_status.aborted_tokens += count
        run.call_status.has_open_call = False
        run.call_status.enter(TurnPhase.GATE)
        is_explained = await self._is_explained(run, generation, start)
        obstacle, part = run.obstacle, None
        if is_explained and generation is not None and count and self._may_resume(run):
            try:
                part = await self._read_part(run, request, generation, start)
            except EngineProtocolError as error:  # partial ids without the items of side channels
                obstacle = error.message
        action = decide_abort(
            self._options.on_abort,
            is_explained=is_explained,
            attempts=run.attempts,
            max_attempts=self._options.max_attempts,
            has_streamed=run.has_streamed,
            obstacle=obstacle,
        )
        logger.debug(
            LogEvent(
                "call_aborted",
                rid=request.rid,
                action=str(action),
                tokens=count,
                is_explained=is_explained,
                obstacle=obstacle,
            )
        )
        if action in (AbortAction.REFUSE, AbortAction.FAIL, AbortAction.GIVE_UP):
            raise run.build_abort(action, "" if generation is None else generation.url)
        if action is AbortAction.RESTART:
            run.aborted_tokens += run.held_tokens
            run.parts.clear()
            return False
        return part is not None and self._hold(run, part)

    def _may_resume(self, run: TurnRun) -> bool:
        return run.obstacle is None and (self._options.on_abort is OnAbort.RESUME or run.has_streamed)

    def _hold(self, run: TurnRun, part: ReplyPart) -> bool:
        """Hold a partial reply; return True when it completes the turn."""
        run.parts.append(part)
        run.aborted_tokens -= len(part.generation.ids)
        end = find_natural_end(
            part.generation.ids, held=run.held_tokens, request=run.request, stop_ids=self._options.stop_token_ids
        )
        if end is None:
            return False
        generation = replace(part.generation, finish_reason=str(end))
        if self._parse is not None:
            generation = replace(generation, message=self._parse(run.request, generation.ids))
        run.parts[-1] = replace(part, generation=generation)
        return True

    async def _is_explained(self, run: TurnRun, generation: Generation | None, start: CallStart) -> bool:
        """Return True if a weight update explains the abort: a pause now or soon, or another version than at the
        start."""
        if not self._gate.is_open:
            return True
        url = generation.url if generation is not None else ""
        before = start.versions.get(url)
        if before is not None and generation is not None and generation.weight_version not in (None, before):
            return True
        self._observer.poll_often(self._options.abort_grace_s)
        if await self._gate.wait_closed(self._options.abort_grace_s, run.signal):
            return True
        return not run.signal.is_set() and before is not None and self._observer.find_version(url) not in (None, before)

    async def _read_part(
        self, run: TurnRun, request: GenerateRequest, generation: Generation, start: CallStart
    ) -> ReplyPart:
        return await self._reader.read_part(
            request,
            generation,
            started_version=start.versions.get(generation.url),
            is_disturbed=self._gate.closings != start.closings,
            held=run.held,
            earlier=run.parts,
        )

    async def _finish(self, run: TurnRun) -> TurnOutcome:
        """Build the outcome of a turn whose parts are complete."""
        joined = join_parts(run.parts, captures=self.captures, parse=self._parse, decode=self._decode)
        run.aborted_tokens += joined.cut_tokens
        marks: dict[str, Any] = {"attempts": run.attempts, "pieces": len(run.parts)} if run.attempts > 1 else {}
        if self._options.pause_mode is PauseMode.IN_PLACE and has_older_prefix(
            joined,
            was_updated=self._observer.was_updated(joined.generation.url),
            salted_version=run.salted_versions.get(joined.generation.url),
        ):
            marks["prefix_may_be_older"] = True
        try:
            completion = await self._reader.build_completion(
                run.request,
                joined,
                held=run.held,
                marks=marks,
                started_at=run.started_at,
                finished_at=self._clock.unix(),
            )
        except EngineProtocolError as error:
            error.facts["sampled_tokens"] = len(joined.generation.ids)
            run.parts.clear()
            raise
        return TurnOutcome(
            completion=completion,
            generation=joined.generation,
            attempts=run.attempts,
            aborted_tokens=run.aborted_tokens,
        )
