"""A pool of engines behind one `Engine`.

Owns the choice of the engine for a session, by rendezvous hashing: a session stays where its prefix cache is, and an
engine that fails loses only its own sessions and gets exactly those back. There is no table to keep: session id and
URLs decide.
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
    """Rank the URLs for a session, best first; the order in which they are given has no influence."""

    def weigh(url: str) -> bytes:
        return hashlib.blake2b(f"{session_id}\n{url}".encode(), digest_size=8).digest()

    return tuple(sorted(urls, key=lambda url: (weigh(url), url), reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMember:
    """An engine of a pool, and its URL."""

    url: str
    engine: Engine


class EnginePool:
    """Several engines as one. A turn goes to the best-ranked engine that is up.

    An engine is down from its first failure (no connection, a reply that breaks off, a status that says so) until
    ``retry_s`` later or until its status is serving. Only a call that no engine accepted is tried on the next one; a
    reply that breaks off is an error of that turn, and the next turn goes to another engine.
    """

    def __init__(self, members: Sequence[PoolMember], *, now: Callable[[], float], retry_s: float = 5.0) -> None:
        """Pool the engines.

        Args:
            members: at least one; URLs are unique.
            now: a monotonic clock, in seconds.
            retry_s: the time for which an engine that failed is not tried first.
        """
        if not members:
            raise ValueError("a pool has at least one engine")
        self._engines = {member.url: member.engine for member in members}
        self._now = now
        self._retry_s = retry_s
        self._down_until: dict[str, float] = {}

    def list_candidates(self, session_id: str) -> tuple[str, ...]:
        """List the engines to try for a session, in order: those that are up, then the others."""
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
        return await self._try_each(request.session_id, lambda engine: engine.generate(request, on_ids=on_ids))

    async def relay(self, call: RelayRequest) -> RelayReply:
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
        # Every engine is asked, since the attempt may run on one that is taken to be down.
        await asyncio.gather(*(engine.abort(rid) for engine in self._engines.values()))

    async def fetch_status(self) -> tuple[EngineStatus, ...]:
        # An engine that serves again gets its sessions back.
        found = await asyncio.gather(*(engine.fetch_status() for engine in self._engines.values()))
        statuses = tuple(status for each in found for status in each)
        for status in statuses:
            if status.url in self._engines:
                self._mark(status.url, is_up=status.state is not EngineState.UNREACHABLE)
        return statuses

    async def close(self) -> None:
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))
