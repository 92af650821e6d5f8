"""Controls the engines for a trainer: pause, continue, abort, and the state of the engines."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from turnkeeper.choices import PauseMode
from turnkeeper.engines.control import ControlAction
from turnkeeper.engines.engine import EngineState
from turnkeeper.errors import EngineError, RequestError
from turnkeeper.fleet import EngineMonitor
from turnkeeper.generation import Gate
from turnkeeper.jsontypes import JsonObject

Forward = Callable[[ControlAction], Awaitable[Sequence[JsonObject]]]
"""Gives an order to every engine; each answer is ``{"url", "ok", "error"}``."""


class EngineControl:
    """The gate in front of the engines, as a trainer works it."""

    def __init__(self, *, gate: Gate, monitor: EngineMonitor, forward: Forward) -> None:
        self._gate = gate
        self._monitor = monitor
        self._forward = forward
        self._changing = asyncio.Lock()

    @property
    def state(self) -> EngineState:
        """The state of all engines in one word: serving, paused or unreachable."""
        return self._monitor.state

    async def pause(self, mode: PauseMode, *, forward: bool) -> JsonObject:
        """Hold new turns back; with ``forward`` every engine is paused first.

        Raises:
            RequestError: the engines are paused in another mode.
            EngineError: an engine refused or was not there; nothing has changed here.
        """
        async with self._changing:
            if self._gate.mode not in (None, mode):
                raise RequestError(f"the engines are paused in mode {self._gate.mode}, not {mode}", param="mode")
            engines = await self._pause_engines(mode) if forward else ()
            self._gate.pause(mode)
            return self._describe(engines)

    async def _pause_engines(self, mode: PauseMode) -> Sequence[JsonObject]:
        try:
            return await self._tell_engines(lambda wire: wire.plan_pause(mode), f"pause in mode {mode}")
        except EngineError:
            if self._gate.mode is None:  # those that were paused before one failed go on
                await self._forward(lambda wire: wire.plan_continue())
            raise

    async def resume(self, *, forward: bool) -> JsonObject:
        """Continue turns after a pause; with ``forward`` every engine continues first.

        Raises:
            EngineError: an engine refused or was not there; nothing has changed here.
        """
        async with self._changing:
            engines = await self._tell_engines(lambda wire: wire.plan_continue(), "continue") if forward else ()
            self._gate.resume()
            return self._describe(engines)

    def abort(self) -> None:
        """End every turn in flight for good."""
        self._gate.abort_turns()

    async def _tell_engines(self, action: ControlAction, name: str) -> Sequence[JsonObject]:
        answers = await self._forward(action)
        failed = [answer for answer in answers if not answer["ok"]]
        if failed:
            said = "; ".join(f"{answer['url']}: {answer['error']}" for answer in failed)
            raise EngineError(f"{name} failed: {said}", url=failed[0]["url"])
        return answers

    def _describe(self, engines: Sequence[JsonObject]) -> JsonObject:
        mode = self._gate.mode
        listed: list[Any] = list(engines) or [
            {"url": status.url, "ok": status.state is not EngineState.UNREACHABLE, "error": status.error or None}
            for status in self._monitor.statuses
        ]
        return {"state": "paused" if mode else "serving", "mode": mode, "engines": listed}


def parse_pause_mode(value: Any) -> PauseMode:
    """Read a pause mode.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(value, str) or value not in set(PauseMode):
        raise RequestError(f"mode must be one of {', '.join(PauseMode)}, got {value!r}", param="mode")
    return PauseMode(value)
