"""A session: begin, commit, abandon, and the events that say what happened.

::

    begin(request)      resolves parent and appended messages; changes nothing that anyone sees
       ... the engine call, under no lock ...
    commit(...)         appends under the parent resolved at begin, wherever the live path is by then
    abandon(...)        ends it without a turn, and accounts for what was sampled

The live path moves at commit only. Every change is an event, applied by one method; ``fold`` applies them again.
Knows no engine, no template, no clock: times come in as arguments and are only kept.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

from turnkeeper.choices import OnToolsChange
from turnkeeper.core.accounting import DropReason, Ledger
from turnkeeper.core.agent import find_sub_agent
from turnkeeper.core.callids import HeldIds, NamedReply, TokenBytes, list_ids, list_renames, name_calls
from turnkeeper.core.cause import Explanation
from turnkeeper.core.event import (
    Event,
    ReplyDelivered,
    SessionClosed,
    SessionOpened,
    TokensDropped,
    TurnCommitted,
)
from turnkeeper.core.forest import Forest
from turnkeeper.core.history import (
    Attach,
    HistoryPolicy,
    Query,
    Trail,
    build_query,
    check_request,
    explain_turn,
    find_attach,
    read_appended,
)
from turnkeeper.core.integrity import check_turn
from turnkeeper.core.pending import PendingTurn
from turnkeeper.core.state import SessionState
from turnkeeper.core.tokens import NO_TOKENS
from turnkeeper.core.turn import Completion, Prompt, Turn, TurnRequest
from turnkeeper.errors import (
    SessionClosedError,
    TurnLimitError,
)
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, Message, encode_json
from turnkeeper.matching import TOLERANT, FieldMatcher, Matcher, load_matcher, normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """The answer to a query, good while the forest has that many turns."""

    query: Query
    turns: int
    attach: Attach


class Session:
    """One rollout's forest of turns under one history policy."""

    def __init__(self, opened: SessionOpened, *, matcher: Matcher) -> None:
        self.matcher = matcher
        self.events: list[Event] = [opened]
        """The events of the session in order; only the session appends to them."""
        self._state = SessionState(opened)
        self._open: set[int] = set()
        self._held_ids = HeldIds()
        self._begun = 0
        self._last_search: _Search | None = None
        self._trail: Trail | None = None
        self._tools: dict[bytes, JsonObject] = {}

    @classmethod
    def open(
        cls, policy: HistoryPolicy, *, matcher: Matcher = TOLERANT, turn_limit: int | None = None, at: float = 0.0
    ) -> "Session":
        """Open a session without turns.

        Args:
            policy: how its history is read.
            matcher: decides whether a replayed message is the stored one.
            turn_limit: the most turns it may have; None for no limit.
            at: Unix seconds.
        """
        opened = SessionOpened(
            at=at, policy=policy, matcher=matcher.name, replies=matcher.replies, turn_limit=turn_limit
        )
        return cls(opened, matcher=matcher)

    @property
    def policy(self) -> HistoryPolicy:
        """The history policy of the session."""
        return self._state.policy

    @property
    def forest(self) -> Forest:
        """The forest of the session's turns."""
        return self._state.forest

    @property
    def ledger(self) -> Ledger:
        """The sampled tokens, and those that no turn holds; tokens that turns hold are accounted for by a collect."""
        return self._state.ledger

    @property
    def closed_as(self) -> str | None:
        """Why it takes no further turns; None while it is open."""
        return self._state.closed_as

    @property
    def kept_tools(self) -> Collection[JsonObject]:
        """The definitions of its tools, each once, in the order in which requests first brought them."""
        return self._tools.values()

    @property
    def in_flight(self) -> int:
        """The number of turns that have begun and are neither committed nor abandoned."""
        return len(self._open)

    def live_leaves(self) -> tuple[TurnId, ...]:
        """List the leaves that are candidates for samples: one under linear, all under tree."""
        return self.policy.live_leaves(self.forest)

    def is_delivered(self, turn_id: TurnId) -> bool:
        """Return True when the turn's reply was delivered in full at least once."""
        return turn_id in self._state.delivered

    def find_parent(self, query: Query) -> TurnId | None:
        """Find the turn that a request would extend, whether the policy allows it or not; None for a new root."""
        attach = self._find_attach(query)
        return None if attach.turn is None else attach.turn.id

    def begin(self, request: TurnRequest, *, at: float, query: Query | None = None) -> PendingTurn:
        """Resolve what a request goes on from.

        Args:
            request: what the agent asks for.
            at: Unix seconds.
            query: the request as the search sees it, where the caller has built it already.

        Raises:
            SessionClosedError: the session takes no further turns.
            TurnLimitError: it has, or has in flight, all the turns it may have.
            AssistantLastError: it ends with an assistant message.
            HistoryDivergedError: the policy does not go that far back.
            TruncatedTurnError: it extends a turn that ended by length, and the policy closes those.
            RequestError: other tools than its path's, and the policy refuses that.
            MatcherError: the matcher broke its contract.
        """
        self._check_open()
        self._check_limit()
        query = build_query(request) if query is None else query
        attach = self._find_attach(query)
        self._last_search = None
        check_request(self.policy, self.forest, attach, query, self.matcher, agent=find_sub_agent(request.headers))
        self._trail, path = attach.trail, attach.path
        if not isinstance(self.matcher, FieldMatcher):
            self._trail, path = None, None  # a user's function is asked about every message of every request
        if path is not None:  # what turns hold need not be held twice
            messages = (*path, *query.messages[attach.matched :])
            query = Query(messages=messages, context_digest=query.context_digest)
        pending = self._build_pending(request, query, attach, at, is_exact=attach.turn is None or path is not None)
        self._open.add(pending.number)
        self._held_ids.hold(pending.number, list_ids(query.messages[attach.matched :]))
        self._held_ids.hold(pending.number, list_renames(attach.accepted))
        self._begun += 1
        return pending

    def name_calls(self, pending: PendingTurn, message: Message, token_bytes: TokenBytes) -> NamedReply:
        """Give the calls of a reply ids that nothing else in the session has, and hold those until the turn ends.

        Args:
            pending: what ``begin`` gave.
            message: the engine's, in canonical form.
            token_bytes: where randomness comes from.

        Raises:
            ValueError: this pending turn was already committed or abandoned.
        """
        self._check_pending(pending)
        named = name_calls(message, self.has_call_id, token_bytes)
        self._held_ids.hold(pending.number, normalize(named.message).call_ids)
        return named

    def has_call_id(self, call_id: str) -> bool:
        """Return True when a turn, committed or in flight, uses the call id."""
        return call_id in self.forest.used_ids or call_id in self._held_ids

    def commit(self, pending: PendingTurn, *, prompt: Prompt, completion: Completion, at: float) -> Turn:
        """Record a finished generation under the parent resolved at begin: ``prepare`` and ``append`` in one step.

        Raises:
            SessionClosedError: the session was closed meanwhile.
            TokenIntegrityError: prompt, completion and parent do not fit; nothing is recorded.
            ValueError: this pending turn was already committed or abandoned.
        """
        turn = self.prepare(pending, prompt=prompt, completion=completion, at=at)
        self.append(pending, turn)
        return turn

    def prepare(self, pending: PendingTurn, *, prompt: Prompt, completion: Completion, at: float) -> Turn:
        """Build and check the turn that ``append`` would add now. Nothing changes, so that the turn can be stored
        first.

        The turn has the next id of the session: no other turn may be appended between the two.

        Raises:
            SessionClosedError: the session was closed meanwhile.
            TokenIntegrityError: prompt, completion and parent do not fit.
            ValueError: this pending turn was already committed or abandoned.
        """
        self._check_open()
        self._check_pending(pending)
        check_turn(pending, prompt, completion)
        return self._build_turn(pending, prompt, completion, at)

    def append(self, pending: PendingTurn, turn: Turn) -> None:
        """Add a prepared turn: the only door to the forest.

        Raises:
            ValueError: this pending turn was already committed or abandoned, or another turn was appended since the
                turn was prepared.
        """
        self._check_pending(pending)
        if turn.id != len(self.forest):
            raise ValueError(f"turn {turn.id} was prepared for another place, the next turn is {len(self.forest)}")
        self.record(TurnCommitted(at=turn.committed_at, turn=turn))
        self._end(pending)

    def abandon(
        self, pending: PendingTurn, *, at: float, reason: DropReason | None = None, sampled_tokens: int | None = None
    ) -> None:
        """End a pending turn without a record.

        Args:
            pending: what ``begin`` gave.
            at: Unix seconds.
            reason: why its tokens are lost; None when no engine was asked, and nothing is to be accounted for.
            sampled_tokens: how many tokens the engine reported; None where it reported none.

        Raises:
            ValueError: this pending turn was already committed or abandoned.
        """
        self._check_pending(pending)
        self._end(pending)
        if reason is not None:
            self.drop(reason, sampled_tokens, at=at)

    def drop(self, reason: DropReason, sampled_tokens: int | None, *, at: float) -> None:
        """Account for sampled tokens that no turn holds, such as an aborted piece of a turn that goes on."""
        self.record(TokensDropped(at=at, reason=reason, sampled_tokens=sampled_tokens))

    def mark_delivered(self, turn_id: TurnId, *, at: float) -> None:
        """Note that a turn's reply was written to its agent in full; repeating it changes nothing."""
        if not self.is_delivered(self.forest.get(turn_id).id):
            self.record(ReplyDelivered(at=at, turn_id=turn_id))

    def close(self, reason: str, *, at: float) -> None:
        """Take no further turns, those in flight included; repeating it changes nothing."""
        if self.closed_as is None:
            self.record(SessionClosed(at=at, reason=reason))

    def record(self, event: Event) -> None:
        """Apply an event and keep it; for ``fold`` and for the session's own methods."""
        self._state.apply(event)
        self.events.append(event)

    def _end(self, pending: PendingTurn) -> None:
        self._open.discard(pending.number)
        self._held_ids.release(pending.number)

    def _find_attach(self, query: Query) -> Attach:
        """Find where a query attaches. A query that comes twice while no turn is added is searched for once."""
        last = self._last_search
        if last is None or last.query is not query or last.turns != len(self.forest):
            attach = find_attach(self.forest, query, self.matcher, same_context=self._same_context, trail=self._trail)
            last = self._last_search = _Search(query=query, turns=len(self.forest), attach=attach)
        return last.attach

    def _explain(self, pending: PendingTurn) -> Explanation:
        return explain_turn(
            self.forest,
            pending.parent_id,
            pending.query,
            self.matcher,
            same_context=self._same_context,
            agent=find_sub_agent(pending.request.headers),
        )

    @property
    def _same_context(self) -> bool:
        return self.policy.on_tools_change is OnToolsChange.FORK

    def _check_open(self) -> None:
        if self.closed_as is not None:
            raise SessionClosedError(f"the session takes no further turns: {self.closed_as}")

    def _check_limit(self) -> None:
        limit = self._state.turn_limit
        if limit is not None and len(self.forest) + self.in_flight >= limit:
            raise TurnLimitError(
                f"the session may have {limit} turns and has {len(self.forest)}, {self.in_flight} in flight",
                hint="collect it and open another, or raise --session-max-turns",
                limit=limit,
                turns=len(self.forest),
                in_flight=self.in_flight,
            )

    def _check_pending(self, pending: PendingTurn) -> None:
        if pending.number not in self._open:
            raise ValueError(f"pending turn {pending.number} was already committed or abandoned")

    def _build_pending(
        self, request: TurnRequest, query: Query, attach: Attach, at: float, *, is_exact: bool
    ) -> PendingTurn:
        parent = attach.turn
        shown = read_appended(self.forest, attach, query, self.matcher)
        return PendingTurn(
            number=self._begun,
            request=request,
            parent=parent,
            parent_path_ids=NO_TOKENS if parent is None else self.forest.path_ids(parent.id),
            parent_messages=self.forest.engine_messages(None if parent is None else parent.id),
            appended=tuple(self.forest.used_ids.restore(message) for message in shown),
            shown=shown,
            context_changed=parent is not None and parent.context_digest != query.context_digest,
            accepted=attach.accepted,
            rewrite=attach.rewrite,
            begun_after=len(self.forest),
            begun_at=at,
            query=query,
            is_exact=is_exact,
        )

    def _strip(self, request: TurnRequest) -> TurnRequest:
        """Return the request as a turn keeps it: a tool that several requests spell alike is one shared object."""
        tools, loaded = (
            tuple(self._tools.setdefault(blake2b(encode_json(tool), digest_size=16).digest(), tool) for tool in each)
            for each in (request.tools, request.loaded_tools)
        )
        return replace(request, messages=(), tools=tools, loaded_tools=loaded, trace={})

    def _build_turn(self, pending: PendingTurn, prompt: Prompt, completion: Completion, at: float) -> Turn:
        parent, query = pending.parent, pending.query
        asked = query.context_digest
        return Turn(
            id=TurnId(len(self.forest)),
            parent=pending.parent_id,
            messages=pending.shown,
            request=self._strip(pending.request),
            prompt=prompt,
            completion=completion,
            begun_after=pending.begun_after,
            begun_at=pending.begun_at,
            committed_at=at,
            path_tokens=len(pending.parent_path_ids) - prompt.trim + len(prompt.ids) + len(completion.ids),
            path_messages=len(query.messages) + 1,
            context_digest=asked if parent is None else parent.context_digest,
            context_changed=pending.context_changed,
            carried=sum(message.get("role") == "assistant" for message in pending.appended),
            accepted=pending.accepted,
            rewrite=pending.rewrite,
            why=self._explain(pending),
        )


def fold(events: Iterable[Event], *, matcher: Matcher | None = None) -> Session:
    """Build the session that a list of events describes, with nothing in flight.

    Args:
        events: a session's events from its first on.
        matcher: what its opening names, where the caller has it already; else it is loaded by that name.

    Raises:
        ValueError: the first event is no opening, or a later one is.
        ConfigError: the matcher that the opening names cannot be loaded.
    """
    told = iter(events)
    opened = next(told, None)
    if not isinstance(opened, SessionOpened):
        raise ValueError(f"a session begins with its opening, not with {type(opened).__name__}")
    session = Session(opened, matcher=load_matcher(opened.matcher, opened.replies) if matcher is None else matcher)
    for event in told:
        session.record(event)
    return session
