"""Weight updates of running engines.

Owns the steps of an update in every pause mode, as a trainer or a script drives it. Knows nothing of weights: the
engines read them from disk, or the caller moves them while the fleet is paused.

::

                  abort              retract            in_place
    pause         ends all turns     queues them again  freezes them
    flush cache   yes                yes                no: running turns need theirs
    [release memory -> train -> resume memory: colocated only, never in_place]
    update        flush_cache=true   flush_cache=true   flush_cache=false
    continue

`turnkeeper.engines.control` has the calls of each step.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turnkeeper.choices import EngineKind, PauseMode
from turnkeeper.clock import Clock
from turnkeeper.engines.control import ControlAction, ControlCall
from turnkeeper.engines.net.client import EngineClient
from turnkeeper.errors import ConfigError, EngineError
from turnkeeper.fleet.controller import EngineController
from turnkeeper.jsontypes import JsonObject


def check_deployment(mode: PauseMode, *, is_colocated: bool) -> None:
    """Refuse a pause mode that cannot work on colocated engines.

    Raises:
        ConfigError: the mode is in_place, and the engines share their memory with the trainer.
    """
    if is_colocated and mode is PauseMode.IN_PLACE:
        raise ConfigError(
            "pause mode in_place cannot be used on colocated engines: frozen turns keep their KV cache, so the engine "
            "cannot release its memory to the trainer",
            hint="use abort, or retract when no turn is in flight",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The result of a weight update."""

    version: str
    mode: PauseMode
    engines: int
    paused_s: float
    """The seconds from the first pause to the last continue."""


class EngineFleet:
    """The engines of a training run, which are updated together. Each is called directly, never through a router."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        client: EngineClient,
        clock: Clock,
        mode: PauseMode,
        kind: EngineKind = EngineKind.AUTO,
        is_colocated: bool = False,
        session_servers: Sequence[str] = (),
        timeout_s: float = 600.0,
        idle_timeout_s: float = 60.0,
    ) -> None:
        """Update these engines.

        Args:
            urls: each engine's own address.
            client: makes the calls; the caller closes it.
            clock: for waits and times.
            mode: the treatment of running turns in an update.
            kind: the kind of the engines; auto detects that of each engine once.
            is_colocated: True if the engines share their accelerators with the trainer.
            session_servers: addresses of session servers, whose new turns wait while the engines are paused.
            timeout_s: the longest that one control call may take.
            idle_timeout_s: the longest that an engine may take to become idle.

        Raises:
            ConfigError: there is no engine, or the mode cannot work in this deployment.
        """
        if not urls:
            raise ConfigError("a fleet has at least one engine", hint="give the engines' own URLs, not the router's")
        check_deployment(mode, is_colocated=is_colocated)
        self.urls = tuple(url.rstrip("/") for url in urls)
        self.mode = mode
        self.is_colocated = is_colocated
        self._controller = EngineController(
            client, clock, kind=kind, timeout_s=timeout_s, idle_timeout_s=idle_timeout_s
        )
        self._servers = tuple(url.rstrip("/") for url in session_servers)
        self._clock = clock

    async def update_from_disk(
        self, model_path: str, version: str, *, train: Callable[[], Awaitable[None]] | None = None
    ) -> UpdateResult:
        """Update all engines to the weights in a folder.

        Args:
            model_path: a folder that every engine can read.
            version: the label of these weights.
            train: run while the engines' memory is released, on colocated engines only.

        Raises:
            EngineError: an engine refused or was not reached; the message names its URL. If that happened while
            pausing,
                the engines continue as they were. Later they stay paused, since some may hold the new weights: mend
                the fault and update again, or call `resume`.
            ConfigError: the engines are colocated and of a kind that cannot release memory; nothing was done.
        """
        began = self._clock.now()
        if self.is_colocated:
            for url in self.urls:
                (await self._controller.find_wire(url)).plan_release()  # refused before anything is paused
        await self.pause()
        if self.is_colocated:
            await self._send_all(lambda wire: wire.plan_release())
        if train is not None:
            await train()
        if self.is_colocated:
            await self._send_all(lambda wire: wire.plan_reclaim())
        await self._send_all(lambda wire: wire.plan_disk_update(self.mode, model_path=model_path, version=version))
        await self.resume()
        return UpdateResult(version=version, mode=self.mode, engines=len(self.urls), paused_s=self._clock.now() - began)

    @asynccontextmanager
    async def paused(self, version: str) -> AsyncGenerator[None]:
        """Pause the engines for a block that moves the weights; then publish the version label and continue.

        When the block raises, no label is published and the engines stay paused.
        """
        await self.pause()
        yield
        await self._send_all(lambda wire: wire.plan_version(version))
        await self.resume()

    async def pause(self) -> None:
        """Hold new turns back and pause every engine; after a failure engines and turns continue as before."""
        try:
            await self._post_servers("/engine/pause", {"mode": str(self.mode), "forward": False})
            await self._send_all(lambda wire: wire.plan_pause(self.mode))
            await self._send_all(lambda wire: wire.plan_flush(self.mode))
        except EngineError:
            await self._send_each(lambda wire: wire.plan_continue())
            await asyncio.gather(self._post_servers("/engine/continue", {"forward": False}), return_exceptions=True)
            raise

    async def resume(self) -> None:
        """Continue every engine, then let new turns through."""
        await self._send_all(lambda wire: wire.plan_continue())
        await self._post_servers("/engine/continue", {"forward": False})

    async def _post_servers(self, path: str, body: JsonObject) -> None:
        await asyncio.gather(*(self._controller.post(url, ControlCall(path=path, body=body)) for url in self._servers))

    async def _send_all(self, action: ControlAction) -> None:
        """Make the calls of an action on all engines at once, and raise after all have answered."""
        failures = [each for each in await self._send_each(action) if each is not None]
        if not failures:
            return
        foreign = next((each for each in failures if not isinstance(each, EngineError)), None)
        if foreign is not None:
            raise foreign
        raise EngineError(
            f"{len(failures)} of {len(self.urls)} engines failed: " + "; ".join(str(each) for each in failures),
            url=self.urls[0],
        )

    async def _send_each(self, action: ControlAction) -> list[BaseException | None]:
        """Make the calls of an action on all engines at once, and return each one's failure, or None."""
        return await asyncio.gather(*(self._controller.send(url, action) for url in self.urls), return_exceptions=True)
