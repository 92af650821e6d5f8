"""What is read out of a session: its records and metadata, its samples. Changes nothing of it.

Views are taken in the event loop; what is heavy runs in threads over values that never change, beside turns that commit
meanwhile.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from turnkeeper.config.resolve import ResolvedConfig
from turnkeeper.core.tokens import TokenIds
from turnkeeper.disclosure import hide_addresses_in, list_hosts
from turnkeeper.errors import AssemblyError
from turnkeeper.ids import TurnId
from turnkeeper.jsontypes import JsonObject, encode_json
from turnkeeper.rendering import Renderer
from turnkeeper.samples import Collection, CollectOptions, Reward, SessionView, collect, view_session
from turnkeeper.service.entry import SessionEntry
from turnkeeper.service.mismatch import compare_paths
from turnkeeper.service.record import build_metadata, build_records, view_records


class SessionReader:
    """Reads sessions for ``GET`` and for trainers."""

    def __init__(self, *, renderer: Renderer, options: CollectOptions, config: ResolvedConfig) -> None:
        self._renderer = renderer
        self._options = options
        self._config = config

    async def describe(self, entry: SessionEntry, *, with_rows: bool, is_admin: bool) -> bytes:
        """The JSON of ``GET /sessions/{id}``; to others than the admin without addresses in what engines said."""
        hosts = list_hosts(self._config.engine.backend_url)
        show = dict[str, Any] if is_admin else partial(hide_addresses_in, hosts=hosts)
        last = entry.session.forest.last
        mismatches = await compare_paths(self._renderer, entry, () if last is None else (last.id,))
        views, metadata = view_records(entry.session), await self._account(entry, mismatches)

        def render() -> bytes:
            with_addition = self._config.use_addition_r3
            records = build_records(views, with_rows=with_rows, use_addition_r3=with_addition, show_meta=show)
            return encode_json({"session_id": entry.id, "records": records, "metadata": metadata})

        return await asyncio.to_thread(render)

    async def collect(
        self,
        entry: SessionEntry,
        *,
        max_seq_len: int | None,
        agent_metadata: JsonObject | None,
        rewards: Mapping[str, Reward] | None,
    ) -> Collection:
        """The session's samples; repeating it gives the same bytes.

        Raises:
            RequestError: a reward names no turn, or several.
            AssemblyError: the turns do not make samples.
        """
        leaves = {*self._view(entry).leaves, *(turn.id for turn in entry.session.forest.turns[-1:])}
        mismatches = await compare_paths(self._renderer, entry, leaves)
        work = self._plan_collect(
            entry,
            mismatches,
            decode=self._renderer.tokenizer.decode,
            max_seq_len=max_seq_len,
            agent_metadata=agent_metadata,
            rewards=rewards,
        )
        return await asyncio.to_thread(work)

    def _view(self, entry: SessionEntry, **options: Any) -> SessionView:
        return view_session(
            entry.session,
            train_models=self._config.history.train_models,
            is_evaluation=entry.settings.evaluation,
            **options,
        )

    async def _account(self, entry: SessionEntry, mismatches: Mapping[TurnId, list[JsonObject]]) -> JsonObject:
        """The session's metadata with the accounting that its samples would have now."""
        try:
            work = self._plan_collect(entry, mismatches, decode=lambda _: "")
            return (await asyncio.to_thread(work)).session_metadata
        except AssemblyError:  # the samples request says why; what the session knows by itself is still true
            return self._build_metadata(entry, mismatches)

    def _plan_collect(
        self,
        entry: SessionEntry,
        mismatches: Mapping[TurnId, list[JsonObject]],
        *,
        decode: Callable[[TokenIds], str],
        max_seq_len: int | None = None,
        agent_metadata: JsonObject | None = None,
        rewards: Mapping[str, Reward] | None = None,
    ) -> Callable[[], Collection]:
        """The collect of a session as it stands; it may run in a thread."""
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
        )

    def _build_metadata(self, entry: SessionEntry, mismatches: Mapping[TurnId, list[JsonObject]]) -> JsonObject:
        last = entry.session.forest.last
        own: JsonObject = {
            "created_at": entry.created_at,
            "metadata": entry.settings.metadata,
            "sampling_params": dict(entry.settings.pins),
            "on_truncated": str(entry.session.policy.on_truncated),
            **({"evaluation": True} if entry.settings.evaluation else {}),
            "bytes": entry.turn_bytes,
        }
        return build_metadata(
            entry.session,
            self._view(entry),
            max_trim_tokens=self._renderer.max_trim,
            own=own,
            mismatch=None if last is None else mismatches.get(last.id),
        )
