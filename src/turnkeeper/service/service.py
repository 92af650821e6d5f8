"""Sessions as a service: what the front doors call.

Composes the registry, the turns and the samples. Sessions are pure and live in one event loop, so nothing here takes a
lock, and nothing is held while an engine works. Heavy reading runs in threads over values that never change.
"""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from turnkeeper.access import Caller, Grant
from turnkeeper.choices import HistoryKind, OnTruncated
from turnkeeper.clock import Clock
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core import DropReason, HistoryPolicy, Ledger, Linear, Session, Tree, TurnRequest
from turnkeeper.core.attach import Query
from turnkeeper.core.tokens import freeze_ids
from turnkeeper.disclosure import list_hosts
from turnkeeper.engines import Engine, EngineClient, EngineState, RelayReply, RelayRequest
from turnkeeper.engines.refusal import redact_reply
from turnkeeper.errors import CapacityError, SessionClosedError, TurnkeeperError
from turnkeeper.fleet import EngineMonitor
from turnkeeper.fleet.check_result import RouteState
from turnkeeper.fleet.route import RouteChecker
from turnkeeper.ids import SessionId
from turnkeeper.jsontypes import JsonObject, Message
from turnkeeper.matching import Matcher
from turnkeeper.metrics import Metrics
from turnkeeper.rendering import Renderer
from turnkeeper.samples import Collection, Reward, SamplesPayload
from turnkeeper.service.control import EngineControl
from turnkeeper.service.drain import Drain
from turnkeeper.service.encoding import EncoderKeeper
from turnkeeper.service.health import describe_health
from turnkeeper.service.sessions import (
    KeptKey,
    KeyRing,
    MemoryKeeper,
    NewSession,
    Publisher,
    Registry,
    SessionEntry,
    SessionReader,
)
from turnkeeper.service.supervisor import Supervisor
from turnkeeper.service.turns import TurnService, Waiter
from turnkeeper.tasks import Spawn

logger = logging.getLogger("turnkeeper.sessions")

SWEEP_INTERVAL_S = 30.0
"""How often idle sessions are looked for. One that is asked for expires at its time in any case."""

EXPIRED = "expired"
"""Why a session ended that nobody asked for any more."""

SERVER_STOPS = "the server is stopping"
"""Why a session ended that was still there when the process ended."""

_OPEN_HEALTH = ("status", "session_server_instance_id", "engine")
"""What a stranger may know of a server with keys."""

LOOP_LOOK_S = 0.5
"""How often the event loop's delay is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedSession:
    """A session that was just opened."""

    id: SessionId
    key: str | None = field(default=None, repr=False)
    """What opens it to an agent, said this once; None where the server has no keys."""


class SessionService:
    """All sessions of one process."""

    def __init__(
        self,
        *,
        config: ResolvedConfig,
        registry: Registry,
        turns: TurnService,
        engine: Engine,
        client: EngineClient,
        monitor: EngineMonitor,
        routes: RouteChecker | None,
        control: EngineControl,
        renderer: Renderer,
        matcher: Matcher,
        reader: SessionReader,
        publisher: Publisher,
        metrics: Metrics,
        encoders: EncoderKeeper,
        memory: MemoryKeeper,
        drain: Drain,
        supervisor: Supervisor,
        clock: Clock,
        draw_bytes: Callable[[int], bytes],
    ) -> None:
        self.config = config
        self._draw_bytes = draw_bytes
        self._registry = registry
        self._turns = turns
        self.control = control
        self._engine = engine
        self._client = client
        self._monitor = monitor
        self.routes = routes
        self._renderer = renderer
        self._matcher = matcher
        self._reader = reader
        self._publisher = publisher
        self.metrics = metrics
        self.encoders = encoders
        self._memory = memory
        self._drain = drain
        self._clock = clock
        self._requests = 0
        self._keys = KeyRing(config.server.api_key, draw_bytes)
        self._supervisor = supervisor
        self.spawn: Spawn = supervisor.spawn
        self._watch_gauges()
        registry.on_expire = partial(self._close, reason=EXPIRED)

    # Life.

    def start(self) -> None:
        """Begin to watch the engines and the routes to them, to expire idle sessions, to load the fast tokenizer."""
        start = self._supervisor.start
        if self.routes is not None:
            start("engine_routes", self.routes.run)  # has to be there when the watch looks for the first time
        start("engine_watch", self._monitor.run)
        start("session_sweep", self._sweep_forever)
        start("loop_delay", self._measure_loop)
        start("tokenizer", self.encoders.run)

    async def settle_memory(self) -> None:
        """Wait until everything that is being moved to disk is there."""
        await self._memory.settle()

    async def look_at_engines(self) -> None:
        """See once how the engines are."""
        await self._monitor.poll()

    @property
    def is_draining(self) -> bool:
        """Whether the server was told to stop."""
        return self._drain.is_draining

    async def drain(self) -> None:
        """Take no new sessions and turns; wait until nothing is left to answer and to collect, or the time is up."""
        await self._drain.run(
            timeout_s=self.config.timeouts.drain_timeout_s,
            is_over=lambda: not self._requests and not any(map(_holds_something, self._registry)),
            describe=lambda: (
                f"{sum(map(_holds_something, self._registry))} sessions and {self._count_turns()} turns in flight"
            ),
        )

    def end_turns(self) -> None:
        """Give up every turn in flight, for the server stops now; one that is being recorded is recorded."""
        for entry in self._registry:
            self._turns.abandon_all(
                entry, DropReason.DELETED, SessionClosedError(f"session {entry.id}: {SERVER_STOPS}")
            )

    def _count_turns(self) -> int:
        return sum(len(entry.in_flight) for entry in self._registry)

    async def close(self) -> None:
        """Abandon what is in flight, tell the engines, release connections."""
        await self._supervisor.close()
        for entry in tuple(self._registry):
            self._close(entry, SERVER_STOPS)
        await self._turns.drain()
        await self._monitor.close()  # a look goes on without who asked for it
        await self._memory.settle()
        await self._engine.close()
        await self._client.close()

    async def _measure_loop(self) -> None:
        while True:
            due = self._clock.now() + LOOP_LOOK_S
            await self._clock.sleep(LOOP_LOOK_S)
            self.metrics.set("turnkeeper_event_loop_delay_seconds", max(0.0, self._clock.now() - due))

    async def _sweep_forever(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_INTERVAL_S)
            self.sweep()
            self._memory.relieve()

    # Sessions.

    def create(self, new: NewSession) -> CreatedSession:
        """Open a session.

        Raises:
            CapacityError: there are as many as there may be.
            ServerDrainingError: the server is stopping.
        """
        self._drain.check("sessions")
        self._memory.check_room()
        entry = self._open(self._registry.reserve(self._clock.now()), new)
        if not self._keys.is_locked:
            return CreatedSession(id=entry.id)
        issued = self._keys.issue(Grant(session_id=entry.id, scopes=new.granted))
        entry.key = issued.kept
        return CreatedSession(id=entry.id, key=issued.text)

    def identify(self, keys: Iterable[str]) -> Caller:
        """Who sends these keys; where the server has none, everybody is its admin."""
        return self._keys.identify(keys, self._find_key)

    def _find_key(self, session_id: SessionId) -> KeptKey | None:
        entry = self._registry.find(session_id, self._clock.now())
        return None if entry is None else entry.key

    def _open(self, session_id: SessionId, new: NewSession) -> SessionEntry:
        limits = self.config.limits
        entry = SessionEntry(
            id=session_id,
            session=self._build_session(new),
            settings=new,
            clock=self._clock,
            publisher=self._publisher,
            created_at=self._clock.unix(),
            used_at=self._clock.now(),
            ttl_s=new.ttl_s or limits.session_ttl_s,
            memory=self._memory.account,
            limit_tokens=new.max_seq_len or self.config.model.max_seq_len,
        )
        self._registry.add(entry)
        entry.publish()
        return entry

    def _build_session(self, new: NewSession) -> Session:
        return Session.open(
            build_policy(new.history or self.config.history_kind, self.config, on_truncated=new.on_truncated),
            matcher=self._matcher,
            turn_limit=self.config.limits.max_session_turns,
            at=self._clock.unix(),
        )

    def list_sessions(self, *, after: str | None = None, limit: int = 1000) -> JsonObject:
        """A page of sessions in the order of their ids, and the id to go on behind."""
        page = self._registry.page(after=after, limit=limit + 1)
        shown = page[:limit]
        return {
            "sessions": [_describe_entry(entry) for entry in shown],
            "next": shown[-1].id if len(page) > limit else None,
        }

    def get_session_id(self, text: str) -> SessionId:
        """The id of a session that exists.

        Raises:
            SessionNotFoundError: there is none.
        """
        return self._registry.get(text, self._clock.now()).id

    def get_turn_session_id(self, text: str) -> SessionId:
        """The id of a session that exists, or that a turn may open.

        Raises:
            SessionNotFoundError: there is none.
        """
        return self._find_creatable(text) or self.get_session_id(text)

    def _find_creatable(self, text: str) -> SessionId | None:
        """The id of a session that is not there and that a turn would open."""
        if not self.config.server.auto_create_sessions:
            return None
        return self._registry.find_unused(text, self._clock.now())

    def find_entry(self, session_id: str) -> SessionEntry:
        """What is held of a session; for tests and for tools, which only read.

        Raises:
            SessionNotFoundError: there is none.
        """
        return self._registry.get(session_id, self._clock.now())

    def find_replies(self, session_id: str) -> Callable[[str], Message | None]:
        """What finds an assistant message that the session delivered, by the id of its reply, in any thread; it gives
        None where the session delivered none under that id.

        Raises:
            SessionNotFoundError: there is no such session, and a turn would not open it.
        """
        if self._find_creatable(session_id) is not None:
            return lambda _: None
        return self.find_entry(session_id).find_reply

    async def describe(self, session_id: str, *, with_rows: bool = False, is_admin: bool = True) -> bytes:
        """The JSON of ``GET /sessions/{id}``; to others than the admin without addresses in what engines said."""
        with self._use(session_id) as entry:
            return await self._reader.describe(entry, with_rows=with_rows, is_admin=is_admin)

    def delete(self, session_id: str) -> None:
        """End a session at once; what is in flight is abandoned and cannot write afterwards.

        Raises:
            SessionNotFoundError: there is none; one that expired is gone and needs no error.
        """
        now = self._clock.now()
        if self._registry.has_expired(session_id, now):
            return
        entry = self._registry.get(session_id, now)
        self._registry.remove(entry, now)
        self._close(entry, "deleted")

    # Turns.

    async def begin_turn(
        self, session_id: str, request: TurnRequest, response_id: str, query: Query | None = None
    ) -> Waiter:
        """Begin a turn; see ``TurnService.begin``.

        Raises:
            SessionNotFoundError: there is no such session.
            RequestError: what is refused without the engine.
        """
        if (unused := self._find_creatable(session_id)) is not None:
            self._drain.check("sessions")
            self._memory.check_room()
            self._registry.check_room(self._clock.now())
            self._open(unused, NewSession())
        try:
            with self._use(session_id) as entry:
                return await self._turns.begin(entry, request, response_id, query)
        except Exception:
            if unused is not None:
                self._discard(unused)
            raise

    def _discard(self, session_id: SessionId) -> None:
        """Forget a session whose first turn was refused, unless another request uses it; a next turn may open it."""
        entry = self._registry.find(session_id, self._clock.now())
        if entry is not None and entry.is_idle and not len(entry.session.forest):
            self._registry.discard(entry)
            self._close(entry, "its first turn was refused")

    def draw_hex(self) -> str:
        """32 random hex digits, for an id that nobody can guess."""
        return self._draw_bytes(16).hex()

    def decode_token(self, token_id: int) -> str:
        """The text of one token id."""
        return self._renderer.tokenizer.decode(freeze_ids([token_id]))

    def spell_token(self, token_id: int) -> bytes:
        """The bytes of one token id, which may be part of a character."""
        return self._renderer.tokenizer.spell(token_id)

    async def count_tokens(self, session_id: str, request: TurnRequest, query: Query | None = None) -> int:
        """How many tokens the prompt of a turn would have; nothing changes.

        Raises:
            RequestError: what the turn would be refused for.
        """
        limit_tokens, at = self.config.model.max_seq_len, self._clock.unix()
        if self._find_creatable(session_id) is not None:  # a turn would open it; to count, nothing has to be kept
            session = self._build_session(NewSession())
            return await self._turns.count_tokens(session, request, at=at, limit_tokens=limit_tokens, query=query)
        with self._use(session_id) as entry:
            return await self._turns.count_tokens(
                entry.session, request, at=at, limit_tokens=entry.limit_tokens, query=query
            )

    # Samples and the rest.

    async def collect(
        self,
        session_id: str,
        *,
        max_seq_len: int | None = None,
        agent_metadata: JsonObject | None = None,
        rewards: Mapping[str, Reward] | None = None,
    ) -> SamplesPayload:
        """The session's samples; reads only, and repeating it gives the same bytes.

        Raises:
            RequestError: a reward names no turn, or several.
            AssemblyError: the turns do not make samples.
        """
        with self._use(session_id) as entry:
            collection = await self._reader.collect(
                entry, max_seq_len=max_seq_len, agent_metadata=agent_metadata, rewards=rewards
            )
            self._count_collected(entry, collection)
            return collection.encode()

    def _count_collected(self, entry: SessionEntry, collection: Collection) -> None:
        """Count the tokens and the dropped leaves that no earlier collect of the session has counted."""
        known, fresh = entry.collected_turns, collection.turn_ledgers[entry.collected_turns :]
        entry.collected_turns += len(fresh)
        noncanonical = sum(known <= turn < entry.collected_turns for turn in entry.noncanonical)
        self.metrics.count("turnkeeper_noncanonical_turns", noncanonical)
        self.metrics.record_collect(sum(fresh, Ledger()))
        for leaf in collection.dropped_leaves:
            if leaf.turn_id not in entry.dropped_leaves:
                entry.dropped_leaves.add(leaf.turn_id)
                self.metrics.count("turnkeeper_leaves_dropped", cause=leaf.cause)
                logger.info("session %s: %s", entry.id, leaf.describe())

    async def relay(self, session_id: str, call: RelayRequest, *, is_admin: bool = True) -> RelayReply:
        """Pass a call of a session through to its engine.

        Raises:
            EngineError: no connection or a broken reply.
        """
        with self._use(session_id):
            reply = await self._engine.relay(call)
        if is_admin:
            return reply
        told = redact_reply(reply, list_hosts(self.config.engine.backend_url))
        if told.body is not reply.body:
            logger.warning("session %s: %s answered %d: %r", session_id, call.path, reply.status, reply.body[:1000])
        return told

    def count_error(self, error: TurnkeeperError) -> None:
        """Count a request that ended in an error."""
        self.metrics.count("turnkeeper_errors", code=error.code)
        if isinstance(error, CapacityError):
            self.metrics.count("turnkeeper_limits_reached", limit=str(error.facts.get("limit")))

    @contextmanager
    def count_request(self) -> Generator[None]:
        """Count a request while it is answered.

        Raises:
            CapacityError: there are as many as there may be.
        """
        limit = self.config.limits.max_in_flight
        if self._requests >= limit:
            raise CapacityError(
                f"{self._requests} requests are in flight, the limit is {limit}",
                hint="--max-in-flight raises it",
                limit="max_in_flight",
            )
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    def abort_all(self) -> int:
        """End every turn in flight for good; sessions that exist take no further turns. Returns how many there are."""
        for entry in self._registry:
            entry.after_recording(partial(self._close_to_turns, entry))
        self.control.abort()
        return len(self._registry)

    def _close_to_turns(self, entry: SessionEntry) -> None:
        entry.session.close("all turns were aborted", at=self._clock.unix())
        entry.publish()

    @property
    def model_names(self) -> tuple[str, ...]:
        """What ``/v1/models`` calls the policy: the name of the checkpoint folder, then those that are trained."""
        checkpoint = Path(self.config.model.hf_checkpoint or "policy").name
        return tuple(dict.fromkeys((checkpoint, *self.config.history.train_models)))

    def describe_health(self, *, is_admin: bool = True) -> JsonObject:
        """What ``GET /health`` says; to strangers no address and no problem."""
        state, statuses = self.control.state, self._monitor.statuses
        whole = {
            **describe_health(
                self.config, state, statuses, self.routes, self._supervisor, is_draining=self.is_draining
            ),
            "tokenizer": str(self.encoders.serving),
        }
        return whole if is_admin else {name: whole[name] for name in _OPEN_HEALTH}

    def sweep(self) -> int:
        """Expire idle sessions; returns how many."""
        return self._registry.sweep(self._clock.now())

    @contextmanager
    def _use(self, session_id: str) -> Generator[SessionEntry]:
        """The session, kept from expiring while the block runs."""
        entry = self._registry.get(session_id, self._clock.now())
        entry.busy += 1
        try:
            yield entry
        finally:
            entry.busy -= 1
            entry.touch()
            self._memory.relieve()

    def _close(self, entry: SessionEntry, reason: str) -> None:
        """End a session; a turn that is being recorded is recorded first."""
        entry.after_recording(partial(self._end, entry, reason))

    def _end(self, entry: SessionEntry, reason: str) -> None:
        entry.session.close(reason, at=self._clock.unix())
        self._turns.abandon_all(entry, DropReason.DELETED, SessionClosedError(f"session {entry.id}: {reason}"))
        drop = DropReason.EVICTED if reason == EXPIRED else DropReason.DELETED
        if lost := entry.count_uncollected():
            self.metrics.count("turnkeeper_tokens_dropped", lost, reason=str(drop))
        entry.release()
        entry.publish()
        self.metrics.count("turnkeeper_sessions_ended", reason=reason)

    def _watch_gauges(self) -> None:
        watch = self.metrics.watch
        watch("turnkeeper_sessions", lambda: len(self._registry))
        watch("turnkeeper_session_bytes", lambda: self._memory.account.used_bytes)
        watch("turnkeeper_spilled_bytes", lambda: self._memory.account.spilled_bytes)
        watch("turnkeeper_requests_in_flight", lambda: self._requests)
        watch("turnkeeper_turns_in_flight", self._count_turns)
        watch("turnkeeper_draining", lambda: self.is_draining)
        for state in EngineState:
            watch("turnkeeper_engine_state", partial(self._is_state, state), state=str(state))
        if self.routes is not None:
            for verdict in RouteState:
                watch("turnkeeper_engine_routes", partial(self.routes.count, verdict), verdict=str(verdict))

    def _is_state(self, state: EngineState) -> float:
        return float(self.control.state is state)


def build_policy(
    kind: HistoryKind, config: ResolvedConfig, *, on_truncated: OnTruncated | None = None
) -> HistoryPolicy:
    """The history policy of a session of this kind; what the session does not choose is the server's choice."""
    on_tools_change = config.get_on_tools_change(kind)
    on_truncated = on_truncated or config.get_on_truncated(kind)
    if kind is HistoryKind.TREE:
        return Tree(on_tools_change=on_tools_change, on_truncated=on_truncated)
    return Linear(
        max_rollback=config.history.session_max_rollback,
        on_tools_change=on_tools_change,
        on_truncated=on_truncated,
    )


def _holds_something(entry: SessionEntry) -> bool:
    """Whether a session has a turn, or something that may become one: an unused session is nothing to collect."""
    return len(entry.session.forest) > 0 or not entry.is_idle


def _describe_entry(entry: SessionEntry) -> JsonObject:
    return {
        "session_id": entry.id,
        "created_at": entry.created_at,
        "turns": len(entry.session.forest),
        "bytes": entry.size_bytes,
        "in_flight": len(entry.in_flight),
    }
