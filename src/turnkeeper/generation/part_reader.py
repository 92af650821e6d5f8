"""The reader of reply parts: the versions that sampled the ids, the routing rows that are added, the marks of the turn.

Owns the operator's choices about rows. Large payloads are checked in a thread; everything else is arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnkeeper.choices import OnAbort, OnBadRows, OnRecomputed, PauseMode, RowsKept
from turnkeeper.core.turn import Completion, VersionSpan
from turnkeeper.engines.check import build_completion, choose_versions
from turnkeeper.engines.engine import GenerateRequest, Generation
from turnkeeper.engines.offload import offload
from turnkeeper.errors import EngineProtocolError
from turnkeeper.generation.joining import JoinedReply, ReplyPart
from turnkeeper.routing import Patch, RoutingRows, RoutingShape, decode_indexer, keep_added, take_patch

_INLINE_TEXT = 1 << 24
"""The length of payload text up to which rows are checked in the event loop: they are decoded by then, and checked in 2
ms. In a thread they would first wait for others, beside large ones 10 ms and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """The options by which turns are generated."""

    pause_mode: PauseMode
    on_abort: OnAbort = OnAbort.RESTART
    abort_grace_s: float = 2.0
    """The time after an abort within which a pause explains it."""
    gate_timeout_s: float = 600.0
    """The time that a turn waits at most while the engines are paused."""
    max_attempts: int = 8
    """The number of engine calls that one turn may make."""
    shape: RoutingShape | None = None
    """The model's routing; needed for requests that ask for rows."""
    on_bad_rows: OnBadRows = OnBadRows.FAIL
    rows_kept: RowsKept = RowsKept.DECODE
    on_recomputed: OnRecomputed = OnRecomputed.KEEP
    stop_token_ids: tuple[int, ...] = ()
    """The family's stop tokens."""
    vocabulary_size: int | None = None
    """The number of ids that the model has, padding included; None when unknown."""
    cache_salt_by_version: bool = False
    """True to keep the prefix cache of one weight version apart from another's, session by session."""


class ReplyPartReader:
    """Makes reply parts and completions of replies that `check.check_generation` accepted."""

    def __init__(self, options: RunnerOptions) -> None:
        """Read replies by these options."""
        self._options = options

    async def read_part(
        self,
        request: GenerateRequest,
        generation: Generation,
        *,
        started_version: str | None,
        is_disturbed: bool,
        held: Sequence[RoutingRows],
    ) -> ReplyPart:
        """Read the part that one engine call adds to a turn.

        Args:
            request: the request of the call.
            generation: the reply, whole or aborted.
            started_version: the engine's version when the call began.
            is_disturbed: True if a pause began while the call ran.
            held: the rows before those of this part, to be compared with a payload of all rows.

        Raises:
            EngineProtocolError: rows are missing or bad; the fact ``sampled_tokens`` is set for a whole reply.
        """
        try:
            patch = await self._take_patch(request, generation, held)
        except EngineProtocolError as error:
            error.facts |= {"url": generation.url}
            if not generation.is_aborted:
                error.facts["sampled_tokens"] = len(generation.ids)
            raise
        versions = self._choose_versions(generation, started_version, is_disturbed)
        return ReplyPart(request=request, generation=generation, versions=versions, patch=patch)

    def _choose_versions(
        self, generation: Generation, started_version: str | None, is_disturbed: bool
    ) -> tuple[VersionSpan, ...]:
        # The label of an aborted reply may already be that of the update which aborted it.
        is_relabelled = generation.is_aborted and started_version not in (None, generation.weight_version)
        return choose_versions(
            generation,
            is_abort_mode=self._options.pause_mode is PauseMode.ABORT and not is_relabelled,
            started_version=started_version,
            is_disturbed=is_disturbed and not generation.is_aborted,
        )

    async def _take_patch(
        self, request: GenerateRequest, generation: Generation, held: Sequence[RoutingRows]
    ) -> Patch | None:
        rows, shape = request.rows, self._options.shape
        if rows is None or shape is None or not len(generation.ids):
            return None

        def take() -> Patch:
            return take_patch(
                generation.routed_experts,
                request=rows,
                shape=shape,
                prompt_tokens=len(request.prompt_ids),
                completion_tokens=len(generation.ids),
                held=held,
                on_bad_rows=self._options.on_bad_rows,
                kept=self._options.rows_kept,
            )

        return await offload(take, len(generation.routed_experts or b""), inline_bytes=_INLINE_TEXT)

    async def build_completion(
        self,
        request: GenerateRequest,
        joined: JoinedReply,
        *,
        held_indexer: Sequence[NDArray[np.int32]] = (),
        marks: Mapping[str, Any],
        started_at: float,
        finished_at: float,
    ) -> Completion:
        """Build the completion of a turn.

        Args:
            request: the turn's own request.
            joined: the joined parts of the turn.
            held_indexer: the indexer's rows of the parent's path, in pieces.
            marks: the marks that the runner gives the turn.
            started_at: Unix seconds.
            finished_at: Unix seconds.

        Raises:
            EngineProtocolError: the indexer's rows are missing, or rows were recomputed and the options refuse that.
        """
        return build_completion(
            joined.generation,
            prompt_tokens=len(request.prompt_ids),
            versions=joined.versions,
            stop_token_ids=self._options.stop_token_ids,
            rows=joined.patch.rows if joined.patch is not None else None,
            indexer_rows=await self._read_indexer(request, joined, held_indexer),
            marks={**marks, **self._collect_marks(joined)},
            started_at=started_at,
            finished_at=finished_at,
        )

    async def _read_indexer(
        self, request: GenerateRequest, joined: JoinedReply, held: Sequence[NDArray[np.int32]]
    ) -> NDArray[np.int32] | None:
        """Decode the indexer's rows, and keep what the turn adds. In every mode the payload of the last part covers the
        whole path."""
        if not request.wants_indexer:
            return None
        generation = joined.generation
        payload, layers = generation.indexer_topk, generation.indexer_layers
        if payload is None or layers is None:
            raise EngineProtocolError(
                f"indexer rows were asked for, the reply of {generation.url} has no indexer_topk",
                hint="the engine's build has no return_indexer_topk on this route",
                url=generation.url,
            )
        kept = len(request.prompt_ids) + len(generation.ids) - 1
        rows = kept + joined.cut_tokens

        def read() -> NDArray[np.int32]:
            return keep_added(decode_indexer(payload, layers=layers, rows=rows)[:kept], held)

        return await offload(read, len(payload))

    def _collect_marks(self, joined: JoinedReply) -> dict[str, Any]:
        marks: dict[str, Any] = {}
        if joined.patch is not None and joined.patch.changed_rows:
            marks["rows_changed"] = joined.patch.changed_rows
        if joined.patch is not None and joined.patch.equal_rows:
            marks["rows_equal"] = joined.patch.equal_rows
        if joined.patch is not None and joined.patch.bad is not None:
            bad = joined.patch.bad
            marks |= {"bad_rows_from": bad.row, "bad_rows": f"{bad.fault}: {bad.detail}"}
        if is_recomputed(joined):
            marks["rows_recomputed"] = True
            if self._options.on_recomputed is OnRecomputed.FAIL:
                raise EngineProtocolError(
                    f"the engine computed routing rows of the turn again ({joined.generation.num_retractions} "
                    "retractions), so they are not those that sampled its tokens",
                    hint="--r3-recomputed keep or mask records such turns",
                    url=joined.generation.url,
                )
        return marks


def has_older_prefix(joined: JoinedReply, *, was_updated: bool, salted_version: str | None) -> bool:
    """Return True if tokens may have been sampled behind a prefix that older weights computed, on engines that keep KV.

    That is so when the weights changed while the turn ran, and when the turn reused a cached prefix on an engine that
    was updated since; an engine that does not count cached tokens may have reused one.

    Args:
        joined: the turn.
        was_updated: True if the engine may have got other weights since this server first saw it.
        salted_version: the version in the turn's cache salt; None without a salt. The salt was out of date where the
            reply has another version.
    """
    versions = {span.version for span in joined.versions}
    is_salted = salted_version is not None and salted_version == joined.generation.weight_version
    may_reuse = joined.generation.cached_tokens > 0 or not joined.generation.is_cache_counted
    is_reused = may_reuse and was_updated and not is_salted
    return is_reused or len(versions) > 1 or None in versions


def is_recomputed(joined: JoinedReply) -> bool:
    """Return True if the engine recomputed rows of sampled tokens: it retracted the turn, under several or unknown
    versions."""
    versions = {span.version for span in joined.versions}
    is_mixed = len(versions) > 1 or None in versions
    return joined.patch is not None and joined.generation.num_retractions > 0 and is_mixed
