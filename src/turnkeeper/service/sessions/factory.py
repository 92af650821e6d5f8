"""Makes sessions: with the server's options where whoever creates one chooses nothing, and only while there is room."""

from turnkeeper.access import Grant
from turnkeeper.choices import HistoryKind, OnTruncated
from turnkeeper.clock import Clock
from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core import HistoryPolicy, Linear, Session, Tree
from turnkeeper.ids import SessionId
from turnkeeper.matching import Matcher
from turnkeeper.service.drain import Drain
from turnkeeper.service.sessions.entry import MemoryAccount, SessionEntry
from turnkeeper.service.sessions.events import EventStream
from turnkeeper.service.sessions.keeping import KeptSession, SessionKeeper
from turnkeeper.service.sessions.keys import KeptKey
from turnkeeper.service.sessions.memory import MemoryLimiter
from turnkeeper.service.sessions.registry import Registry
from turnkeeper.service.sessions.settings import NewSession
from turnkeeper.telemetry import ReportStream, SessionBegan, SessionRestored


class SessionFactory:
    """Opens sessions of one process."""

    def __init__(
        self,
        *,
        config: ResolvedConfig,
        registry: Registry,
        memory: MemoryLimiter,
        drain: Drain,
        matcher: Matcher,
        event_stream: EventStream,
        reports: ReportStream,
        clock: Clock,
        keeper: SessionKeeper,
    ) -> None:
        self._config = config
        self._registry = registry
        self._memory = memory
        self._drain = drain
        self._matcher = matcher
        self._event_stream = event_stream
        self._reports = reports
        self._clock = clock
        self._keeper = keeper

    def check_room(self) -> None:
        """Refuse another session while the server drains, memory is short or there are enough sessions.

        Raises:
            ServerDrainingError: the server is stopping.
            CapacityError: a limit is reached; the error names the limit.
            StoreFullError: the store has all the bytes that it may have.
        """
        self._drain.check("sessions")
        self._memory.check_room()
        self._keeper.check_room()
        self._registry.check_room(self._clock.now())

    def open(self, session_id: SessionId, new: NewSession, *, key: KeptKey | None = None) -> SessionEntry:
        """Open a session under an id that no session has; ``check_room`` comes first."""
        session = self.build_session(new)
        entry = SessionEntry(
            id=session_id,
            session=session,
            settings=new,
            clock=self._clock,
            event_stream=self._event_stream,
            created_at=session.events[0].at,
            used_at=self._clock.now(),
            ttl_s=new.ttl_s or self._config.limits.session_ttl_s,
            memory=self._memory.account,
            reports=self._reports,
            key=key,
            limit_tokens=self.choose_limit(new),
        )
        self._registry.add(entry)
        self._keeper.open(entry)
        entry.publish()
        history = str(new.history or self._config.history_kind)
        self._reports.publish(SessionBegan(at=entry.created_at, session_id=session_id, history=history))
        return entry

    def restore(self, session_id: SessionId, kept: KeptSession) -> SessionEntry:
        """Take in a session that a store has kept; the time without a process counts as time without a request."""
        entry = build_entry(
            session_id,
            kept,
            clock=self._clock,
            event_stream=self._event_stream,
            memory=self._memory.account,
            reports=self._reports,
        )
        self._registry.add(entry)
        self._reports.publish(
            SessionRestored(
                at=self._clock.unix(),
                session_id=session_id,
                history=str(kept.session.policy.kind),
                turns=len(kept.session.forest),
            )
        )
        return entry

    def choose_limit(self, new: NewSession) -> int | None:
        """Choose the most tokens of a path, prompt and completion together; None for no limit."""
        return new.max_seq_len or self._config.model.max_seq_len

    def build_session(self, new: NewSession) -> Session:
        """Build the pure session, which nothing refers to yet."""
        return Session.open(
            build_policy(new.history or self._config.history_kind, self._config, on_truncated=new.on_truncated),
            matcher=self._matcher,
            turn_limit=self._config.limits.max_session_turns,
            at=self._clock.unix(),
        )


def build_entry(
    session_id: SessionId,
    kept: KeptSession,
    *,
    clock: Clock,
    event_stream: EventStream,
    memory: MemoryAccount,
    reports: ReportStream,
) -> SessionEntry:
    """Build the entry of a session that a store has kept; no event of its past is published again."""
    idle_s = max(0.0, clock.unix() - kept.changed_at)
    entry = SessionEntry(
        id=session_id,
        session=kept.session,
        settings=kept.settings,
        clock=clock,
        event_stream=event_stream,
        created_at=kept.opened_at,
        used_at=clock.now() - idle_s,
        ttl_s=kept.ttl_s,
        memory=memory,
        reports=reports,
        key=None
        if kept.key_hash is None
        else KeptKey(hash=kept.key_hash, grant=Grant(session_id=session_id, scopes=kept.settings.granted)),
        limit_tokens=kept.limit_tokens,
        unknown=set(kept.undelivered),
        collected_turns=kept.collected_turns,
        acknowledged=kept.acknowledged,
        published=len(kept.session.events),
    )
    for turn in kept.session.forest.turns:
        entry.add_turn(turn)
    return entry


def build_policy(
    kind: HistoryKind, config: ResolvedConfig, *, on_truncated: OnTruncated | None = None
) -> HistoryPolicy:
    """Build the history policy of a session of this kind; what the session does not choose is the server's choice."""
    on_tools_change = config.get_on_tools_change(kind)
    on_truncated = on_truncated or config.get_on_truncated(kind)
    if kind is HistoryKind.TREE:
        return Tree(on_tools_change=on_tools_change, on_truncated=on_truncated)
    return Linear(
        max_rollback=config.history.session_max_rollback,
        on_tools_change=on_tools_change,
        on_truncated=on_truncated,
    )
