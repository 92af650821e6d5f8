"""Calls to the engine that end with the turn: none runs on at the engine once its turn has been given up."""

import asyncio

from turnkeeper.engines.engine import Engine, GenerateRequest, Generation, IdsSink
from turnkeeper.errors import EngineError
from turnkeeper.generation.gate import AbortSignal
from turnkeeper.tasks import Spawn


class EngineCaller:
    """Calls one engine, and sends an abort notice for each call that may still run when nobody waits for it."""

    def __init__(self, engine: Engine, spawn: Spawn) -> None:
        """Call an engine.

        Args:
            engine: generates.
            spawn: starts the tasks that send abort notices.
        """
        self._engine = engine
        self._spawn = spawn
        self._abort_notices: set[asyncio.Task[None]] = set()

    async def call(self, request: GenerateRequest, *, signal: AbortSignal, on_ids: IdsSink | None) -> Generation | None:
        """Call the engine until it answers; return None when the signal was set first.

        Args:
            request: the call.
            signal: ends the call.
            on_ids: gets sampled ids as they come; None for none.

        Raises:
            EngineError: the call failed.
        """
        scope = signal.open_scope()
        try:
            async with scope:
                return await self._engine.generate(request, on_ids=on_ids)
        except asyncio.CancelledError:
            self._send_abort_notice(request.rid)
            raise
        except TimeoutError:
            if not scope.expired():
                raise
            self._send_abort_notice(request.rid)
            return None
        except EngineError as error:
            if error.http_status == 504:
                self._send_abort_notice(request.rid)
            raise
        finally:
            signal.close_scope(scope)

    async def close(self) -> None:
        """Wait until the engine got the abort notice of every call that was given up."""
        while self._abort_notices:
            await asyncio.gather(*self._abort_notices, return_exceptions=True)

    def _send_abort_notice(self, rid: str) -> None:
        task = self._spawn("engine_aborts", self._engine.abort(rid))
        self._abort_notices.add(task)
        task.add_done_callback(self._abort_notices.discard)
