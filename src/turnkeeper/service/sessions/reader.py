"""Reads sessions without changing them: records and metadata for ``GET``, samples for trainers.

Views are taken in the event loop; what is heavy runs in threads over values that never change, beside turns that commit
meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core.tokens import TokenIds
from turnkeeper.disclosure import hide_addresses_in, list_hosts
from turnkeeper.errors import AssemblyError
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, encode_json
from turnkeeper.rendering import Renderer
from turnkeeper.samples import (
    OWN_KEY,
    Collection,
    CollectOptions,
    Outcome,
    Reward,
    SessionView,
    collect,
    forecast,
    show_outcome,
    view_session,
)
from turnkeeper.service.sessions.activity import FindEngine, describe_cost, describe_in_flight, list_in_flight
from turnkeeper.service.sessions.canonical import Texts, note_noncanonical_turns
from turnkeeper.service.sessions.entry import SessionEntry
from turnkeeper.service.sessions.listing import FindKept, SessionQuery, list_page
from turnkeeper.service.sessions.receipts import Receipt
from turnkeeper.service.sessions.record import add_contents, build_metadata, build_records, view_records

logger = logging.getLogger("turnkeeper.mismatch")


class SessionReader:
    """Reads sessions for ``GET`` and for trainers."""

    def __init__(
        self, *, renderer: Renderer, options: CollectOptions, config: ResolvedConfig, find_engine: FindEngine
    ) -> None:
        self._renderer = renderer
        self._options = options
        self._config = config
        self._find_engine = find_engine

    async def list_page(self, entries: Iterable[SessionEntry], query: SessionQuery, find_kept: FindKept) -> JsonObject:
        """List a page of sessions; see `turnkeeper.service.sessions.listing.list_page`."""
        return await list_page(entries, query, find_engine=self._find_engine, find_kept=find_kept)

    async def describe(self, entry: SessionEntry, *, with_rows: bool, with_branches: bool, is_admin: bool) -> bytes:
        """Build the JSON of ``GET /sessions/{id}``.

        Args:
            entry: the session.
            with_rows: whether records hold routing rows.
            with_branches: whether each turn of the session, on whatever branch, holds what it added: messages and ids.
            is_admin: False leaves out the addresses of engines, also where they stand in what engines said.
        """
        hosts = list_hosts(self._config.engine.backend_url)
        show = dict[str, Any] if is_admin else partial(hide_addresses_in, hosts=hosts)
        last = entry.session.forest.last
        mismatches = await compare_paths(self._renderer, entry, () if last is None else (last.id,))
        views, metadata = view_records(entry.session), self._build_metadata(entry, mismatches)
        turns = entry.session.forest.turns if with_branches else ()
        _add_activity(metadata, entry, self._find_engine if is_admin else lambda _: "", with_engines=is_admin)
        revision, find_outcome = len(entry.session.events), self._plan_outcome(entry)

        def render() -> tuple[bytes, Outcome | None]:
            outcome, with_addition = find_outcome(), self._config.use_addition_r3
            shown = metadata
            if outcome is not None:
                shown = show_outcome(metadata, outcome.ledger, outcome.dropped_leaves, outcome.turn_ledgers)
            if turns:
                shown = add_contents(shown, turns)
            records = build_records(views, with_rows=with_rows, use_addition_r3=with_addition, show_meta=show)
            return encode_json({"session_id": entry.id, "records": records, "metadata": shown}), outcome

        body, outcome = await asyncio.to_thread(render)
        if outcome is not None and (entry.outcome is None or entry.outcome[0] < revision):
            entry.outcome = revision, outcome  # a collect that ended meanwhile knows better
        return body

    def _plan_outcome(self, entry: SessionEntry) -> Callable[[], Outcome | None]:
        """Return a function that works out what becomes of the session's tokens; any thread may call the function.

        The function returns the outcome of the last collect while nothing has changed since, and otherwise the outcome
        that the built-in rules would give; None where the turns do not make samples.
        """
        if entry.outcome is not None and entry.outcome[0] == len(entry.session.events):
            known = entry.outcome[1]
            return lambda: known
        view, session_ledger = self._view(entry), entry.session.ledger

        def find() -> Outcome | None:
            with suppress(AssemblyError):  # a collect says why; what the session knows by itself is still true
                return forecast(
                    view, session_ledger=session_ledger, options=self._options, max_seq_len=entry.limit_tokens
                )
            return None

        return find

    async def collect(
        self,
        entry: SessionEntry,
        *,
        max_seq_len: int | None,
        agent_metadata: JsonObject | None,
        rewards: Mapping[str, Reward] | None,
        since: Receipt | None = None,
    ) -> Collection:
        """Collect the samples of a session; repeating it gives equal bytes.

        The turns of the receipt ``since`` come along without loss.

        Raises:
            RequestError: a reward names no turn, or several.
            AssemblyError: the turns do not make samples.
        """
        leaves = {*self._view(entry).leaves, *(turn.id for turn in entry.session.forest.turns[-1:])}
        tokenizer = self._renderer.tokenizer
        texts = Texts(tokenizer.decode)
        mismatches, _ = await asyncio.gather(
            compare_paths(self._renderer, entry, leaves), note_noncanonical_turns(tokenizer, entry, texts)
        )
        await note_noncanonical_turns(tokenizer, entry, texts)  # at what was committed meanwhile
        work = self._plan_collect(
            entry,
            mismatches,
            max_seq_len=max_seq_len,
            agent_metadata=agent_metadata,
            rewards=rewards,
            since=since,
            decode=texts.decode,
        )
        revision = len(entry.session.events)
        collection = await asyncio.to_thread(work)
        entry.outcome = revision, Outcome.of(collection)
        return collection

    def _view(self, entry: SessionEntry, **options: Any) -> SessionView:
        return view_session(
            entry.session,
            train_models=self._config.history.train_models,
            is_evaluation=entry.settings.evaluation,
            noncanonical=dict(entry.noncanonical),
            unknown=frozenset(entry.unknown),
            **options,
        )

    def _plan_collect(
        self,
        entry: SessionEntry,
        mismatches: Mapping[TurnId, list[JsonObject]],
        *,
        max_seq_len: int | None,
        agent_metadata: JsonObject | None,
        rewards: Mapping[str, Reward] | None,
        since: Receipt | None,
        decode: Callable[[TokenIds], str],
    ) -> Callable[[], Collection]:
        """Return a function that collects the session as it stands now; any thread may call the function."""
        with_messages = self._config.history.save_debug_trajectory_data
        return partial(
            collect,
            self._view(entry, mismatches=mismatches, with_messages=with_messages),
            session_metadata=self._build_metadata(entry, mismatches),
            session_ledger=entry.session.ledger,
            decode=decode,
            options=self._options,
            max_seq_len=max_seq_len or entry.limit_tokens,
            agent_metadata=agent_metadata,
            rewards=rewards,
            acknowledged=frozenset(() if since is None else since.turn_ids),
        )

    def _build_metadata(self, entry: SessionEntry, mismatches: Mapping[TurnId, list[JsonObject]]) -> JsonObject:
        last = entry.session.forest.last
        own: JsonObject = {
            "created_at": entry.created_at,
            "metadata": entry.settings.metadata,
            "sampling_params": dict(entry.settings.pins),
            "on_truncated": str(entry.session.policy.on_truncated),
            **({"evaluation": True} if entry.settings.evaluation else {}),
            **({"acknowledged": entry.acknowledged.to_json()} if entry.acknowledged is not None else {}),
            "bytes": entry.turn_bytes,
        }
        return build_metadata(
            entry.session,
            self._view(entry),
            max_trim_tokens=self._renderer.max_trim,
            own=own,
            mismatch=None if last is None else mismatches.get(last.id),
        )


def _add_activity(metadata: JsonObject, entry: SessionEntry, find_engine: FindEngine, *, with_engines: bool) -> None:
    """Add to fresh metadata what changes with time: the turns in flight, and what the recorded ones took."""
    own: JsonObject = metadata[OWN_KEY]
    own["in_flight"] = [describe_in_flight(turn, find_engine) for turn in list_in_flight(entry)]
    for turn in own["turns"]:
        cost = entry.turn_costs.get(turn["id"])
        if cost is not None:
            told = describe_cost(cost)
            turn.update(told if with_engines else told | {"engine": None})


async def compare_paths(
    renderer: Renderer, entry: SessionEntry, leaves: Iterable[TurnId]
) -> dict[TurnId, list[JsonObject]]:
    """Say where the stored ids of each path say something else than its messages: ``tito_session_mismatch``.

    A path never changes, so each comparison is made once, in a thread, and kept with the session.

    Returns:
        The entries of each path, by its last turn; a path that cannot be compared is left out.
    """
    found: dict[TurnId, list[JsonObject]] = {}
    for leaf in leaves:
        if leaf not in entry.mismatches:
            entry.note_mismatches(leaf, await _compare(renderer, entry, leaf))
        entries = entry.mismatches[leaf]
        if entries is not None:
            found[leaf] = entries
    return found


async def _compare(renderer: Renderer, entry: SessionEntry, leaf: TurnId) -> list[JsonObject] | None:
    forest = entry.session.forest
    root = forest.path(leaf)[0].request
    work = partial(
        renderer.compare, forest.engine_messages(leaf), root.tools, root.chat_template_kwargs, forest.path_ids(leaf)
    )
    try:
        return [mismatch.to_json() for mismatch in await asyncio.to_thread(work)]
    except Exception:
        logger.exception("cannot compare the path of turn %s of session %s", leaf, entry.id)
        return None
