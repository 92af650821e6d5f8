"""The reader of reply parts: the versions that sampled the ids, the items of side channels, the marks of the turn.

Large payloads are checked in a thread; everything else is arithmetic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnkeeper.channels import CallFacts, Capture, Kept
from turnkeeper.choices import OnAbort, PauseMode
from turnkeeper.core.turn import Completion, VersionSpan
from turnkeeper.engines.check import build_completion, choose_versions
from turnkeeper.engines.engine import GenerateRequest, Generation
from turnkeeper.engines.offload import offload
from turnkeeper.errors import EngineProtocolError
from turnkeeper.generation.joining import JoinedReply, ReplyPart


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
    captures: tuple[Capture, ...] = ()
    """The side channels that turns may ask for."""
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
        held: Mapping[str, Sequence[Any]],
        earlier: Sequence[ReplyPart] = (),
    ) -> ReplyPart:
        """Read the part that one engine call adds to a turn.

        Args:
            request: the request of the call.
            generation: the reply, whole or aborted.
            started_version: the engine's version when the call began.
            is_disturbed: True if a pause began while the call ran.
            held: by side channel, the items of the parent's path that payloads cover again.
            earlier: the parts before this one.

        Raises:
            EngineProtocolError: items of a side channel are missing or bad; the fact ``sampled_tokens`` is set for a
                whole reply.
        """
        try:
            taken = await self._take(request, generation, held, earlier)
        except EngineProtocolError as error:
            error.facts |= {"url": generation.url}
            if not generation.is_aborted:
                error.facts["sampled_tokens"] = len(generation.ids)
            raise
        versions = self._choose_versions(generation, started_version, is_disturbed)
        return ReplyPart(request=request, generation=generation, versions=versions, taken=taken)

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

    async def _take(
        self,
        request: GenerateRequest,
        generation: Generation,
        held: Mapping[str, Sequence[Any]],
        earlier: Sequence[ReplyPart],
    ) -> Mapping[str, Any]:
        taken: dict[str, Any] = {}
        if not request.asked or not len(generation.ids):
            return taken
        call = CallFacts(url=generation.url, prompt_tokens=len(request.prompt_ids), ids=generation.ids)
        for capture in self._options.captures:
            name = capture.channel.name
            if name in request.asked:
                payload = generation.payloads.get(name)
                before = [part.taken[name] for part in earlier if name in part.taken]
                asked, items = request.asked[name], held.get(name, ())
                work = partial(capture.take, payload, asked, call, held=items, earlier=before)
                taken[name] = await offload(work, capture.weigh_take(payload))
        return taken

    async def build_completion(
        self,
        request: GenerateRequest,
        joined: JoinedReply,
        *,
        held: Mapping[str, Sequence[Any]],
        marks: Mapping[str, Any],
        started_at: float,
        finished_at: float,
    ) -> Completion:
        """Build the completion of a turn.

        Args:
            request: the turn's own request.
            joined: the joined parts of the turn.
            held: by side channel, the items of the parent's path that payloads cover again.
            marks: the marks that the runner gives the turn.
            started_at: Unix seconds.
            finished_at: Unix seconds.

        Raises:
            EngineProtocolError: items of a side channel are missing, or the options refuse how they came about.
        """
        kept = await self._finish(request, joined, held)
        channels = {name: each.items for name, each in kept.items() if each.items is not None}
        return build_completion(
            joined.generation,
            prompt_tokens=len(request.prompt_ids),
            versions=joined.versions,
            stop_token_ids=self._options.stop_token_ids,
            channels=channels,
            marks={**marks, **{mark: value for each in kept.values() for mark, value in each.marks.items()}},
            started_at=started_at,
            finished_at=finished_at,
        )

    async def _finish(
        self, request: GenerateRequest, joined: JoinedReply, held: Mapping[str, Sequence[Any]]
    ) -> Mapping[str, Kept]:
        kept: dict[str, Kept] = {}
        if not joined.taken:
            return kept
        generation = joined.generation
        turn = CallFacts(
            url=generation.url,
            prompt_tokens=len(request.prompt_ids),
            ids=generation.ids,
            cut_tokens=joined.cut_tokens,
            num_retractions=generation.num_retractions,
            has_mixed_versions=has_mixed_versions(joined),
        )
        for capture in self._options.captures:
            name = capture.channel.name
            if name in joined.taken:
                taken = joined.taken[name]
                work = partial(capture.finish, taken, turn, held=held.get(name, ()))
                kept[name] = await offload(work, capture.weigh_finish(taken))
        return kept


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
    is_salted = salted_version is not None and salted_version == joined.generation.weight_version
    may_reuse = joined.generation.cached_tokens > 0 or not joined.generation.is_cache_counted
    is_reused = may_reuse and was_updated and not is_salted
    return is_reused or has_mixed_versions(joined)


def has_mixed_versions(joined: JoinedReply) -> bool:
    """Return True if a turn was sampled under several weight versions, or under an unknown one."""
    versions = {span.version for span in joined.versions}
    return len(versions) > 1 or None in versions
