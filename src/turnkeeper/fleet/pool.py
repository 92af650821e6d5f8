"""Several engines as one.

Owns which engine serves a session: rendezvous hashing, so that a session stays where its prefix cache is, an engine
that fails loses only its own sessions, and gets exactly those back. There is no table to fill: a session id and the
list of URLs decide.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from turnkeeper.engines.engine import (
    Engine,
    EngineState,
    EngineStatus,
    GenerateRequest,
    Generation,
    IdsSink,
    RelayReply,
    RelayRequest,
)
from turnkeeper.errors import EngineError, EngineProtocolError, EngineRefusedError, EngineTimeoutError

Reply = TypeVar("Reply")


def rank_engines(session_id: str, urls: Sequence[str]) -> tuple[str, ...]:
    """The URLs in the order in which they serve this session, best first; independent of the order given."""

    def weigh(url: str) -> bytes:
        return hashlib.blake2b(f"{session_id}\n{url}".encode(), digest_size=8).digest()

    return tuple(sorted(urls, key=lambda url: (weigh(url), url), reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """One engine of a pool."""

    url: str
    engine: Engine


class EnginePool:
    """Engines behind one `Engine`. A turn goes to the best-ranked engine that is up.

    An engine is down from its first failure (no connection, a reply that breaks off, a status that says so) until
    ``retry_s`` later or until a probe finds it serving. Only a call that no engine accepted moves on to the next one; a
    reply that breaks off is an error of that turn, and the next turn goes elsewhere.
    """

    def __init__(self, members: Sequence[PoolMember], *, now: Callable[[], float], retry_s: float = 5.0) -> None:
        """Pool the engines.

        Args:
            members: at least one; URLs are unique.
            now: a monotonic clock, in seconds.
            retry_s: how long an engine that failed is passed over.
        """
        if not members:
            raise ValueError("a pool has at least one engine")
        self._engines = {member.url: member.engine for member in members}
        self._now = now
        self._retry_s = retry_s
        self._down_until: dict[str, float] = {}

    def list_candidates(self, session_id: str) -> tuple[str, ...]:
        """The engines to try for a session, in order: those that are up, then the rest."""
        ranked = rank_engines(session_id, tuple(self._engines))
        return tuple(sorted(ranked, key=self._is_down))

    def _is_down(self, url: str) -> bool:
        return self._down_until.get(url, self._now()) > self._now()

    def _mark(self, url: str, *, is_up: bool) -> None:
        if is_up:
            self._down_until.pop(url, None)
        else:
            self._down_until[url] = self._now() + self._retry_s

    async def generate(self, request: GenerateRequest, *, on_ids: IdsSink | None = None) -> Generation:
        """Generate on the session's engine, or on the next where nothing accepts a connection."""
        return await self._try_each(request.session_id, lambda engine: engine.generate(request, on_ids=on_ids))

    async def relay(self, call: RelayRequest) -> RelayReply:
        """Pass a call through to the session's engine."""
        return await self._try_each(call.session_id, lambda engine: engine.relay(call))

    async def _try_each(self, session_id: str, attempt: Callable[[Engine], Awaitable[Reply]]) -> Reply:
        refusals: list[str] = []
        for url in self.list_candidates(session_id):
            try:
                reply = await attempt(self._engines[url])
            except (EngineProtocolError, EngineRefusedError, EngineTimeoutError):
                raise  # it is there, and its answer would not differ elsewhere
            except EngineError as error:
                if error.facts.get("engine_paused") or error.facts.get("engine_answers"):
                    raise  # it is there; its sessions wait for it rather than move
                self._mark(url, is_up=False)
                if error.facts.get("accepted") is not False:
                    raise
                refusals.append(error.message)
            else:
                self._mark(url, is_up=True)
                return reply
        raise EngineError("; ".join(refusals), url=next(iter(self._engines)), accepted=False)

    async def abort(self, rid: str) -> None:
        """Tell every engine: the attempt's own may be among those that look down."""
        await asyncio.gather(*(engine.abort(rid) for engine in self._engines.values()))

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        """Look at all engines at once; one that serves again takes its sessions back."""
        found = await asyncio.gather(*(engine.fetch_status() for engine in self._engines.values()))
        statuses = tuple(status for each in found for status in each)
        for status in statuses:
            if status.url in self._engines:
                self._mark(status.url, is_up=status.state is not EngineState.UNREACHABLE)
        return statuses

    async def close(self) -> None:
        """Close each engine."""
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))
