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
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from os import PathLike
from typing import Self, TypeVar

from turnkeeper.choices import EngineKind, PauseMode
from turnkeeper.client import SessionClient
from turnkeeper.clock import Clock, SystemClock
from turnkeeper.engines.control import ControlAction
from turnkeeper.engines.net.client import EngineClient
from turnkeeper.errors import ConfigError, EngineError, TurnkeeperError
from turnkeeper.fleet.controller import EngineController

Choice = TypeVar("Choice", bound=StrEnum)


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
    """The engines of a training run, which are updated together. Each is called directly, never through a router.

    ::

        async with EngineFleet(engine_urls, mode="in_place", session_servers=server_urls) as fleet:
            await fleet.update_from_disk("/shared/step-8", "8")

            async with fleet.paused("9"):
                ...  # move the weights another way

    ``async with`` closes the fleet's connections at the end of the block.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        mode: PauseMode | str,
        kind: EngineKind | str = EngineKind.AUTO,
        is_colocated: bool = False,
        session_servers: Sequence[str] = (),
        api_key: str | None = None,
        engine_api_key: str | None = None,
        timeout_s: float = 600.0,
        idle_timeout_s: float = 60.0,
        client: EngineClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Update these engines.

        Args:
            urls: each engine's own address.
            mode: the treatment of running turns in an update: ``abort``, ``retract`` or ``in_place``.
            kind: the kind of the engines, ``sglang`` or ``vllm``; ``auto`` detects that of each engine once.
            is_colocated: True if the engines share their accelerators with the trainer.
            session_servers: addresses of session servers, of each of their workers, whose new turns wait while the
                engines are paused.
            api_key: the admin's key of the session servers, where they have keys.
            engine_api_key: the key of the engines, where they have one.
            timeout_s: the longest that one control call may take.
            idle_timeout_s: the longest that an engine may take to become idle.
            client: makes the calls to engines, and is closed by the caller; None for one of the fleet's own.
            clock: for waits and times; None for the machine's.

        Raises:
            ConfigError: there is no engine, a word is none of the choices, or the mode cannot work in this deployment.
        """
        if not urls or isinstance(urls, str):
            raise ConfigError(
                f"the addresses of engines are expected as a list, got {urls!r}",
                hint="give the engines' own URLs, not the router's",
            )
        self.urls = tuple(url.rstrip("/") for url in urls)
        self.mode = _choose(PauseMode, mode, "mode")
        self.is_colocated = is_colocated
        check_deployment(self.mode, is_colocated=is_colocated)
        self._clock = clock or SystemClock()
        engines = EngineClient(api_key=engine_api_key) if client is None else client
        self._own_client = engines if client is None else None
        self._controller = EngineController(
            engines,
            self._clock,
            kind=_choose(EngineKind, kind, "kind"),
            timeout_s=timeout_s,
            idle_timeout_s=idle_timeout_s,
        )
        self._servers = SessionClient(session_servers, api_key=api_key) if session_servers else None

    async def __aenter__(self) -> Self:
        """Return the fleet."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the fleet's own connections."""
        await self.close()

    async def close(self) -> None:
        """Close the fleet's own connections; a client that it was given stays open."""
        if self._own_client is not None:
            await self._own_client.close()

    def __repr__(self) -> str:
        """Return the engines and the mode."""
        return f"<EngineFleet of {len(self.urls)}, {self.mode}: {' '.join(self.urls)}>"

    async def update_from_disk(
        self, model_path: str | PathLike[str], version: str | int, *, train: Callable[[], Awaitable[None]] | None = None
    ) -> UpdateResult:
        """Update all engines to the weights in a folder.

        Args:
            model_path: a folder that every engine can read.
            version: the label of these weights.
            train: run while the engines' memory is released, on colocated engines only.

        Raises:
            EngineError: an engine refused or was not reached; the message names its URL. If that happened while
                pausing, the engines continue as they were. Later they stay paused, since some may hold the new weights:
                mend the fault and update again, or call `resume`.
            TurnkeeperError: a session server refused or was not reached.
            ConfigError: the engines are colocated and of a kind that cannot release memory; nothing was done.
        """
        began, label, folder = self._clock.now(), str(version), str(model_path)
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
        await self._send_all(lambda wire: wire.plan_disk_update(self.mode, model_path=folder, version=label))
        await self.resume()
        return UpdateResult(version=label, mode=self.mode, engines=len(self.urls), paused_s=self._clock.now() - began)

    @asynccontextmanager
    async def paused(self, version: str | int) -> AsyncGenerator[None]:
        """Pause the engines for a block that moves the weights; then publish the version label and continue.

        When the block raises, no label is published and the engines stay paused: some may hold a part of the weights.
        Move them again, or call `resume`.

        Args:
            version: the label of the weights that the block moves.
        """
        await self.pause()
        yield
        await self._send_all(lambda wire: wire.plan_version(str(version)))
        await self.resume()

    async def pause(self) -> None:
        """Hold new turns back and pause every engine; after a failure engines and turns continue as before.

        Raises:
            EngineError: an engine refused or was not reached; the message names its URL.
            TurnkeeperError: a session server refused or was not reached.
        """
        if self._servers is not None:
            await self._servers.pause(self.mode)
        try:
            await self._send_all(lambda wire: wire.plan_pause(self.mode))
            await self._send_all(lambda wire: wire.plan_flush(self.mode))
        except EngineError:
            await self._send_each(lambda wire: wire.plan_continue())
            with suppress(TurnkeeperError):
                await self._resume_servers()
            raise

    async def resume(self) -> None:
        """Continue every engine, then let new turns through.

        Raises:
            EngineError: an engine refused or was not reached; turns still wait.
            TurnkeeperError: a session server refused or was not reached.
        """
        await self._send_all(lambda wire: wire.plan_continue())
        await self._resume_servers()

    async def _resume_servers(self) -> None:
        if self._servers is not None:
            await self._servers.resume()

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


def _choose(choices: type[Choice], given: str, name: str) -> Choice:
    """Read one of the words of a choice."""
    try:
        return choices(given)
    except ValueError:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {given!r}") from None
